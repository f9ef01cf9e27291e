"""Tests run in forks: each outcome is reported as if there were none."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ONE = """
import pytest

def test_passes(tmp_path): assert tmp_path.is_dir()

@pytest.mark.parametrize("number", [1, 2])
def test_fails(number):
    print("said before")
    assert number == 1

@pytest.mark.skip("a reason")
def test_is_skipped(): ...

@pytest.fixture
def broken():
    yield
    raise RuntimeError("too late")

def test_whose_fixture_fails(broken): ...
"""
ANOTHER = """
import os

def test_waits(): ...

def test_ends_its_process(): os._exit(3)
"""


def _run(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.forks", "--forks", "2", "-rA"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_each_outcome_is_reported_once(tmp_path: Path) -> None:
    done = _run(tmp_path, one=ONE, other=ONE)
    assert "2 failed, 6 passed, 2 skipped, 2 errors" in done.stdout, done.stdout
    assert done.stdout.count("FAILED test_one.py::test_fails[2] - assert 2 == 1") == 1
    assert done.stdout.count("\nsaid before\n") == 4
    assert done.stdout.count("RuntimeError: too late") >= 2
    assert done.returncode == 1


def test_a_process_that_ends_before_its_time_is_named_with_its_test(tmp_path: Path) -> None:
    done = _run(tmp_path, one=ONE, another=ANOTHER)
    assert "a fork ended with 3 at test_another.py::test_ends_its_process" in done.stdout, done.stdout
    assert "PASSED test_another.py::test_waits" in done.stdout
    assert done.returncode == 2
