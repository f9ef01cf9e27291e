"""What Weights & Biases keeps of a run of the ledger: a real wandb, offline, and a real server."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from epsilon_ledger import LedgerClient, Link, Run, gaussian, poisson_sampled
from epsilon_ledger.wandb import STATEMENT, EpsilonLogger
from tests.sdk.fake_runs import FakeRun, open_budget

STEP = poisson_sampled(0.125, gaussian(4.0))
PATIENCE_SECONDS = 60
HEADER_BYTES, BLOCK_BYTES = 7, 32_768
WHOLE, LAST = 1, 4
"""Kinds of chunks with which a record ends."""


@pytest.fixture(scope="module", autouse=True)
def _service() -> Iterator[None]:
    """End the process that wandb starts."""
    yield
    wandb.teardown()


@pytest.fixture
def tracked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[wandb.Run]:
    quiet = wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        root_dir=str(tmp_path),
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
    )
    with wandb.init(project="study", settings=quiet) as active:
        capfd.readouterr()
        yield active
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def run(admin: LedgerClient, trainer: LedgerClient) -> Run:
    return trainer.create_run("digits", budget=open_budget(admin, 2.0), event=STEP)


def records(tracked: wandb.Run) -> list[Record]:
    """Read what `wandb sync` would send, once wandb's own process has written all of it."""
    tracked.finish()
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        read = list(parsed(Path(tracked.settings.sync_file).read_bytes()))
        if read and read[-1].WhichOneof("record_type") == "exit":
            return read
        time.sleep(0.05)
    raise TimeoutError(f"wandb has not written {tracked.settings.sync_file} to its end.")


def parsed(kept: bytes) -> Iterator[Record]:
    """Parse chunks of a log in blocks, as LevelDB's."""
    place, record = HEADER_BYTES, b""
    while place + HEADER_BYTES <= len(kept):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER_BYTES:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", kept, place)
        record += kept[place + HEADER_BYTES : place + HEADER_BYTES + length]
        place += HEADER_BYTES + length
        if kind in {WHOLE, LAST}:
            yield Record.FromString(record)
            record = b""


def rows(tracked: wandb.Run) -> list[dict[str, Any]]:
    kept = [record.history.item for record in records(tracked) if record.WhichOneof("record_type") == "history"]
    return [
        {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for item in row
            if not "".join([item.key, *item.nested_key]).startswith("_")
        }
        for row in kept
    ]


def test_epsilon_is_logged_over_steps_and_statement_at_end(tracked: wandb.Run, run: Run, trainer: LedgerClient) -> None:
    spent = []
    with EpsilonLogger(run, client=trainer, url="http://ledger.test/") as logger, run:
        for _ in range(3):
            spent.append(run.authorize().epsilon)
            logger.log()
    assert tracked.config["epsilon_ledger"] == {
        "run": run.id,
        "name": "digits",
        "budget": run.state.budget_path,
        "population": run.state.population,
        "url": f"http://ledger.test/runs/{run.id}",
        "status": "completed",
        "refused": "false",
    }
    said = json.loads((Path(tracked.dir) / STATEMENT).read_text())
    assert said["claim"].startswith(f"Run {run.id} has spent epsilon {spent[-1]:.6g} at delta 1e-05")
    assert (said["status"], said["steps"], said["decisions"]) == ("completed", 3, 3)
    assert said["events"] == [{"event": STEP, "count": 3}]
    kept = rows(tracked)
    assert [(row["epsilon_ledger/step"], row["epsilon"]) for row in kept] == list(enumerate(spent, start=1))
    assert {row["epsilon_limit"] for row in kept} == {2.0}
    left = [row["steps_remaining"] for row in kept]
    assert left == [left[0], left[0] - 1, left[0] - 2]


@pytest.mark.parametrize("when", ["before", "after"])
def test_metrics_of_training_keep_their_steps_and_statement_is_sent(tracked: wandb.Run, run: Run, when: str) -> None:
    with EpsilonLogger(run) as logger, run:
        for step in range(3):
            if when == "before":
                tracked.log({"loss": step}, step=step)
            run.authorize()
            logger.log()
            if when == "after":
                tracked.log({"loss": step})
    kept = records(tracked)
    assert [(row["loss"], row["epsilon_ledger/step"]) for row in rows(tracked)] == [(0, 1), (1, 2), (2, 3)]
    metrics = {record.metric.name: record.metric.step_metric for record in kept if record.HasField("metric")}
    assert metrics["epsilon"] == metrics["epsilon_limit"] == metrics["steps_remaining"] == "epsilon_ledger/step"
    assert STATEMENT in {file.path for record in kept if record.HasField("files") for file in record.files.files}


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


def test_logger_without_wandb_run_says_how_to_start_one(fake_run: FakeRun) -> None:
    with pytest.raises(ValueError, match=r"Call `wandb\.init\(\)` first"), EpsilonLogger(fake_run.as_run):
        pass
    fake_run.asked.append(STEP)
    with pytest.raises(ValueError, match="works inside"):
        EpsilonLogger(fake_run.as_run).log()
