"""PostgreSQL's second wall: a transaction about one organisation reaches no row of another, whatever SQL is sent.

The tests go past the repositories, which are the first wall. Tables come from the metadata: a new one without a policy
fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Table, delete, func, insert, select, text, update
from sqlalchemy.exc import ProgrammingError

from app.commands.console import prepare_to_serve
from app.ledger.ids import NO_NUMBER, number_of
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, NO_TENANT, Database
from app.persistence.postgresql import for_organisation
from app.persistence.repositories import accounts, api_keys, decisions, organisations
from app.persistence.repositories.dp_events import CostCache
from app.persistence.tables import metadata
from app.service.auth import authentication
from app.service.keys.api_keys import create_key
from app.service.keys.first_admin import create_sign_in_link
from tests import postgres
from tests.conftest import Ledger, need_postgresql, new_database, open_ledger
from tests.persistence.dump import dump
from tests.service.full_ledger import fill

pytestmark = pytest.mark.postgresql

TABLES = sorted(metadata.tables.values(), key=lambda table: table.name)
OWNED = [table for table in TABLES if "organisation_id" in table.c or table.name == "organisations"]
OTHER = "org_fffffffffffffff"


@dataclass(frozen=True)
class Two:
    """Two organisations with rows in every table each."""

    ledger: Ledger
    ours: str
    theirs: str
    run: str

    @property
    def database(self) -> Database:
        return self.ledger.database


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    need_postgresql()
    folder = tmp_path_factory.mktemp("two")
    with new_database("postgresql", folder, furnish=fill) as url, open_ledger(folder, url) as ledger:
        ledger.cookie("admin", "clinic")
        create_sign_in_link(ledger.database, "clinic", datetime.now(UTC))
        with ledger.database.read(ALL_TENANTS) as tx:
            ours, theirs = (organisations.find_organisation(tx, name) for name in ("hospital", "clinic"))
            run = tx.execute(select(metadata.tables["runs"].c.account_id).limit(1)).scalar_one()
        assert ours is not None
        assert theirs is not None
        _give_copies(url.rpartition("/")[2], number_of(ours), number_of(theirs))
        before = dump(ledger.database)
        yield Two(ledger, ours, theirs, run)
        assert dump(ledger.database) == before


def _give_copies(database: str, ours: int, theirs: int) -> None:
    """Copy every row of one organisation to another, which has rows of those tables whose ids are everybody's."""
    with postgres.shared().connect(database) as connection:
        connection.execute("SET session_replication_role = replica")  # no reference is looked at meanwhile
        for table in TABLES:
            if table.name not in {"organisations", "api_keys", "sessions", "sign_in_links"}:
                others = ", ".join(f'"{column.name}"' for column in table.c if column.name != "organisation_id")
                connection.execute(
                    f"INSERT INTO {table} (organisation_id, {others}) SELECT {theirs}, {others} FROM {table}"  # noqa: S608 - our own names
                    f" WHERE organisation_id = {ours} ON CONFLICT DO NOTHING".encode()
                )


def _whose(table: Table) -> Any:  # noqa: ANN401 - a column
    return table.c.organisation_id if "organisation_id" in table.c else table.c.id


def _all_owners(tx: Connection) -> dict[str, set[str]]:
    return {table.name: set(tx.execute(select(_whose(table)).distinct()).scalars()) for table in OWNED}


def test_every_table_has_a_column_of_its_organisation() -> None:
    assert {table.name for table in TABLES} == {table.name for table in OWNED}


def test_transaction_sees_only_the_rows_of_its_organisation(two: Two) -> None:
    database, none = two.database, {table.name: set[str]() for table in OWNED}
    with database.read(ALL_TENANTS) as tx:
        assert _all_owners(tx) == {name: {two.ours, two.theirs} for name in none}, (
            "each has a row, or nothing is tested"
        )
    for own in (database.read(two.ours), database.read(two.ours, patient=True), database.write(two.ours)):
        with own as tx:
            assert _all_owners(tx) == {name: {two.ours} for name in none}
    for tenant in (NO_TENANT, "org_nowhere", OTHER):
        with database.read(tenant) as tx, database.write(tenant) as writing:
            assert _all_owners(tx) == _all_owners(writing) == none


