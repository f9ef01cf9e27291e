"""The examples, against a real server."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from epsilon_ledger import LedgerClient, Limit
from tests.conftest import LiveServer
from tests.docs.markdown import ROOT


def test_killed_job_resumes_its_run_and_nothing_is_forgotten(live_server: LiveServer, tmp_path: Path) -> None:
    with LedgerClient(live_server.url, live_server.key("admin", "writers")) as ledger:
        limit = Limit(epsilon=1.2, delta=1e-4)
        ledger.create_population(
            "writers", privacy_unit="digit", neighboring_relation="add_or_remove_one", size=1400, limit=limit
        )
        ledger.create_budget("digits", parent="writers", limit=limit)
        checkpoint = tmp_path / "checkpoint.npz"
        with _start(live_server, checkpoint) as first:
            _await(first, checkpoint.exists)
            with np.load(checkpoint) as saved:
                run = ledger.get_run(str(saved["run_id"]))
            _await(first, lambda: ledger.get_run(run.id).next_step >= 40)
            first.send_signal(signal.SIGKILL)
        assert first.returncode == -signal.SIGKILL
        before = ledger.get_run(run.id)
        assert before.status == "active"

        answer = _finish(live_server, checkpoint)
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
        assert f"completed after {after.next_step} steps" in _finish(live_server, checkpoint)
        assert ledger.get_run(run.id).state == after.state


def _finish(server: LiveServer, checkpoint: Path) -> str:
    with _start(server, checkpoint) as process:
        answer, _ = process.communicate(timeout=120)
    assert process.returncode == 0, answer
    return answer


def _start(server: LiveServer, checkpoint: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, ROOT / "examples" / "resumable_trainer.py", "--budget", "writers/digits", checkpoint],
        env=os.environ | {"EPSILON_LEDGER_URL": server.url, "EPSILON_LEDGER_API_KEY": server.key("trainer", "writers")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _await(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
