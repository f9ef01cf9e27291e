"""`epsilon-ledger demo` as a person runs it, and what it does when something is wrong."""

import io
import json
import re
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import typer
from rich.console import Console

from app.commands import demo
from app.demo import DemoError, scenario, server_process
from app.demo.report import Screen, gather
from app.demo.server_process import DemoFolder, run_command, running_service
from app.demo.training import TrainingResult, load_patients
from epsilon_ledger import BudgetExceededError, RunHistory, RunHistoryPoint, RunState, StepAuthorization
from tests.docs.markdown import ROOT, fences
from tests.fork_server import service_server


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo's processes start without the seconds of their imports."""
    program = service_server().write_environment(tmp_path / "environment") / "epsilon-ledger"
    monkeypatch.setattr(server_process, "_command", lambda *arguments: [str(program), *arguments])


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("epsilon", [0.8, pytest.param(2.0, marks=pytest.mark.soak)])
def test_demo_stops_a_training_at_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], epsilon: float
) -> None:
    (folder := tmp_path / "demo").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(scenario, "EPSILON", epsilon)
    assert scenario.run_demo(as_json=True) == 0
    output, answer = capsys.readouterr()
    facts = json.loads(output)
    assert 200 * epsilon**2 < facts["steps_admitted"] == facts["steps_released"] < 500 * epsilon**2
    assert (facts["refusals"], facts["run_status"], facts["max_steps_that_fit"]) == (1, "completed", 0)
    assert 0.95 * epsilon < facts["epsilon"] <= epsilon
    assert 0.99 < facts["used"] <= 1
    assert facts["refused_by"] == "breast-cancer-patients/tumour-model"
    assert (facts["noise_for_the_rest"], facts["exhausted"]) == (None, True), "noise uses up as many steps of the plan"
    assert facts["steps_by_plan"] > 0.1 * facts["steps_admitted"]
    assert f"{facts['steps_by_plan']} more than the" in answer
    assert 0.88 <= facts["accuracy"] <= 1.0
    assert 0.95 <= facts["accuracy_without_privacy"] <= 1.0
    assert f"{facts['steps_admitted']}" in answer
    assert re.search(r"\d+ steps released, epsilon 0\.\d+, \d+\.\d% used", answer)
    assert "was refused: breast-cancer-patients" in answer
    [promised] = [each.text for each in fences((ROOT / "README.md").read_text()) if each.language == "text"]

    def shortened(text: str) -> str:
        text = re.sub(r"\brun_\w+", "run_…", text)
        return " ".join((text if epsilon == 2.0 else re.sub(r"[\d.,]+", "…", text)).split())

    assert [line for line in promised.splitlines() if shortened(line) not in shortened(answer)] == []
    # What it left behind can be proven again.
    (left,) = folder.iterdir()
    assert facts["database_url"].startswith(f"sqlite:///{left}")
    found, steps = run_command(DemoFolder(left), "verify"), facts["steps_admitted"]
    assert found == facts["verification"]
    assert (found["sound"], found["steps"], found["charges"]) == (True, steps, steps)
    assert f"All files are in {left}" in answer
    assert sum(path.stat().st_size for path in left.iterdir()) < 10_000_000


@pytest.mark.usefixtures("forked")
def test_terminated_demo_stops_its_service(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, running_service(DemoFolder(tmp_path)) as url:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0
    with pytest.raises(DemoError, match="keys create --org nobody --role admin` exited with"):
        run_command(DemoFolder(tmp_path), "keys", "create", "--org", "nobody", "--role", "admin")


def test_service_that_never_gets_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_READY_WITHIN", 0.3)
    monkeypatch.setattr(server_process, "_STOPPED_WITHIN", 0.5)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr(server_process, "_command", lambda *_: [sys.executable, "-IS", "-c", stubborn])
    began = time.monotonic()
    with pytest.raises(DemoError, match=r"not ready after 0 s(.|\n)*\(empty\)"), running_service(DemoFolder(tmp_path)):
        pytest.fail("a service that does not answer is not ready")
    assert time.monotonic() - began < 20


def test_missing_package_is_named_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "sklearn" else name)
    with pytest.raises(typer.Exit) as ended:
        demo.watch_training()
    assert ended.value.exit_code == 1
    said = capsys.readouterr().out
    assert "needs scikit-learn." in said
    assert "pip install 'epsilon-ledger[demo]'" in said


def test_failed_demo_names_the_cause_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    says = "print('no such table'); raise SystemExit(3)"
    monkeypatch.setattr(server_process, "_command", lambda *_: [sys.executable, "-IS", "-c", says])
    assert scenario.run_demo(keep=False) == 1
    said = capsys.readouterr().out
    assert "The demo failed: The service exited with 3" in said
    assert "no such table" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("state", "decisions", "last", "verification", "complaint"),
    [
        ({"next_step": 9}, 10, "refused", {}, "exactly the steps that were released"),
        ({}, 10, "refused", {}, "refused exactly one"),
        ({}, 11, "admitted", {}, "refused exactly one"),
        ({"used": 1.01}, 11, "refused", {}, "within the limit"),
        ({"status": "active"}, 11, "refused", {}, "the run is completed"),
        ({}, 11, "refused", {"sound": False}, "are sound"),
        ({}, 11, "refused", {"steps": 9}, "cover those steps"),
        ({"next_step": 8}, 9, "refused", {}, "the plan admitted more than a budget without one"),
    ],
)
def test_broken_promise_fails_the_demo(
    state: dict[str, object], decisions: int, last: str, verification: dict[str, object], complaint: str
) -> None:
    honest = SimpleNamespace(id="run_1", status="completed", next_step=10, epsilon=1.9, delta=1e-4, used=0.99)
    vars(honest).update(state)
    refusal = SimpleNamespace(binding_account_path="a/b", max_steps_that_fit=0, more_noise=None, exhausted=True)
    point = cast("RunHistoryPoint", SimpleNamespace(decision=last))
    with pytest.raises(DemoError, match=complaint):
        gather(
            state=cast("RunState", honest),
            history=RunHistory(run="run_1", points=(point,), decisions=decisions, next_cursor=None),
            trained=TrainingResult(np.zeros(31), 10, cast("BudgetExceededError", refusal)),
            without_plan=8,
            patients=load_patients(),
            verification={"sound": True, "steps": 10} | verification,
            database_url="sqlite:///x",
            seconds=1.0,
        )


def test_terminal_gets_a_progress_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, record=True)
    with Screen(console).training(10) as watch:
        watch(cast("StepAuthorization", SimpleNamespace(next_step=7, epsilon=0.5, used=0.25)))
    shown = console.export_text()
    assert "7/10" in shown
    assert "epsilon 0.5000, 25.0% used" in shown
