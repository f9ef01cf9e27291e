"""The example with Opacus, against a real server."""

import json
import sys
from pathlib import Path

import pytest

from epsilon_ledger import LedgerClient, Limit
from tests import programs
from tests.conftest import LiveServer
from tests.examples.example_runner import EXAMPLES, example, is_picture
from tests.soak import thinned


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("epsilon", "accuracy"), thinned([(2.0, 0.2), (4.0, 0.5)], 2))
def test_example_is_stopped_at_its_budget_and_its_epsilon_is_opacus_own(
    live_server: LiveServer, tmp_path: Path, epsilon: float, accuracy: float
) -> None:
    said = example(live_server, "opacus_digits", tmp_path / "out", LIMIT=Limit(epsilon, 1e-4))
    facts = json.loads((tmp_path / "out" / "opacus.json").read_text())
    assert facts["refused"]
    assert f"Stopped: Step {facts['steps']} of {facts['run']} was refused" in said
    rules = facts["accountants"]
    # The plan admits more steps than RDP would.
    assert rules["pld"] <= epsilon < rules["rdp"]
    assert rules["pld"] == pytest.approx(facts["epsilon"], rel=1e-3)
    # Neither grid of orders contains the other: over 44 to 400 steps they differ by -1.6e-4 to 3e-5 of the value.
    assert rules["rdp"] == pytest.approx(facts["epsilon_opacus"], rel=5e-4)
    assert rules["rdp"] < rules["optimal_composition"] < rules["basic_composition"]
    assert rules["textbook"] is None
    assert is_picture(tmp_path / "out" / "opacus.png")
    with LedgerClient(live_server.url, live_server.key("admin")) as ledger:
        state = ledger.get_run(facts["run"]).state
        history = ledger.get_run_history(facts["run"], max_points=2000)
    assert (state.status, state.next_step, state.epsilon) == ("completed", facts["steps"], facts["epsilon"])
    assert [point.decision for point in history.points] == ["admitted"] * facts["steps"] + ["refused"]
    event = history.points[0].events[0]["event"]
    assert event["type"] == "poisson_sampled"
    assert event["sampling_probability"] == pytest.approx(0.1)
    assert event["event"] == {"type": "gaussian", "noise_multiplier": 1.5}
    assert facts["accuracy"] > accuracy
    command = [sys.executable, str(EXAMPLES / "opacus_digits.py"), "--load", str(tmp_path / "out" / "model.pt")]
    again = programs.run(command, timeout=None)
    assert again.stdout == f"{facts['accuracy']:.1%} right\n"
