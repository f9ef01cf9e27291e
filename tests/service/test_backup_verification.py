"""`epsilon-ledger backup verify`, and `verify --read-only` of a backup where it lies."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from app.commands.backup import _opened
from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.sqlite import read_only_uri
from app.service.backups import compare_backup
from app.service.verification.verify import verify
from tests import postgres
from tests.api.trainer import Trainer, hired
from tests.conftest import Ledger, need_postgresql, open_ledger
from tests.persistence.dump import dump
from tests.postgres_binaries import binaries
from tests.service.cli_runner import Run, Said, commands
from tests.service.full_ledger import fill
from tests.service.tampering import TEAM, shift_curve, tampering

EVENT = {"type": "gaussian", "noise_multiplier": 90.0}
FURNISHED = {"ledger": fill}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str) -> Run:
    return commands(monkeypatch, capsys, database_url)


def _copied(live: Path, backup: Path) -> Path:
    with closing(sqlite3.connect(live, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(backup),))
    return backup


def _step(ledger: Ledger) -> None:
    assert Trainer(ledger, ledger.run(name="later", event=EVENT)).steps().status_code == 200


def test_older_backup_begins_as_the_ledger_and_a_damaged_one_is_found(ledger: Ledger, tmp_path: Path, run: Run) -> None:
    backup, prometheus = _copied(tmp_path / "ledger.db", tmp_path / "backup.db"), tmp_path / "backup.prom"
    _step(ledger)
    before, kept = dump(ledger.database), backup.read_bytes()
    said = run("backup", "verify", str(backup), "--metrics-file", str(prometheus), "--json")
    facts: dict[str, Any] = json.loads(said.out)
    assert (said.status, facts["sound"], facts["discrepancies"], facts["decisions_since"]) == (0, True, [], 1)
    assert facts["rows"]["decisions"]["ledger"] == facts["rows"]["decisions"]["backup"] + 1
    assert (dump(ledger.database), backup.read_bytes()) == (before, kept)
    for line in ("discrepancies 0.0", "missing_decisions 1.0"):
        assert f"epsilon_ledger_backup_{line}" in prometheus.read_text()
    said = run("backup", "verify", str(backup))
    assert (said.status, said.err) == (0, "")
    assert "every curve and every chain agrees. The ledger has 1 more decisions." in said.out
    damaged = Database(f"sqlite:///{backup}")
    with tampering(damaged) as tx:
        shift_curve(tx, TEAM, 1)
    damaged.dispose()
    said = run("backup", "verify", str(backup), "--metrics-file", str(prometheus))
    assert (said.status, TEAM in said.out) == (1, True)
    assert "epsilon_ledger_backup_discrepancies 0.0" not in prometheus.read_text()


def test_backup_of_another_past_is_found(
    ledger: Ledger, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was restored from an older backup, and went on: its newer backups are of another history."""
    older = _copied(tmp_path / "ledger.db", tmp_path / "older.db")
    model = ledger.run(name="forked", event=EVENT)
    forked = _copied(tmp_path / "ledger.db", tmp_path / "forked.db")
    assert ledger.post(f"/v1/runs/{model}/steps", {"count": 1}, "trainer").status_code == 200
    newer = _copied(tmp_path / "ledger.db", tmp_path / "newer.db")
    for restored, expected in ((older, "no such run"), (forked, "its first 1 decisions are others")):
        with open_ledger(tmp_path, f"sqlite:///{restored}") as back:
            if restored is forked:
                assert back.post(f"/v1/runs/{model}/steps", {"count": 2}, "trainer").status_code == 200
            monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", f"sqlite:///{restored}")
            said = run("backup", "verify", str(newer))
        assert (said.status, expected in said.out) == (1, True)


def test_file_that_is_no_backup_is_refused_in_a_sentence(ledger: Ledger, tmp_path: Path, run: Run) -> None:
    assert ledger.get("/healthz").status_code == 200
    text, dumped = tmp_path / "text", tmp_path / "ledger.dump"
    text.write_text("Dear diary\n")
    dumped.write_bytes(b"PGDMP and more")
    for backup, more, expected in (
        (tmp_path / "missing", (), "cannot be read"),
        (text, (), "neither a SQLite file nor a dump"),
        (dumped, (), "--scratch"),
        (dumped, ("--scratch", "sqlite:///scratch.db"), "PostgreSQL"),
    ):
        said = run("backup", "verify", str(backup), *more)
        assert (said.status, said.out, expected in said.err) == (2, "", True)


def _tool(cluster: postgres.Cluster, name: str, *arguments: str) -> None:
    environment = os.environ | {"PGPASSWORD": cluster.password, "PGOPTIONS": "-c epsilon_ledger.all_tenants=on"}
    subprocess.run([binaries() / name, *arguments], env=environment, check=True, capture_output=True, timeout=120)


