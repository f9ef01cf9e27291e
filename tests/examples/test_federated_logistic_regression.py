"""The example of federated training, against a real server: three processes, three keys, three budgets."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from epsilon_ledger import LedgerClient
from tests.conftest import LiveServer
from tests.examples.example_runner import example

RECORDS = {"A": 120, "B": 150, "C": 180}


def reference(records: int, steps: int, delta: float) -> float:
    """The function of PrimiHub's documentation."""
    accountant = RdpAccountant([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))
    sampled = dp_accounting.PoissonSampledDpEvent(16 / records, dp_accounting.GaussianDpEvent(2.0))
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, steps))
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class Finished:
    """What the example said and wrote."""

    said: str
    folder: Path
    found: dict[str, Any]


@pytest.fixture(scope="module")
def finished(live_server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run of the example; each party's key is that of an organisation of its own."""
    folder = tmp_path_factory.mktemp("federated") / "out"
    keys = [live_server.key("admin", f"hospital {name}") for name in RECORDS]
    said = example(live_server, "federated_logistic_regression.py", folder, "--keys", *keys)
    return Finished(said, folder, json.loads((folder / "train_indicator.json").read_text()))


def test_each_party_is_held_to_its_own_budget_and_spends_what_the_reference_says(
    live_server: LiveServer, finished: Finished
) -> None:
    privacy = finished.found["privacy"]
    assert {each["party"]: each["records"] for each in privacy} == RECORDS
    for each in privacy:
        with LedgerClient(live_server.url, live_server.key("admin", f"hospital {each['party']}")) as ledger:
            state = ledger.get_run(each["run"]).state
            assert (state.status, state.next_step, state.epsilon) == ("completed", each["steps"], each["epsilon"])
            assert ledger.get_budget(state.budget).epsilon == each["epsilon"] <= 3.0
        assert each["refusal"].startswith(f"step {each['steps']} of {each['run']} refused")
        # The ledger's orders are finer: never above the reference, and hardly below.
        answer = reference(each["records"], each["steps"], each["delta"])
        assert each["epsilon_reference"] == answer
        assert answer * (1 - 5e-4) <= each["epsilon_rdp"] <= answer
    steps = [each["steps"] for each in privacy]
    assert steps == sorted(steps)
    assert steps[0] > 50
    assert finished.said.count("stopped: step") == len(RECORDS)


def test_the_files_agree_with_each_other(finished: Finished) -> None:
    found = finished.found
    with (finished.folder / "train_predict.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 569 - 450
    labels, chances = (np.array([float(row[name]) for row in rows]) for name in ("label", "probability"))
    assert [int(row["prediction"]) for row in rows] == (chances > 0.5).astype(int).tolist()
    assert found["accuracy"] == pytest.approx(np.mean((chances > 0.5) == labels))
    assert found["accuracy"] > 0.85
    ordered = np.mean([[one > other for other in chances[labels == 0]] for one in chances[labels == 1]])
    assert found["auc"] == pytest.approx(ordered, abs=1e-3)
    assert found["ks"] == pytest.approx(np.max(np.subtract(found["roc"]["tpr"], found["roc"]["fpr"])))
    assert np.load(finished.folder / "model.npz")["weights"].shape == (31,)
