"""The example of federated training, against a real server: three parties, three keys, three budgets."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from epsilon_ledger import LedgerClient, gaussian, poisson_sampled
from tests.conftest import LiveServer
from tests.examples.example_runner import example, is_picture, module

RECORDS = {"A": 120, "B": 150, "C": 180}


def reference(records: int, steps: int, delta: float) -> float:
    """The function of PrimiHub's documentation."""
    accountant = RdpAccountant([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))
    sampled = dp_accounting.PoissonSampledDpEvent(16 / records, dp_accounting.GaussianDpEvent(2.0))
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, steps))
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class Finished:
    """What the example said and wrote, where each party had this epsilon."""

    epsilon: float
    said: str
    folder: Path
    found: dict[str, Any]

    def rows(self, name: str) -> list[dict[str, str]]:
        with (self.folder / name).open() as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=[2.5, pytest.param(3.0, marks=pytest.mark.soak)])
def finished(
    request: pytest.FixtureRequest, live_server: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    """One run of the example; each party's key is that of an organisation of its own."""
    folder = tmp_path_factory.mktemp("federated") / "out"
    keys = [live_server.key("admin", f"hospital {name}") for name in RECORDS]
    given = ("--keys", *keys, "--epsilon", str(request.param))
    said = example(live_server, "federated_logistic_regression", folder, *given)
    return Finished(request.param, said, folder, json.loads((folder / "train_indicator.json").read_text()))


def predict(monkeypatch: pytest.MonkeyPatch, folder: Path, test: str, *options: str) -> None:
    """Predict with the model of a folder, without a key."""
    monkeypatch.delenv("EPSILON_LEDGER_API_KEY", raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["x", "--model", "model.npz", "--test", test, *options])
    module("federated_prediction").main()


def test_each_party_is_held_to_its_own_budget_and_spends_what_reference_says(
    live_server: LiveServer, finished: Finished
) -> None:
    privacy = finished.found["privacy"]
    assert {each["party"]: each["records"] for each in privacy} == RECORDS
    for each in privacy:
        with LedgerClient(live_server.url, live_server.key("admin", f"hospital {each['party']}")) as ledger:
            state = ledger.get_run(each["run"]).state
            assert (state.status, state.next_step, state.epsilon) == ("completed", each["steps"], each["epsilon"])
            assert ledger.get_budget(state.budget).epsilon == each["epsilon"] <= finished.epsilon
        assert each["refusal"].startswith(f"Step {each['steps']} of {each['run']} was refused")
        # The ledger composes privacy loss distributions: never above the reference, which is by orders.
        answer = reference(each["records"], each["steps"], each["delta"])
        assert each["epsilon_reference"] == answer
        assert 0.95 * finished.epsilon < each["epsilon"] <= answer
    steps = [each["steps"] for each in privacy]
    assert steps == sorted(steps)
    assert steps[0] > 50 * (finished.epsilon / 3) ** 2
    assert finished.said.count("stopped: Step") == len(RECORDS)


def test_files_agree_with_each_other(finished: Finished) -> None:
    found, rows = finished.found, finished.rows("train_predict.csv")
    assert len(rows) == 569 - 450
    labels, chances = (np.array([float(row[name]) for row in rows]) for name in ("label", "probability"))
    assert [int(row["prediction"]) for row in rows] == (chances > 0.5).astype(int).tolist()
    assert found["accuracy"] == found["rounds"]["accuracy"][-1] == pytest.approx(np.mean((chances > 0.5) == labels))
    assert found["accuracy"] > 0.85
    ordered = np.mean([[one > other for other in chances[labels == 0]] for one in chances[labels == 1]])
    assert found["auc"] == pytest.approx(ordered, abs=1e-3)
    assert found["ks"] == pytest.approx(np.max(np.subtract(found["roc"]["tpr"], found["roc"]["fpr"])))
    assert is_picture(finished.folder / "rounds.png")
    spent = found["rounds"]["epsilon"]
    assert spent.keys() == RECORDS.keys()
    assert max(map(max, spent.values())) <= finished.epsilon


def test_saved_model_predicts_in_job_of_its_own(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    predict(monkeypatch, finished.folder, "test.csv", "--sample")
    rows, trained = finished.rows("predictions.csv"), finished.rows("train_predict.csv")
    # The same patients, scaled by what the file says: the same probabilities as at the end of the training.
    assert [row["probability"] for row in rows] == [row["probability"] for row in trained]
    assert rows[0]["id"] == "patient-0"
    assert f"accuracy {finished.found['accuracy']:.3f}, AUC {finished.found['auc']:.3f}" in capsys.readouterr().out
    for text, said in (("id,mean radius\n1,2\n", "lacks the columns mean texture"), ("id\n", "has no patients")):
        (finished.folder / "wrong.csv").write_text(text)
        with pytest.raises(SystemExit) as ended:
            predict(monkeypatch, finished.folder, "wrong.csv")
        assert said in f"{ended.value} {capsys.readouterr().err}"


def test_keys_of_primihub_are_options(live_server: LiveServer, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"learning_rate": 0.3, "alpha": 0.001, "noise_multiplier": 3.0, "l2_norm_clip": 0.5}
    keys |= {"batch_size": 20, "max_iter": 5, "feature_names": ["mean radius", "mean texture"], "delta": 1e-4}
    keys |= {"secure_mode": True, "need_encrypt": "NO", "need_one_vs_rest": False, "category": 2}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    options = ["--config", str(tmp_path / "config.json"), "--max-iter", "6"]
    example(live_server, "federated_logistic_regression", tmp_path / "out", *options)
    found = json.loads((tmp_path / "out" / "train_indicator.json").read_text())
    assert {name: found["configuration"][name] for name in keys} == keys | {"max_iter": 6}
    assert [each["steps"] for each in found["privacy"]] == [6, 6, 6]
    with np.load(tmp_path / "out" / "model.npz") as model:
        assert (model["feature_names"].tolist(), model["weights"].shape) == (keys["feature_names"], (3,))
    with LedgerClient(live_server.url, live_server.key("admin")) as ledger:
        history = ledger.get_run_history(found["privacy"][0]["run"])
        assert history.points[0].events[0]["event"] == poisson_sampled(20 / 120, gaussian(3.0))
