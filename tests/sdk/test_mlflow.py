"""What MLflow keeps of a run of the ledger: a real MLflow, with files that take no migrations, and the real service."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import Run as MlflowRun

from epsilon_ledger import (
    BudgetExceededError,
    ConfigurationError,
    LedgerClient,
    LedgerUnavailableError,
    Link,
    Run,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger.mlflow import STATEMENT, EpsilonLogger
from tests.sdk.fake_ledger import FakeRun, open_budget
from tests.sdk.wire import Fault

STEP = poisson_sampled(0.125, gaussian(4.0))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri((folder / "runs").as_uri())
        yield folder / "artifacts"
        mlflow.set_tracking_uri(None)


@pytest.fixture
def tracked(store: Path, tmp_path: Path) -> Iterator[MlflowRun]:
    experiment = mlflow.create_experiment(tmp_path.name, artifact_location=(store / tmp_path.name).as_uri())
    with mlflow.start_run(experiment_id=experiment) as active:
        yield active


@pytest.fixture
def run(admin: LedgerClient, trainer: LedgerClient) -> Run:
    return trainer.create_run("digits", budget=open_budget(admin, 2.0), event=STEP)


def history(tracked: MlflowRun, metric: str) -> list[tuple[int, float]]:
    points = mlflow.MlflowClient().get_metric_history(tracked.info.run_id, metric)
    return [(point.step, point.value) for point in points]


def statement(store: Path, tracked: MlflowRun) -> dict[str, Any]:
    (path,) = (store).glob(f"*/{tracked.info.run_id}/artifacts/{STATEMENT}")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def tags(tracked: MlflowRun) -> dict[str, str]:
    found = mlflow.get_run(tracked.info.run_id).data.tags
    return {name: value for name, value in found.items() if name.startswith("epsilon_ledger.")}


def test_epsilon_is_logged_over_steps_and_statement_at_end(
    store: Path, tracked: MlflowRun, run: Run, trainer: LedgerClient
) -> None:
    spent, used = [], []
    with EpsilonLogger(run, client=trainer, url="http://ledger.test/") as logger, run:
        for _ in range(3):
            step = run.authorize()
            spent.append(step.epsilon)
            used.append(step.used)
            logger.log()
    assert history(tracked, "epsilon") == list(enumerate(spent, start=1))
    assert history(tracked, "used") == list(enumerate(used, start=1))
    assert 0 < used[0] < used[1] < used[2] < 1
    remaining = [left for _, left in history(tracked, "steps_remaining")]
    assert remaining == [remaining[0], remaining[0] - 1, remaining[0] - 2]
    named = {"run": run.id, "name": "digits", "budget": run.state.budget_path, "population": run.state.population}
    named |= {"url": f"http://ledger.test/runs/{run.id}", "status": "completed", "refused": "false"}
    assert tags(tracked) == {f"epsilon_ledger.{name}": value for name, value in named.items()}
    said = statement(store, tracked)
    assert said["claim"].startswith(f"What run {run.id} was charged has epsilon {said['epsilon']:.6g} at delta 1e-05")
    assert f"the limit of {run.state.budget_path} bounds what is added" in said["claim"]
    assert said["epsilon"] <= spent[-1] <= 1.005 * said["epsilon"]
    told = {"run": run.id, "budget": run.state.budget_path, "status": "completed", "privacy_unit": "record", "steps": 3}
    told |= {"neighboring_relation": "add_or_remove_one", "used": used[-1], "delta": 1e-5, "limit": None}
    told |= {"plan": None, "event": STEP, "decisions": 3, "events": [{"event": STEP, "count": 3}], "warnings": []}
    told["refusal"] = None
    assert {name: said[name] for name in told} == told


def test_refusal_is_part_of_statement_and_steps_between_are_left_out(store: Path, tracked: MlflowRun, run: Run) -> None:
    with EpsilonLogger(run, every=4) as logger, run:
        for _ in range(10):
            run.authorize()
            logger.log()
        with suppress(BudgetExceededError):  # as an adapter catches it
            run.authorize(event=gaussian(0.1))
    assert [step for step, _ in history(tracked, "epsilon")] == [1, 4, 8, 10]
    said = statement(store, tracked)  # without a client
    assert (said["decisions"], said["events"], said["warnings"], said["ledger"]) == (None, None, None, None)
    assert (said["steps"], said["status"], tags(tracked)["epsilon_ledger.refused"]) == (10, "completed", "true")
    assert said["refusal"]["said"].startswith(f"Step 10 of {run.id} was refused")
    assert said["refusal"]["used_requested"] > 1.0


@pytest.mark.usefixtures("tracked")
def test_lost_statement_does_not_hide_what_training_raised(fake_run: FakeRun) -> None:
    fake_run.ledger.fails(*[Fault.LOST] * 2)
    with pytest.raises(ZeroDivisionError) as caught, EpsilonLogger(fake_run):
        raise ZeroDivisionError
    [note] = caught.value.__notes__
    assert note.startswith("The statement of run_1 could not be logged: ")
    assert "no answer" in note
    with pytest.raises(LedgerUnavailableError), EpsilonLogger(fake_run):
        pass


def test_wrong_calls_are_told_what_would_be_right(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_run
    with pytest.raises(ValueError, match=r"Enter `with mlflow\.start_run\(\):` first"), EpsilonLogger(run):
        pass
    with pytest.raises(ValueError, match="at least 1, not 0"):
        EpsilonLogger(run, every=0)
    with pytest.raises(ConfigurationError, match="must not hold a user name or password"):
        EpsilonLogger(run, url="https://me:secret@ledger.test")
    fake_run.authorize(event=STEP)
    with pytest.raises(ValueError, match="works inside"):
        EpsilonLogger(run).log()
    monkeypatch.setenv("EPSILON_LEDGER_URL", "nowhere")
    with pytest.raises(ConfigurationError, match="must look like"):
        EpsilonLogger(run)


def test_both_runs_name_each_other(
    tracked: MlflowRun, admin: LedgerClient, trainer: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = open_budget(admin, 2.0)
    before = trainer.create_run("before", budget=budget, event=STEP, collect_metadata=False)
    within = trainer.create_run("within", budget=budget, event=STEP)
    assert within.state.labels["mlflow-run"] == tracked.info.run_id
    assert within.state.links == ()  # a file of this machine leads nobody anywhere
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "https://mlflow.example.org")
    own = Link("Study", "https://study.example.org")
    before = trainer.get_run(trainer.update_run(before.id, links=[own]).id)
    for run in (before, within):
        with EpsilonLogger(run, client=trainer, url="http://ledger.test"):
            assert tags(tracked)["epsilon_ledger.url"] == f"http://ledger.test/runs/{run.id}"
    url = f"https://mlflow.example.org/#/experiments/{tracked.info.experiment_id}/runs/{tracked.info.run_id}"
    after = trainer.get_run(before.id).state
    assert after.labels == {"mlflow-run": tracked.info.run_id}
    assert [link.url for link in after.links] == [own.url, url]
    assert trainer.get_run(within.id).state.links == ()
    linked = trainer.create_run("linked", budget=budget, event=STEP)
    assert [link.url for link in linked.state.links] == [url]