def test_row_of_another_organisation_is_neither_changed_nor_removed(two: Two) -> None:
    for table in OWNED:
        whose = _whose(table)
        others = f"WHERE {whose.name} <> {number_of(two.ours)}"
        with two.database.write(two.ours) as tx:
            for statement in (
                update(table).where(whose == two.theirs).values({whose: two.theirs}),
                delete(table).where(whose == two.theirs),
                text(f"UPDATE {table.name} SET {whose.name} = {whose.name} {others}"),  # noqa: S608 - our own names
                text(f"DELETE FROM {table.name} {others}"),  # noqa: S608 - as above
            ):
                assert tx.execute(statement).rowcount == 0, statement
            assert tx.execute(select(whose).where(whose == two.theirs).with_for_update()).all() == []


def test_row_for_another_organisation_is_refused(two: Two) -> None:
    for table in OWNED:
        with two.database.read(ALL_TENANTS) as tx:
            (row, *_) = tx.execute(select(table).where(_whose(table) == two.theirs)).mappings()
        foreign = insert(table).values(**row)
        moved = update(table).values({_whose(table): two.theirs})
        for tenant, statement in ((two.ours, foreign), (two.ours, moved), (NO_TENANT, foreign)):
            with pytest.raises(ProgrammingError, match="row-level security"), two.database.write(tenant) as tx:
                tx.execute(statement)


def test_repository_finds_nothing_when_asked_for_another_organisation(two: Two) -> None:
    """The mistake against which the wall stands: an id of the wrong organisation handed on."""
    database, book = two.database, CostCache()
    with database.read(two.theirs) as tx:
        assert accounts.find_many(tx, book, two.ours, [two.run]) == []
        assert list(accounts.list_all(tx, two.ours)) == []
        assert list(accounts.list_all(tx, None)) == list(accounts.list_all(tx, two.theirs)) != []
        assert decisions.find_by_keys(tx, two.ours, [f"/v1/runs/{two.run}/steps"]) == []
        assert organisations.find_organisation(tx, "hospital") is None
        assert api_keys.find(tx, two.ledger.keys["hospital", "admin"].partition(".")[0]) is None
    with database.read(two.ours) as tx:
        assert len(accounts.find_many(tx, book, two.ours, [two.run])) == 1


def test_organisation_of_a_transaction_ends_with_it_when_its_connection_is_lent_again(two: Two) -> None:
    rows = select(func.count()).select_from(metadata.tables["organisations"])
    for _ in range(5):  # the pool lends the connection that was given back last
        for transaction, known in ((two.database.read(ALL_TENANTS), 2), (two.database.write(two.ours), 1)):
            with transaction as tx:
                assert tx.scalar(rows) == known
        with two.database.read(NO_TENANT) as tx:
            assert tx.scalar(rows) == 0


def test_statement_has_only_the_number_of_an_id_when_a_text_is_hostile(two: Two) -> None:
    attack = "org_000000000000001'; SET LOCAL epsilon_ledger.all_tenants = 'on"
    for name in ("", "'", "a" * 41, "org 1", "ö", "org_00000000000000G", attack):
        assert for_organisation("BEGIN", name) == f"BEGIN; SET LOCAL epsilon_ledger.organisation = '{NO_NUMBER}'"
        with two.database.read(name) as tx:
            assert not any(_all_owners(tx).values()), name


def test_setting_of_the_organisation_is_never_prepared(two: Two) -> None:
    """A prepared statement for each organisation would push the others out of the driver's memory."""
    for _ in range(20):
        with two.database.read(two.ours) as tx:
            raw: Any = tx.connection.dbapi_connection
            assert tx.scalar(text("SELECT current_setting('epsilon_ledger.organisation')")) == str(number_of(two.ours))
            assert not [key for key in raw._prepared._names if b"epsilon_ledger.organisation = " in key[0]]


def test_start_warns_when_the_role_is_a_superuser(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    for user in (postgres.SERVICE, postgres.ADMIN):
        database = Database(postgres.shared().url(str(two.database.engine.url.database), user), 1)
        prepare_to_serve(database)
        database.dispose()
        assert capsys.readouterr().err.count("is a superuser or has BYPASSRLS") == (user == postgres.ADMIN)


def test_organisation_and_its_key_are_made_when_no_row_names_them_yet(two: Two) -> None:
    now = datetime.now(UTC)
    name = "a third"
    organisation = authentication.create_organisation(two.database, name, now)
    key = create_key(two.database, name, Role.VIEWER, now)
    caller = authentication.authenticate(two.database, f"Bearer {key.key}", now)
    assert caller.organisation_id == organisation
    with two.database.write(ALL_TENANTS) as tx:
        for table in reversed(metadata.sorted_tables):
            tx.execute(delete(table).where(_whose(table) == organisation))
