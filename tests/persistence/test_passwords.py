"""A password that stands in a file, and is changed while the service works."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import NO_TENANT, Database
from tests import postgres
from tests.databases import need_postgresql

ROLE = "holder_of_a_file"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database whose URL names a role of its own, and no password: that stands in a file."""
    need_postgresql()
    with postgres.database() as url:
        postgres.shared().execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'first'")
        there = make_url(url)._replace(username=ROLE, password=None).render_as_string()
        database = Database(there, 2, password_file=str(tmp_path / "password"))
        yield database
        database.dispose()
        postgres.shared().execute(f"DROP ROLE {ROLE}")


def _user(database: Database) -> str:
    with database.read(NO_TENANT) as tx:
        return str(tx.exec_driver_sql("SELECT current_user").scalar_one())


@pytest.mark.postgresql
def test_new_connection_takes_the_password_that_the_file_holds_then(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "password"
    with pytest.raises(LedgerUnavailableError) as failed:
        _user(database)
    assert str(file) not in failed.value.detail
    file.write_text("first\n")
    assert _user(database) == ROLE
    postgres.shared().execute(f"ALTER ROLE {ROLE} PASSWORD 'second'")
    assert _user(database) == ROLE  # a connection that is open stays open
    with database.read(NO_TENANT), pytest.raises(OperationalError, match="password authentication failed"):
        _user(database)
    file.write_text("second")
    with database.read(NO_TENANT):
        assert _user(database) == ROLE


def test_sqlite_needs_no_password(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}", password_file=str(tmp_path / "password"))
    with database.read(NO_TENANT) as tx:
        assert tx.exec_driver_sql("SELECT 1").scalar_one() == 1
    database.dispose()
