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
from tests.conftest import need_postgresql, new_database
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
def server(tmp_path: Path) -> Iterator[Database]:
    """A ledger on PostgreSQL."""
    need_postgresql()
    with new_database("postgresql", tmp_path) as url:
        opened = Database(url)
        yield opened
        opened.dispose()


def _execute(database: Database, statement: str) -> None:
    """As who may do everything."""
    postgres.shared().execute(statement, str(database.engine.url.database))


def test_a_rehearsal_leaves_nothing(database: Database) -> None:
    before = dump(database)
    for _ in range(3):
        assert rehearse(database) is None
    assert dump(database) == before


def test_a_rehearsal_keeps_no_connection(database: Database) -> None:
    rehearse(database)
    assert database.connections().used == 0


def test_rehearsals_do_not_wait_for_each_other(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two replicas: the second begins and ends while the first has written its row."""
    try_statements, within = postgresql.rehearse, []

    def rehearse_meanwhile(*given: Any) -> None:  # noqa: ANN401 - as it is called
        monkeypatch.setattr(postgresql, "rehearse", try_statements)
        within.append(rehearse(server))
        try_statements(*given)

    monkeypatch.setattr(postgresql, "rehearse", rehearse_meanwhile)
    assert rehearse(server) is None
    assert within == [None]


def test_an_empty_database_is_not_migrated(empty_database_url: str) -> None:
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


def test_a_lock_that_is_not_released_is_a_fault_until_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.persistence.rehearsal.TRIAL_SECONDS", 0.05)
    with _locked(database):
        assert rehearse(database) is Fault.LOCKED
    assert rehearse(database) is None


def test_a_thread_that_does_not_end_its_transaction_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.persistence.database.TRIAL_SECONDS", 0.05)
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    upgrade(database)
    with database.write(ALL_TENANTS):
        assert rehearse(database) is Fault.LOCKED
    assert rehearse(database) is None
    database.dispose()


@pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")
def test_a_full_disk_under_a_file_is_a_fault_until_it_has_room(tmp_path: Path) -> None:
    with a_disk(tmp_path, 2**22) as disk:
        database = Database(f"sqlite:///{disk / 'ledger.db'}")
        upgrade(database)
        with database.read(ALL_TENANTS), without_room(disk):
            assert rehearse(database) is Fault.FULL
        assert rehearse(database) is None
        database.dispose()


@pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")
def test_a_file_that_may_only_be_read_is_a_fault(tmp_path: Path) -> None:
    with a_disk(tmp_path, 2**22) as disk:
        file = disk / "ledger.db"
        database = Database(f"sqlite:///{file}")
        upgrade(database)
        database.dispose()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert rehearse(Database(f"sqlite:///{file}")) in {Fault.READ_ONLY, Fault.SILENT}
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert rehearse(database) is None
        database.dispose()


@pytest.mark.postgresql
@pytest.mark.skipif(not may_mount(), reason="only root may mount a file system")
def test_a_full_disk_under_a_server_is_a_fault_until_it_has_room(tmp_path: Path) -> None:
    need_postgresql()
    with a_disk(postgres.in_memory() or tmp_path, 2**27) as disk:
        cluster = postgres.Cluster.create(under=disk)
        try:
            database = Database(cluster.create_database("ledger"))
            upgrade(database)
            assert rehearse(database) is None
            with without_room(disk):
                assert rehearse(database) is Fault.FULL
            assert rehearse(database) is None
            database.dispose()
        finally:
            cluster.remove()


@pytest.mark.postgresql
def test_a_table_of_another_owner_is_a_fault_whichever_it_is(server: Database) -> None:
    for table in TABLES:
        _execute(server, f"ALTER TABLE {table} OWNER TO ledger")
        assert rehearse(server) is Fault.FORBIDDEN, table
        _execute(server, f"ALTER TABLE {table} OWNER TO {postgres.SERVICE}")
    assert rehearse(server) is None


@pytest.mark.postgresql
@pytest.mark.parametrize("right", ["INSERT", "UPDATE"])
def test_a_right_that_was_taken_away_is_a_fault(server: Database, right: str) -> None:
    _execute(server, f"REVOKE {right} ON decisions FROM {postgres.SERVICE}")
    assert rehearse(server) is Fault.FORBIDDEN
    _execute(server, f"GRANT {right} ON decisions TO {postgres.SERVICE}")
    assert rehearse(server) is None


@pytest.mark.postgresql
def test_a_policy_that_lets_nobody_write_is_a_fault(server: Database) -> None:
    _execute(server, "CREATE POLICY shut ON organisations AS RESTRICTIVE FOR INSERT WITH CHECK (false)")
    assert rehearse(server) is Fault.FORBIDDEN
    _execute(server, "DROP POLICY shut ON organisations")
    assert rehearse(server) is None


@pytest.mark.postgresql
def test_a_role_without_row_security_is_served_all_the_same(server: Database) -> None:
    """PostgreSQL then refuses whatever a policy would narrow; the sessions of the service switch it on again."""
    _execute(server, f"ALTER ROLE {postgres.SERVICE} SET row_security = off")
    try:
        assert rehearse(server) is None
        with server.read(ALL_TENANTS) as tx:
            assert tx.execute(text("SELECT count(*) FROM organisations")).scalar_one() == 0
    finally:
        _execute(server, f"ALTER ROLE {postgres.SERVICE} RESET row_security")


@pytest.mark.postgresql
def test_a_column_that_is_gone_is_a_fault_without_a_name(server: Database) -> None:
    _execute(server, "ALTER TABLE decisions RENAME TO decided")
    assert rehearse(server) is Fault.BROKEN
