"""A rehearsed step fails where a step would fail, says why, and leaves nothing behind."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.persistence import postgresql
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import upgrade
from app.persistence.tables import metadata
from app.persistence.write_probe import Fault, rehearse
from tests import postgres
from tests.persistence.dump import dump

TABLES = [table.name for table in metadata.sorted_tables]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    upgrade(opened)
    yield opened
    opened.dispose()


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
def test_rehearsal_does_not_wait_for_another(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two replicas: the second begins and ends while the first has written its row."""
    try_statements, within = postgresql.rehearse, []

    def rehearse_meanwhile(*given: Any) -> None:  # noqa: ANN401 - as it is called
        monkeypatch.setattr(postgresql, "rehearse", try_statements)
        within.append(rehearse(database))
        try_statements(*given)

    monkeypatch.setattr(postgresql, "rehearse", rehearse_meanwhile)
    assert rehearse(database) is None
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
    with _locked(database), monkeypatch.context() as impatient:
        impatient.setattr("app.persistence.write_probe.TRIAL_SECONDS", 0.05)
        assert rehearse(database) is Fault.LOCKED
    assert rehearse(database) is None


def test_open_transaction_of_another_thread_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    upgrade(database)
    with database.write(ALL_TENANTS), monkeypatch.context() as impatient:
        impatient.setattr("app.persistence.database.TRIAL_SECONDS", 0.05)
        assert rehearse(database) is Fault.LOCKED
    assert rehearse(database) is None
    database.dispose()


@pytest.mark.postgresql
def test_table_of_another_owner_is_a_fault(database: Database) -> None:
    with postgres.shared().connect(str(database.engine.url.database)) as session:
        for table in TABLES:
            session.execute(f"ALTER TABLE {table} OWNER TO {postgres.ADMIN}".encode())
            assert rehearse(database) is Fault.FORBIDDEN, table
            session.execute(f"ALTER TABLE {table} OWNER TO {postgres.SERVICE}".encode())
    assert rehearse(database) is None


@pytest.mark.postgresql
def test_missing_right_is_a_fault_until_it_is_granted(database: Database) -> None:
    whom = f"decisions FROM {postgres.SERVICE}"
    shut = "CREATE POLICY shut ON organisations AS RESTRICTIVE FOR INSERT WITH CHECK (false)"
    rights = {
        f"REVOKE {each} ON {whom}": f"GRANT {each} ON {whom.replace('FROM', 'TO')}" for each in ("INSERT", "UPDATE")
    }
    for breaks, mends in (rights | {shut: "DROP POLICY shut ON organisations"}).items():
        _execute(database, breaks)
        assert rehearse(database) is Fault.FORBIDDEN, breaks
        _execute(database, mends)
        assert rehearse(database) is None


@pytest.mark.postgresql
def test_role_without_row_security_is_served(database: Database) -> None:
    """PostgreSQL then refuses whatever a policy would narrow; the sessions of the service switch it on again."""
    _execute(database, f"ALTER ROLE {postgres.SERVICE} SET row_security = off")
    try:
        assert rehearse(database) is None
        with database.read(ALL_TENANTS) as tx:
            assert tx.execute(text("SELECT count(*) FROM organisations")).scalar_one() == 0
    finally:
        _execute(database, f"ALTER ROLE {postgres.SERVICE} RESET row_security")


@pytest.mark.postgresql
def test_missing_table_is_a_fault_without_a_name(database: Database) -> None:
    _execute(database, "ALTER TABLE decisions RENAME TO decided")
    assert rehearse(database) is Fault.BROKEN
