"""Migrations: from nothing to the newest schema and back, always in step with the tables."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, inspect
from sqlalchemy.exc import OperationalError

from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import NEWEST, alembic_config, is_current, upgrade
from app.persistence.tables import metadata
from app.service.auth.authentication import authenticate, create_organisation
from app.service.keys.api_keys import create_key
from tests.persistence.dump import dump


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database without a table."""
    found = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield found
    found.dispose()


def _config(tx: Connection) -> Config:
    config = alembic_config()
    config.attributes["connection"] = tx
    return config


def migrate(database: Database) -> None:
    """Run all migrations, as `upgrade` does on PostgreSQL and for a file with an older schema."""
    with database.migration() as tx:
        command.upgrade(_config(tx), "head")


def _tables(database: Database) -> set[str]:
    with database.read(ALL_TENANTS) as tx:
        return set(inspect(tx).get_table_names())


def _statements(tx: Connection) -> dict[str, str]:
    """The statements that made tables and indexes, by their names."""
    rows = tx.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in rows}


def shape_of(tx: Connection) -> dict[str, dict[str, list[str]]]:
    """Columns, keys, indexes and CHECKs of every table; `alembic check` compares no CHECKs."""
    kinds = ("columns", "pk_constraint", "foreign_keys", "unique_constraints", "indexes", "check_constraints")
    found, shape = inspect(tx), dict[str, dict[str, list[str]]]()
    for kind in kinds:
        for (_, table), parts in getattr(found, f"get_multi_{kind}")().items():
            listed = [parts] if kind == "pk_constraint" else parts
            shape.setdefault(table, {})[kind] = sorted(re.sub(r"[\s()]+", "", str(_plain(part))) for part in listed)
    return shape


def _plain(part: object) -> object:
    return {key: _plain(value) for key, value in part.items()} if isinstance(part, dict) else str(part)


def test_empty_file_gets_the_schema_of_the_migrations(database: Database, tmp_path: Path) -> None:
    migrate(database)
    direct = Database(f"sqlite:///{tmp_path / 'direct.db'}")
    upgrade(direct)
    with database.read(ALL_TENANTS) as migrated, direct.read(ALL_TENANTS) as created:
        wanted, statements = shape_of(migrated), _statements(created)
        assert shape_of(created) == wanted
        assert statements.keys() == _statements(migrated).keys()
        assert statements["alembic_version"] == _statements(migrated)["alembic_version"]
        assert is_current(created)
        named = "SELECT tbl_name, name FROM sqlite_master WHERE sql LIKE 'CREATE %INDEX%'"
        indexes = created.exec_driver_sql(named).all()
    direct.dispose()
    assert indexes == [each for table in metadata.sorted_tables for each in sorted(indexes) if each[0] == table.name]
    assert wanted.keys() == {*metadata.tables, "alembic_version"}
    assert sum(" WHERE " in sql for sql in statements.values()) == 13  # partial indexes
    for table, sql in statements.items():
        for kind in ("CHECK", "FOREIGN KEY", "UNIQUE ("):
            assert sql.count(kind) == len(re.findall(rf"CONSTRAINT \S+ {re.escape(kind)}", sql)), table


def test_schema_is_current_after_it_went_down_and_up_again(database: Database) -> None:
    assert _tables(database) == set()
    migrate(database)
    assert _tables(database) == {*metadata.tables, "alembic_version"}
    with database.migration() as tx:
        command.downgrade(_config(tx), "base")
    assert _tables(database) == {"alembic_version"}
    upgrade(database)
    create_organisation(database, "hospital", datetime.now(UTC))
    with database.write(ALL_TENANTS) as tx:
        command.check(_config(tx))


def test_upgrade_makes_a_database_current_and_changes_nothing_afterwards(database: Database) -> None:
    with database.read(ALL_TENANTS) as tx:
        assert not is_current(tx)
    upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        assert is_current(tx)
    now = datetime.now(UTC)
    create_organisation(database, "hospital", now)
    key = create_key(database, "hospital", Role.VIEWER, now)
    before = dump(database)
    upgrade(database)
    assert dump(database) == before
    assert authenticate(database, f"Bearer {key.key}", now).role is Role.VIEWER


@pytest.mark.parametrize(
    ("make", "table"),
    [(migrate, "decisions"), (migrate, "alembic_version"), (upgrade, "api_keys"), (upgrade, "decision_events")],
)
def test_upgrade_leaves_nothing_when_it_fails(database: Database, table: str, make: Callable[[Database], None]) -> None:
    def fail(_: Connection, __: object, statement: str, *___: object) -> None:
        if re.search(rf"(CREATE TABLE|INSERT INTO) {table}\b", statement):
            raise OperationalError(statement, {}, Exception("disk full"))

    event.listen(database.engine, "before_cursor_execute", fail)
    with pytest.raises(OperationalError):
        make(database)
    event.remove(database.engine, "before_cursor_execute", fail)
    assert _tables(database) == set()
    upgrade(database)
    assert _tables(database) == {*metadata.tables, "alembic_version"}


def test_revisions_are_one_line() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_heads() == [NEWEST]
    assert len(scripts.get_bases()) == 1
    for revision in scripts.walk_revisions():
        assert revision.doc, revision.revision
