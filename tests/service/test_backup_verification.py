"""`epsilon-ledger backup verify`: a backup is worth what a restore of it is, compared with the ledger."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from app.persistence.database import ALL_TENANTS, Database
from tests import postgres
from tests.conftest import Ledger, need_postgresql, open_ledger
from tests.persistence.dump import dump
from tests.postgres_binaries import binaries
from tests.service.cli_runner import Run, commands
from tests.service.full_ledger import fill, taken_up
from tests.service.tampering import TEAM, shift_curve, tampering


@pytest.fixture
def lived_in(tmp_path: Path) -> Iterator[Ledger]:
    """A service on a SQLite file with every kind of row."""
    with open_ledger(tmp_path) as opened:
        fill(opened)
        yield opened


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return commands(monkeypatch, capsys, f"sqlite:///{tmp_path / 'ledger.db'}")


def _copied(live: Path, backup: Path) -> Path:
    connection = sqlite3.connect(live, isolation_level=None)
    connection.execute("VACUUM INTO ?", (str(backup),))
    connection.close()
    return backup


def _step(ledger: Ledger, count: int = 1) -> None:
    event = {"type": "gaussian", "noise_multiplier": 90.0}
    later = ledger.run(name="later", event=event)
    assert ledger.post(f"/v1/runs/{later}/steps", {"count": count}, "trainer").status_code == 200


def _facts(out: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(out)
    return facts


def test_older_backup_is_the_beginning_of_the_ledger(lived_in: Ledger, tmp_path: Path, run: Run) -> None:
    backup = _copied(tmp_path / "ledger.db", tmp_path / "backup.db")
    _step(lived_in)
    before, kept = dump(lived_in.database), backup.read_bytes()
    said = run("backup", "verify", str(backup), "--metrics-file", str(tmp_path / "backup.prom"), "--json")
    facts = _facts(said.out)
    assert (said.status, facts["sound"], facts["discrepancies"], facts["decisions_since"]) == (0, True, [], 1)
    assert facts["rows"]["decisions"]["ledger"] == facts["rows"]["decisions"]["backup"] + 1
    assert (dump(lived_in.database), backup.read_bytes()) == (before, kept)
    metrics = (tmp_path / "backup.prom").read_text()
    assert "epsilon_ledger_backup_discrepancies 0.0" in metrics
    assert "epsilon_ledger_backup_missing_decisions 1.0" in metrics
    said = run("backup", "verify", str(backup))
    assert (said.status, said.err) == (0, "")
    assert "every curve and every chain agrees. The ledger has 1 more decisions." in said.out


def test_backup_of_another_history_is_found(
    lived_in: Ledger, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was restored from an older backup, and went on: its newer backups are of another history."""
    older = _copied(tmp_path / "ledger.db", tmp_path / "older.db")
    model = lived_in.run(name="forked", event={"type": "gaussian", "noise_multiplier": 90.0})
    forked = _copied(tmp_path / "ledger.db", tmp_path / "forked.db")
    assert lived_in.post(f"/v1/runs/{model}/steps", {"count": 1}, "trainer").status_code == 200
    newer = _copied(tmp_path / "ledger.db", tmp_path / "newer.db")
    (tmp_path / "other").mkdir()
    for restored, expected in ((older, "no such run"), (forked, "its first 1 decisions are others")):
        live = tmp_path / "other" / restored.name
        live.write_bytes(restored.read_bytes())
        with taken_up(f"sqlite:///{live}", lived_in.keys) as back:
            if restored is forked:
                assert back.post(f"/v1/runs/{model}/steps", {"count": 2}, "trainer").status_code == 200
            monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", f"sqlite:///{live}")
            said = run("backup", "verify", str(newer))
        assert said.status == 1
        assert expected in said.out


@pytest.mark.usefixtures("lived_in")
def test_damaged_backup_is_found(tmp_path: Path, run: Run) -> None:
    backup = _copied(tmp_path / "ledger.db", tmp_path / "backup.db")
    damaged = Database(f"sqlite:///{backup}")
    with tampering(damaged) as tx:
        shift_curve(tx, TEAM, 1)
    damaged.dispose()
    said = run("backup", "verify", str(backup), "--metrics-file", str(tmp_path / "backup.prom"))
    assert said.status == 1
    assert TEAM in said.out
    assert "epsilon_ledger_backup_discrepancies 0.0" not in (tmp_path / "backup.prom").read_text()


def test_file_that_is_no_backup_is_refused_in_a_sentence(lived_in: Ledger, tmp_path: Path, run: Run) -> None:
    _step(lived_in)
    text, dumped = tmp_path / "text", tmp_path / "ledger.dump"
    text.write_text("Dear diary\n")
    dumped.write_bytes(b"PGDMP and more")
    for backup, expected in (
        (tmp_path / "missing", "cannot be read"),
        (text, "neither a SQLite file nor a dump"),
        (dumped, "--scratch"),
    ):
        said = run("backup", "verify", str(backup))
        assert (said.status, said.out) == (2, "")
        assert expected in said.err
    said = run("backup", "verify", str(dumped), "--scratch", "sqlite:///scratch.db")
    assert (said.status, "PostgreSQL" in said.err) == (2, True)


def _tool(cluster: postgres.Cluster, name: str, *arguments: str) -> None:
    environment = os.environ | {"PGPASSWORD": cluster.password, "PGOPTIONS": "-c epsilon_ledger.all_tenants=on"}
    subprocess.run([binaries() / name, *arguments], env=environment, check=True, capture_output=True, timeout=120)


@pytest.mark.postgresql
def test_dump_is_restored_and_deleted_again(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    need_postgresql()
    cluster = postgres.shared()
    server = ["--host=127.0.0.1", f"--port={cluster.port}", f"--username={postgres.SERVICE}"]
    monkeypatch.setenv("PATH", f"{binaries()}{os.pathsep}{os.environ['PATH']}")
    with postgres.database() as url, open_ledger(tmp_path, url) as opened, postgres.database(postgres.EMPTY) as scratch:
        fill(opened)
        file = str(tmp_path / "ledger.dump")
        name = url.rpartition("/")[2]
        _tool(cluster, "pg_dump", *server, "--enable-row-security", "--format=custom", f"--file={file}", name)
        _step(opened)
        monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", url)
        for _ in range(2):  # the second restore needs an empty database, too
            said = run("backup", "verify", file, "--scratch", scratch, "--json")
            assert (said.status, _facts(said.out)["decisions_since"]) == (0, 1), said
        left = Database(scratch)
        with left.read(ALL_TENANTS) as tx:
            assert inspect(tx).get_table_names() == []
        left.dispose()
        before = dump(opened.database)
        said = run("backup", "verify", file, "--scratch", url)
        assert (said.status, "would be deleted" in said.err) == (2, True)
        assert dump(opened.database) == before
        said = run("backup", "verify", url)
        assert (said.status, "is the ledger itself" in said.err) == (2, True)
