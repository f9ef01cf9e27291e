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
from app.service.governance.api_keys import create_key
from tests.conftest import command_line
from tests.persistence.dump import dump
from tests.persistence.schema_snapshot import shape_of


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


def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    migrate(database)
    with database.write(ALL_TENANTS) as tx:
        command.check(_config(tx))


def _statements(tx: Connection) -> dict[str, str]:
    """The statements that made tables and indexes, by their names."""
    rows = tx.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in rows}


def test_an_empty_file_gets_what_the_migrations_make(database: Database, tmp_path: Path) -> None:
    migrate(database)
    direct = Database(f"sqlite:///{tmp_path / 'direct.db'}")
    upgrade(direct)
    with database.read(ALL_TENANTS) as migrated, direct.read(ALL_TENANTS) as created:
        wanted = shape_of(migrated)
        assert shape_of(created) == wanted
        assert _statements(created).keys() == _statements(migrated).keys()
        assert _statements(created)["alembic_version"] == _statements(migrated)["alembic_version"]
        assert is_current(created)
        named = "SELECT tbl_name, name FROM sqlite_master WHERE sql LIKE 'CREATE %INDEX%'"
        indexes = created.exec_driver_sql(named).all()
    assert indexes == [each for table in metadata.sorted_tables for each in sorted(indexes) if each[0] == table.name]
    direct.dispose()
    assert {table: bool(shape) for table, shape in wanted.items()} == dict.fromkeys(metadata.tables, True)


@pytest.mark.parametrize("make", [migrate, upgrade])
def test_partial_indexes_stay_partial(database: Database, make: Callable[[Database], None]) -> None:
    make(database)
    with database.read(ALL_TENANTS) as tx:
        indexes = set(tx.exec_driver_sql("SELECT name FROM sqlite_master WHERE sql LIKE '%WHERE%'").scalars())
    assert indexes == {
        "ix_account_metadata_archived",
        "ix_account_metadata_owner",
        "ix_accounts_run_path",
        "ix_decisions_not_admitted",
        "ix_deliveries_pending",
        "uq_accounts_budget_skeleton",
        "uq_accounts_path",
        "uq_accounts_population_skeleton",
        "uq_alerts_of_organisation",
        "uq_decisions_first_step",
        "uq_decisions_idempotency_key",
        "uq_proposals_open",
        "uq_reservations_active",
        "uq_reservations_waiting",
    }


@pytest.mark.parametrize("make", [migrate, upgrade])
def test_every_constraint_has_a_name(database: Database, make: Callable[[Database], None]) -> None:
    make(database)
    with database.read(ALL_TENANTS) as tx:
        for table, sql in tx.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            for kind in ("CHECK", "FOREIGN KEY", "UNIQUE ("):
                assert sql.count(kind) == len(re.findall(rf"CONSTRAINT \S+ {re.escape(kind)}", sql)), table


def test_a_database_goes_up_down_and_up_again(database: Database) -> None:
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


def test_upgrading_the_newest_schema_changes_nothing(database: Database) -> None:
    upgrade(database)
    now = datetime.now(UTC)
    create_organisation(database, "hospital", now)
    key = create_key(database, "hospital", Role.VIEWER, now)
    before = dump(database)
    upgrade(database)
    assert dump(database) == before
    assert authenticate(database, f"Bearer {key.key}", now).role is Role.VIEWER


def test_a_database_is_current_after_the_upgrade_only(database: Database) -> None:
    with database.read(ALL_TENANTS) as tx:
        assert not is_current(tx)
    upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        assert is_current(tx)


@pytest.mark.parametrize("make", [migrate, upgrade])
@pytest.mark.parametrize("table", ["api_keys", "decisions", "decision_events", "alembic_version"])
def test_an_upgrade_that_fails_leaves_nothing(database: Database, table: str, make: Callable[[Database], None]) -> None:
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


def test_revisions_are_one_line_from_the_first_to_the_newest() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_heads() == [NEWEST]
    assert len(scripts.get_bases()) == 1
    for revision in scripts.walk_revisions():
        assert revision.doc, revision.revision


def test_the_command_line_migrates(tmp_path: Path, database: Database) -> None:
    file = tmp_path / "ledger.db"
    answer = [command_line("migrate", database=file) for _ in range(2)]
    assert [(done.returncode, done.stderr) for done in answer] == [(0, f"Created a new ledger at {file}.\n"), (0, "")]
    with database.read(ALL_TENANTS) as tx:
        assert is_current(tx)