@pytest.mark.postgresql
def test_dump_is_restored_and_deleted_again(
    ledger: Ledger, database_url: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_postgresql()
    cluster, file = postgres.shared(), str(tmp_path / "ledger.dump")
    server = ["--host=127.0.0.1", f"--port={cluster.port}", f"--username={postgres.SERVICE}"]
    monkeypatch.setenv("PATH", f"{binaries()}{os.pathsep}{os.environ['PATH']}")
    name = database_url.rpartition("/")[2]
    _tool(cluster, "pg_dump", *server, "--enable-row-security", "--format=custom", f"--file={file}", name)
    _step(ledger)
    with postgres.database(postgres.EMPTY) as scratch:
        for _ in range(2):  # the second restore needs an empty database, too
            said = run("backup", "verify", file, "--scratch", scratch, "--json")
            assert (said.status, json.loads(said.out)["decisions_since"]) == (0, 1), said
        left = Database(scratch)
        with left.read(ALL_TENANTS) as tx:
            assert inspect(tx).get_table_names() == []
        left.dispose()
    before = dump(ledger.database)
    said = run("backup", "verify", file, "--scratch", database_url)
    assert (said.status, "would be deleted" in said.err) == (2, True)
    assert dump(ledger.database) == before
    said = run("backup", "verify", database_url)
    assert (said.status, "is the ledger itself" in said.err) == (2, True)


def test_last_commit_in_the_log_is_read_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three further steps are in the log beside the file: as of a service that was killed, or is at work."""

    def verify(file: Path) -> Said:
        return commands(monkeypatch, capsys, f"sqlite:///{file}")("verify", "--read-only")

    source, copied, alone = (tmp_path / name for name in ("source", "copied", "a copy of 50 % #1"))
    for folder in (source, copied, alone):
        folder.mkdir()
    with open_ledger(source) as ledger:
        assert hired(ledger).steps().status_code == 200
    shutil.copy(source / "ledger.db", alone / "ledger.db")
    before = (alone / "ledger.db").read_bytes()
    said = verify(alone / "ledger.db")
    assert (said.status, said.err, "charges for 1 steps" in said.out) == (0, "", True)
    assert {path.name: path.read_bytes() for path in alone.iterdir()} == {"ledger.db": before}
    with open_ledger(source) as ledger:
        (run,) = ledger.get("/v1/runs").json()["items"]
        assert ledger.post(f"/v1/runs/{run['id']}/steps", {"count": 3}).status_code == 200
        for path in source.iterdir():
            shutil.copy(path, copied)
        whole = verify(copied / "ledger.db")
        assert (whole.status, whole.err, "charges for 4 steps" in whole.out) == (0, "", True)
        (copied / "ledger.db-shm").unlink(missing_ok=True)  # SQLite writes it again
        assert "charges for 4 steps" in verify(copied / "ledger.db").out


def test_journal_that_was_never_rolled_back_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledger.db").touch()
    assert "immutable" not in read_only_uri(tmp_path / "ledger.db")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert read_only_uri(tmp_path / "ledger.db").endswith("ledger.db?mode=ro&immutable=1")
    for kind in ("journal", "wal"):
        (tmp_path / f"ledger.db-{kind}").write_bytes(b"x")
        with pytest.raises(LedgerUnavailableError, match=rf"ledger\.db-{kind} holds what was committed last"):
            read_only_uri(tmp_path / "ledger.db")
        (tmp_path / f"ledger.db-{kind}").unlink()
    for kind in ("wal", "shm"):
        (tmp_path / f"ledger.db-{kind}").write_bytes(b"x")
    assert read_only_uri(tmp_path / "ledger.db").endswith("ledger.db?mode=ro")


def _is_sound(file: Path) -> bool:
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return False


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))])
def test_flipped_bits_of_a_backup_are_discrepancies(ledger: Ledger, tmp_path: Path, seed: int) -> None:
    """Also where no row that is read shows them, such as in an index, and wherever reading breaks off."""
    whole, rng = _copied(tmp_path / "ledger.db", tmp_path / "whole.db").read_bytes(), random.Random(seed)  # noqa: S311
    found = 0
    for number in range(12):
        broken, file = bytearray(whole), tmp_path / f"broken{number}.db"
        for _ in range(rng.choice([1, 1, 40])):
            broken[rng.randrange(100, len(broken))] ^= 1 << rng.randrange(8)
        file.write_bytes(broken)
        with _opened(f"sqlite:///{file}", "BACKUP") as backup:
            try:
                problems = compare_backup(backup, ledger.database).problems
                assert bool(verify(backup).problems) >= (not _is_sound(file))
            except (NotFoundError, InvalidInputError):
                problems = ("it is no ledger",)
        assert problems or _is_sound(file)
        found += bool(problems)
    assert found
