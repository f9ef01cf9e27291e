"""A backup of a SQLite ledger is verified where it lies, and nothing is written there."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.ledger.errors import LedgerUnavailableError
from app.persistence.sqlite import read_only_uri
from tests.conftest import Ledger, open_ledger
from tests.service.cli_runner import Said, commands
from tests.soak import thinned

Verify = Callable[[Path], Said]

MOUNTED = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a ledger with three steps, all of them in it; its header says WAL."""
    folder = tmp_path_factory.mktemp("backup")
    with open_ledger(folder) as ledger:
        _spend(ledger)
    assert [path.name for path in folder.iterdir()] == ["ledger.db"]
    return folder / "ledger.db"


def _spend(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 3})


@pytest.fixture(params=["as any folder", "mounted read-only"])
def verify(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Verify:
    """Verify a file, in a folder that even root cannot write to, or in one like any other."""
    if request.param == "mounted read-only":
        return mounted
    return lambda file: commands(monkeypatch, capsys, f"sqlite:///{file}")("verify", "--read-only")


def mounted(file: Path) -> Said:
    before = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not mount anything")
    done = subprocess.run(
        [*before, "sh", "-c", MOUNTED, "sh", str(file.parent), sys.executable, "-m", "app", "verify", "--read-only"],
        env=os.environ | {"EPSILON_LEDGER_DATABASE_URL": f"sqlite:///{file}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("mode", thinned(["WAL", "DELETE"], 2))
def test_backup_is_verified_and_nothing_is_written(tmp_path: Path, backup: Path, verify: Verify, mode: str) -> None:
    file = tmp_path / "a copy of 50 % #1.db"
    shutil.copy(backup, file)
    with sqlite3.connect(file) as connection:
        assert connection.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode.lower(),)
    connection.close()
    before = _files(tmp_path)
    said = verify(file)
    assert (said.status, said.err) == (0, ""), said.err
    assert "charges for 3 steps" in said.out
    assert _files(tmp_path) == before


def test_last_commit_in_the_log_is_read_or_reported_missing(tmp_path: Path, backup: Path, verify: Verify) -> None:
    """Three further steps are in the log beside the file: as of a service that was killed, or is at work."""
    source, copied = tmp_path / "source", tmp_path / "copied"
    for folder in (source, copied):
        folder.mkdir()
    shutil.copy(backup, source / "ledger.db")
    with open_ledger(source) as ledger:
        (run,) = ledger.get("/v1/runs").json()["items"]
        assert ledger.post(f"/v1/runs/{run['id']}/steps", {"count": 3}).status_code == 200
        for path in source.iterdir():
            shutil.copy(path, copied)
        whole = verify(copied / "ledger.db")
        assert (whole.status, whole.err) == (0, ""), whole.err
        assert "charges for 6 steps" in whole.out
        (copied / "ledger.db-shm").unlink(missing_ok=True)
        answer = verify(copied / "ledger.db")
    if answer.status == 0:
        assert "charges for 6 steps" in answer.out  # SQLite could write beside it
    else:
        assert (answer.status, answer.out) == (2, "")
        assert "ledger.db-wal holds what was committed last" in answer.err
        assert answer.err.count("\n") == 1


def test_journal_that_was_never_rolled_back_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledger.db").touch()
    assert "immutable" not in read_only_uri(tmp_path / "ledger.db")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert read_only_uri(tmp_path / "ledger.db").endswith("ledger.db?mode=ro&immutable=1")
    (tmp_path / "ledger.db-journal").write_bytes(b"x")
    with pytest.raises(LedgerUnavailableError, match=r"ledger\.db-journal holds what was committed last"):
        read_only_uri(tmp_path / "ledger.db")
