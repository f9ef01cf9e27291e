"""What Weights & Biases keeps of a run of the ledger: a real wandb, offline, and a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from epsilon_ledger import LedgerClient, Link, Run, gaussian, poisson_sampled
from epsilon_ledger.wandb import STATEMENT, EpsilonLogger
from tests.sdk.fake_ledger import open_budget

STEP = poisson_sampled(0.125, gaussian(4.0))


@pytest.fixture(scope="module", autouse=True)
def _service() -> Iterator[None]:
    """End the process that wandb starts."""
    yield
    wandb.teardown()


@pytest.fixture
def tracked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[wandb.Run]:
    given: dict[str, Any] = {"mode": "offline", "silent": True, "console": "off", "root_dir": str(tmp_path)}
    given |= dict.fromkeys(("x_disable_stats", "x_disable_meta", "x_disable_machine_info"), True)
    quiet = wandb.Settings(**given)
    with wandb.init(project="study", settings=quiet) as active:
        capfd.readouterr()
        yield active
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def run(admin: LedgerClient, trainer: LedgerClient) -> Run:
    return trainer.create_run("digits", budget=open_budget(admin, 2.0), event=STEP)


@pytest.fixture
def logged(tracked: wandb.Run, monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What is logged, with what it is logged by."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    log = tracked.log

    def noted(values: dict[str, Any], **how: Any) -> None:  # noqa: ANN401 - of wandb
        found.append((dict(values), how))
        log(values, **how)

    monkeypatch.setattr(tracked, "log", noted)
    return found


def test_epsilon_is_logged_over_steps_and_statement_at_end(
    tracked: wandb.Run, logged: list[tuple[dict[str, Any], dict[str, Any]]], run: Run, trainer: LedgerClient
) -> None:
    spent, used = [], []
    with EpsilonLogger(run, client=trainer, url="http://ledger.test/") as logger, run:
        for step in range(3):
            tracked.log({"loss": step}, step=step)
            authorized = run.authorize()
            spent.append(authorized.epsilon)
            used.append(authorized.used)
            logger.log()
    named = {"run": run.id, "name": "digits", "budget": run.state.budget_path, "population": run.state.population}
    url = f"http://ledger.test/runs/{run.id}"
    assert tracked.config["epsilon_ledger"] == named | {"url": url, "status": "completed", "refused": "false"}
    said = json.loads((Path(tracked.dir) / STATEMENT).read_text())
    assert said["claim"].startswith(f"What run {run.id} was charged has epsilon {said['epsilon']:.6g} at delta 1e-05")
    assert (said["status"], said["steps"], said["decisions"]) == ("completed", 3, 3)
    assert said["events"] == [{"event": STEP, "count": 3}]
    # Beside the training's own metrics, whose steps it leaves alone.
    kept = [values for values, how in logged if "epsilon" in values and not how.get("step")]
    assert [(row["epsilon_ledger/step"], row["epsilon"]) for row in kept] == list(enumerate(spent, start=1))
    assert [row["used"] for row in kept] == used
    left = [row["steps_remaining"] for row in kept]
    assert left == [left[0], left[0] - 1, left[0] - 2]


def test_each_step_has_row_of_its_own_without_metrics_of_training(tracked: wandb.Run, run: Run) -> None:
    rows = []
    with EpsilonLogger(run) as logger, run:
        for _ in range(3):
            run.authorize()
            logger.log()
            rows.append(tracked.step)
    assert rows == [0, 1, 2]


def test_both_runs_name_each_other(
    tracked: wandb.Run, admin: LedgerClient, trainer: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = open_budget(admin, 2.0)
    before = trainer.create_run("before", budget=budget, event=STEP, collect_metadata=False)
    within = trainer.create_run("within", budget=budget, event=STEP)
    assert within.state.labels["wandb-run"] == tracked.id
    assert within.state.links == ()  # offline it has no page
    url = "https://wandb.example.org/team/study/runs/1"
    monkeypatch.setattr(type(tracked), "url", url)
    monkeypatch.setattr(type(tracked), "offline", False)
    with EpsilonLogger(before, client=trainer):
        assert tracked.config["epsilon_ledger"]["run"] == before.id
    after = trainer.get_run(before.id).state
    assert after.labels == {"wandb-run": tracked.id}
    assert after.links == (Link(f"W&B run {tracked.name or tracked.id}", url),)


def test_logger_without_wandb_run_says_how_to_start_one(run: Run) -> None:
    with pytest.raises(ValueError, match=r"Call `wandb\.init\(\)` first"), EpsilonLogger(run):
        pass
    run.authorize(event=STEP)
    with pytest.raises(ValueError, match="works inside"):
        EpsilonLogger(run).log()
