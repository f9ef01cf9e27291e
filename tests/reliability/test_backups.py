"""What docs/operations/maintenance.md says about backups: each of them restores a ledger that verifies and goes on."""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.accounts import list_all
from app.persistence.schema import upgrade
from app.service.backups import compare_backup
from app.service.verification import verify
from tests import postgres
from tests.api.trainer import QUIET
from tests.conftest import Ledger, need_postgresql, open_ledger
from tests.persistence.dump import dump
from tests.postgres_binaries import binaries
from tests.service.full_ledger import fill, taken_up

Backup = Callable[[Path, Path], None]


def _by_the_shell(live: Path, backup: Path) -> None:
    with sqlite3.connect(live) as source, sqlite3.connect(backup) as target:
        source.backup(target)  # what `.backup` of the sqlite3 shell calls
    source.close()
    target.close()


def _by_vacuum(live: Path, backup: Path) -> None:
    connection = sqlite3.connect(live, isolation_level=None)
    connection.execute("VACUUM INTO ?", (str(backup),))
    connection.close()


@pytest.fixture
def lived_in(tmp_path: Path) -> Iterator[Ledger]:
    """A service on a SQLite file with every kind of row, which was not stopped."""
    with open_ledger(tmp_path) as opened:
        fill(opened)
        yield opened


def _goes_on(url: str, keys: dict[tuple[str, str], str]) -> None:
    """A restored ledger is sound, and takes a step of its own."""
    with taken_up(url, keys) as restored:
        assert verify(restored.database).problems == ()
        assert restored.get("/readyz").status_code == 200
        run = restored.run(name="after the restore", event={"type": "gaussian", "noise_multiplier": 90.0})
        assert restored.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        assert verify(restored.database).problems == ()


@pytest.mark.parametrize("backup", [_by_the_shell, _by_vacuum])
def test_a_file_is_backed_up_while_it_is_served(lived_in: Ledger, tmp_path: Path, backup: Backup) -> None:
    before = dump(lived_in.database)
    restored = tmp_path / "restored.db"
    backup(tmp_path / "ledger.db", restored)
    assert lived_in.get("/readyz").status_code == 200
    database = Database(f"sqlite:///{restored}")
    assert dump(database) == before
    database.dispose()
    _goes_on(f"sqlite:///{restored}", lived_in.keys)


def test_a_file_is_copied_when_the_service_is_stopped(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as opened:
        fill(opened)
        before = dump(opened.database)
        keys = opened.keys
    assert not (tmp_path / "ledger.db-wal").exists()  # the last connection puts the log into the file
    restored = tmp_path / "restored.db"
    restored.write_bytes((tmp_path / "ledger.db").read_bytes())
    database = Database(f"sqlite:///{restored}")
    assert dump(database) == before
    database.dispose()
    _goes_on(f"sqlite:///{restored}", keys)


def test_a_live_file_without_its_log_is_no_backup(lived_in: Ledger, tmp_path: Path) -> None:
    copied = tmp_path / "copied.db"
    copied.write_bytes((tmp_path / "ledger.db").read_bytes())
    with sqlite3.connect(copied) as half:
        tables = half.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        rows = half.execute("SELECT count(*) FROM decisions").fetchone()[0] if tables else 0
    half.close()
    assert rows < len(dump(lived_in.database)["decisions"])


DUMPED = ("--enable-row-security", "--format=custom")


def _tool(cluster: postgres.Cluster, name: str, *arguments: str) -> None:
    environment = os.environ | {"PGPASSWORD": cluster.password, "PGOPTIONS": "-c epsilon_ledger.all_tenants=on"}
    subprocess.run([binaries() / name, *arguments], env=environment, check=True, capture_output=True, timeout=120)


@pytest.mark.postgresql
def test_a_database_is_dumped_and_restored_while_it_is_served(tmp_path: Path) -> None:
    need_postgresql()
    cluster = postgres.shared()
    server = ["--host=127.0.0.1", f"--port={cluster.port}", f"--username={postgres.SERVICE}"]
    with postgres.database() as url, open_ledger(tmp_path, url) as opened:
        fill(opened)
        before = dump(opened.database)
        file = tmp_path / "ledger.dump"
        _tool(cluster, "pg_dump", *server, *DUMPED, f"--file={file}", url.rpartition("/")[2])
        with postgres.database(postgres.EMPTY) as other:
            _tool(cluster, "pg_restore", *server, "--exit-on-error", f"--dbname={other.rpartition('/')[2]}", str(file))
            database = Database(other)
            assert dump(database) == before
            database.dispose()
            _goes_on(other, opened.keys)
        assert dump(opened.database) == before


@pytest.fixture
def archiving() -> Iterator[postgres.Cluster]:
    """A server that keeps its write-ahead log for ever, as the document configures it."""
    need_postgresql()
    cluster = postgres.Cluster.create("archive_mode = on\narchive_command = 'cp %p ../%f'")
    yield cluster
    cluster.remove()


@pytest.mark.postgresql
def test_a_server_is_brought_back_to_a_moment_by_a_base_backup_and_the_log(
    archiving: postgres.Cluster, tmp_path: Path
) -> None:
    database = Database(archiving.create_database("ledger"))
    upgrade(database)
    database.dispose()
    taken = archiving.base_backup()
    try:
        with open_ledger(tmp_path, archiving.url("ledger")) as opened:
            trainer = fill(opened)
            before = dump(opened.database)
            archiving.execute("SELECT pg_create_restore_point('accident')")
            assert trainer.steps(attempt=2).status_code == 200
        archiving.restart()  # the last of the log is archived
        taken.recover(archiving.folder, "accident")
        database, live = Database(taken.url("ledger")), Database(archiving.url("ledger"))
        assert dump(database) == before
        report = compare_backup(database, live)
        assert (report.problems, report.decisions_since) == ((), 1)
        database.dispose()
        live.dispose()
        _goes_on(taken.url("ledger"), opened.keys)
    finally:
        taken.remove()


def test_an_older_version_refuses_a_newer_database(database_url: str) -> None:
    database = Database(database_url)
    upgrade(database)
    with database.write(ALL_TENANTS) as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerUnavailableError, match="9999, of a newer version"):
        upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        assert tx.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    database.dispose()


def test_what_a_restored_ledger_forgot_is_reported(lived_in: Ledger, tmp_path: Path) -> None:
    run = lived_in.run(name="forgotten", event=QUIET)
    steps = f"/v1/runs/{run}/steps"
    assert lived_in.post(steps, {"count": 3}, "trainer").status_code == 200
    restored = tmp_path / "restored.db"
    _by_vacuum(tmp_path / "ledger.db", restored)
    for count in (1, 4):  # released after the backup: the trainer's log has them
        assert lived_in.post(steps, {"count": count}, "trainer").status_code == 200
    before = _spent(lived_in.database)
    with taken_up(f"sqlite:///{restored}", lived_in.keys) as back:
        assert _spent(back.database) != before
        assert back.post(steps, {"first_step": 8}, "trainer").json()["expected_step"] == 3  # the trainer notices
        missing = {"mode": "report", "first_step": 3, "count": 5}
        assert back.post(steps, missing, "trainer").json()["next_step"] == 8
        assert _spent(back.database) == before
        assert back.post(steps, {"first_step": 8}, "trainer").status_code == 200
        assert verify(back.database).problems == ()


def _spent(database: Database) -> dict[str, bytes]:
    with database.read(ALL_TENANTS) as tx:
        return {kept.path: kept.account.spent.to_bytes() for kept in list_all(tx)}
