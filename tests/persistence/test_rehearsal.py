"""A rehearsed step fails where a step would fail, says why, and leaves nothing behind."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.persistence import postgresql
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.rehearsal import Fault, rehearse
from app.persistence.schema import upgrade
from app.persistence.tables import metadata
from tests import postgres
from tests.disks import a_disk, may_mount, without_room
from tests.persistence.dump import dump

TABLES = [table.name for table in metadata.sorted_tables]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    upgrade(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def server(database: Database) -> Database:
    """The same, in tests on PostgreSQL."""
    return database


def _execute(database: Database, statement: str) -> None:
    """As who may do everything."""
    postgres.shared().execute(statement, str(database.engine.url.database))


@pytest.mark.both_databases
def test_rehearsal_leaves_no_row_and_no_connection(database: Database) -> None:
    before = dump(database)
    assert (rehearse(database), rehearse(database)) == (None, None)
    assert dump(database) == before
    assert database.connections().used == 0


@pytest.mark.postgresql
def test_rehearsal_does_not_wait_for_another(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two replicas: the second begins and ends while the first has written its row."""
    try_statements, within = postgresql.rehearse, []

    def rehearse_meanwhile(*given: Any) -> None:  # noqa: ANN401 - as it is called
        monkeypatch.setattr(postgresql, "rehearse", try_statements)
        within.append(rehearse(server))
        try_statements(*given)

    monkeypatch.setattr(postgresql, "rehearse", rehearse_meanwhile)
    assert rehearse(server) is None
    assert within == [None]


@pytest.mark.both_databases
def test_empty_database_is_not_migrated(empty_database_url: str) -> None:
    empty = Database(empty_database_url)
    assert rehearse(empty) is Fault.UNMIGRATED
    empty.dispose()


@contextmanager
def _locked(database: Database) -> Iterator[None]:
    """Somebody else writes, and does not come to an end."""
    if database.dialect == "postgresql":
        with database.write(ALL_TENANTS) as tx:
            tx.execute(text("LOCK TABLE decisions IN EXCLUSIVE MODE"))
            yield
        return
    with closing(sqlite3.connect(str(database.engine.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.both_databases
def test_lock_is_a_fault_until_it_is_released(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.persistence.rehearsal.TRIAL_SECONDS", 0.05)
    with _locked(database):
        assert rehearse(database) is Fault.LOCKED
    assert rehearse(database) is None


def test_open_transaction_of_another_thread_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.persistence.database.TRIAL_SECONDS", 0.05)
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    upgrade(database)
    with database.write(ALL_TENANTS):
        assert rehearse(database) is Fault.LOCKED
    assert rehearse(database) is None
    database.dispose()


@pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")
def test_file_is_a_fault_while_its_disk_is_full_or_may_only_be_read(tmp_path: Path) -> None:
    with a_disk(tmp_path, 2**22) as disk:
        url = f"sqlite:///{disk / 'ledger.db'}"
        database = Database(url)
        upgrade(database)
        with database.read(ALL_TENANTS), without_room(disk):
            assert rehearse(database) is Fault.FULL
        assert rehearse(database) is None
        database.dispose()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert rehearse(Database(url)) in {Fault.READ_ONLY, Fault.SILENT}
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert rehearse(database) is None
        database.dispose()


@pytest.mark.postgresql
def test_table_of_another_owner_is_a_fault(server: Database) -> None:
    for table in TABLES:
        _execute(server, f"ALTER TABLE {table} OWNER TO ledger")
        assert rehearse(server) is Fault.FORBIDDEN, table
        _execute(server, f"ALTER TABLE {table} OWNER TO {postgres.SERVICE}")
    assert rehearse(server) is None


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        (f"REVOKE INSERT ON decisions FROM {postgres.SERVICE}", f"GRANT INSERT ON decisions TO {postgres.SERVICE}"),
        (f"REVOKE UPDATE ON decisions FROM {postgres.SERVICE}", f"GRANT UPDATE ON decisions TO {postgres.SERVICE}"),
        (
            "CREATE POLICY shut ON organisations AS RESTRICTIVE FOR INSERT WITH CHECK (false)",
            "DROP POLICY shut ON organisations",
        ),
    ],
)
def test_missing_right_is_a_fault_until_it_is_granted(server: Database, breaks: str, mends: str) -> None:
    _execute(server, breaks)
    assert rehearse(server) is Fault.FORBIDDEN
    _execute(server, mends)
    assert rehearse(server) is None


@pytest.mark.postgresql
def test_role_without_row_security_is_served(server: Database) -> None:
    """PostgreSQL then refuses whatever a policy would narrow; the sessions of the service switch it on again."""
    _execute(server, f"ALTER ROLE {postgres.SERVICE} SET row_security = off")
    try:
        assert rehearse(server) is None
        with server.read(ALL_TENANTS) as tx:
            assert tx.execute(text("SELECT count(*) FROM organisations")).scalar_one() == 0
    finally:
        _execute(server, f"ALTER ROLE {postgres.SERVICE} RESET row_security")


@pytest.mark.postgresql
def test_missing_table_is_a_fault_without_a_name(server: Database) -> None:
    _execute(server, "ALTER TABLE decisions RENAME TO decided")
    assert rehearse(server) is Fault.BROKEN
