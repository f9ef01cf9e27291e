"""The example of local differential privacy, against a real server."""

import json
import re
from itertools import accumulate
from math import e, log, log1p
from pathlib import Path

import pytest

from epsilon_ledger import LedgerClient
from tests.conftest import LiveServer
from tests.examples.example_runner import example, is_picture


def test_the_rounds_cost_what_they_say_and_the_last_one_does_not_take_place(
    live_server: LiveServer, tmp_path: Path
) -> None:
    said = example(live_server, "local_dp_clustering.py", tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "scores.json").read_text())
    rounds, without = facts["rounds"], facts["without_noise"]
    assert [each["epsilon"] for each in rounds] == [1, 2, 4, 8, 16, 32, 64]
    # Pure epsilons add up. The plan's part of delta covers a little: Laplace noise reaches its whole loss half of the
    # time, so n rounds have a delta of 2^-n (1 - e^(x - sum)) just below the sum. Of one round it is bounded as if it
    # were randomized response.
    share = 0.975e-6
    sums = list(accumulate(each["epsilon"] for each in rounds))
    for number, (total, each) in enumerate(zip(sums, rounds, strict=True), start=1):
        assert total + log1p(-share * 2**number) * (1 + 1e-6) <= each["spent"] <= total
    assert rounds[0]["spent"] == pytest.approx(log(e - share * (1 + e)), rel=1e-7)
    assert [each["scale"] * each["epsilon"] for each in rounds] == pytest.approx([2.0] * 7)
    assert "The round with epsilon 128 does not take place" in said
    silhouettes = [each["silhouette"] for each in rounds]
    assert silhouettes[0] < silhouettes[4] < silhouettes[6] < without["silhouette"]
    assert rounds[0]["right"] < rounds[3]["right"] < without["right"] + 0.02
    assert without["right"] > 0.85
    # The seed documents' bound of 1e-5 costs an epsilon that is none.
    assert re.search(r"1e-05 +4\.343e-06 +460517 +protects nobody", said)
    assert is_picture(tmp_path / "out" / "scores.png")
    with LedgerClient(live_server.url, live_server.key("admin")) as ledger:
        run = re.search(r"run_\w+", said)
        assert run
        state = ledger.get_run(run[0]).state
        assert (state.status, state.next_step, state.neighboring_relation) == ("completed", 7, "replace_one")
        assert ledger.get_population(state.population).epsilon == pytest.approx(127, rel=1e-6)
