"""The example of a job that may be killed and started again, against a real server."""

import multiprocessing
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from epsilon_ledger import LedgerClient, Limit
from tests.conftest import LiveServer
from tests.examples.example_runner import module


def train(url: str, key: str, checkpoint: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPSILON_LEDGER_URL", url)
        patch.setenv("EPSILON_LEDGER_API_KEY", key)
        patch.setattr("sys.argv", ["resumable_trainer.py", "--budget", "writers/digits", str(checkpoint)])
        module("resumable_trainer").main()


def test_killed_job_resumes_its_run_and_nothing_is_forgotten(
    live_server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (live_server.url, live_server.key("trainer", "writers"), tmp_path / "checkpoint.npz")
    with LedgerClient(live_server.url, live_server.key("admin", "writers")) as ledger:
        limit = Limit(epsilon=0.8, delta=1e-4)
        ledger.create_population(
            "writers", privacy_unit="digit", neighboring_relation="add_or_remove_one", size=1400, limit=limit
        )
        ledger.create_budget("digits", parent="writers", limit=limit)
        first = multiprocessing.get_context("fork").Process(target=train, args=given, daemon=True)
        first.start()

        def wait(holds: Callable[[], bool]) -> None:
            until = time.monotonic() + 60
            while not holds():
                assert first.is_alive()
                assert time.monotonic() < until
                time.sleep(0.02)

        wait(given[2].exists)
        with np.load(given[2]) as saved:
            run = ledger.get_run(str(saved["run_id"]))
        wait(lambda: ledger.get_run(run.id).next_step >= 10)
        first.kill()
        first.join()
        assert first.exitcode == -signal.SIGKILL
        before = ledger.get_run(run.id)
        assert before.status == "active"

        train(*given)
        answer = capsys.readouterr().out
        taken_up = re.match(rf"{run.id} is active, at step (\d+)\n", answer)
        assert taken_up, answer
        # The ledger may have answered one more step after the job was dead.
        assert before.next_step <= int(taken_up[1]) <= before.next_step + 1
        after = ledger.get_run(run.id)
        assert after.status == "completed"
        assert before.next_step < after.next_step
        assert before.epsilon < after.epsilon <= limit.epsilon
        history = ledger.get_run_history(run.id, max_points=2000)
        assert [point.decision for point in history.points] == ["admitted"] * after.next_step + ["refused"]
        assert [point.first_step for point in history.points] == list(range(after.next_step + 1))
        assert f"completed after {after.next_step} steps" in answer
        assert float(answer.split(" steps; ")[1].split("%")[0]) > 50

        # Nothing is left to do, and nothing is charged for finding that out.
        train(*given)
        assert f"completed after {after.next_step} steps" in capsys.readouterr().out
        assert ledger.get_run(run.id).state == after.state
