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

from app.bootstrap import prepare_to_serve
from app.ledger.ids import NO_NUMBER, number_of
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, NO_TENANT, Database
from app.persistence.postgresql import for_organisation
from app.persistence.repositories import accounts, api_keys, decisions, organisations
from app.persistence.repositories.dp_events import CostCache
from app.persistence.tables import metadata
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.auth import authentication
from app.service.governance.api_keys import create_key
from app.service.governance.first_admin import create_sign_in_link
from tests import postgres
from tests.conftest import Ledger, need_postgresql, new_database, open_ledger
from tests.login_helpers import cookie_for
from tests.persistence.dump import dump

pytestmark = pytest.mark.postgresql

TABLES = sorted(metadata.tables.values(), key=lambda table: table.name)
OWNED = [table for table in TABLES if "organisation_id" in table.c or table.name == "organisations"]
OTHER = "org_fffffffffffffff"
each_table = pytest.mark.parametrize("table", OWNED, ids=lambda table: table.name)


@dataclass(frozen=True)
class Two:
    """Two organisations with a row in every table each."""

    ledger: Ledger
    ours: str
    theirs: str
    run: str

    @property
    def database(self) -> Database:
        return self.ledger.database


def _furnish(ledger: Ledger, organisation: str) -> str:
    """Fill every table."""
    headers = ledger.headers("admin", organisation)

    def made(path: str, body: dict[str, object], key: str = "") -> dict[str, Any]:
        reply = ledger.http.post(path, json=body, headers=headers | {"Idempotency-Key": key or path})
        assert reply.status_code in {200, 201}, reply.text
        found: dict[str, Any] = reply.json()
        return found

    limit = {"epsilon": 3.0, "delta": 1e-5}
    terms = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
    event = {"type": "gaussian", "noise_multiplier": 50.0}
    made("/v1/populations", terms | {"limit": limit})
    budget = str(made("/v1/budgets", {"name": "b", "parent": "p", "limit": limit})["id"])
    headers["If-Match"] = "*"
    more: dict[str, object] = {"limit": {"epsilon": 4.0, "delta": 1e-5}, "reason": "Another study."}
    made(f"/v1/accounts/{budget}/limit", more)
    parts = {"name": "parts", "composition": "parallel", "attestation": "by month"}
    month = {"data_from": "2026-05-01T00:00:00Z", "data_to": "2026-06-01T00:00:00Z"}
    made("/v1/populations", {**terms, "limit": limit, **parts}, key="parts")
    made("/v1/budgets", {"name": "may", "parent": "parts", "limit": limit, "block": month}, key="may")
    schedule = {"schedule": {"period": "month", "start": "2999-01-01", "limit": limit}, "reason": "By month."}
    reply = ledger.http.put("/v1/accounts/parts/block-schedule", json=schedule, headers=headers)
    assert reply.status_code == 200, reply.text
    made("/v1/experiments", {"name": "sweep", "budget": "p/b", "charging_mode": "each_run"})
    run = str(made("/v1/runs", {"name": "r", "budget": "p/b", "event": event, "labels": {"a": "b"}})["id"])
    further = {"type": "gaussian", "noise_multiplier": 60.0}
    made(f"/v1/runs/{run}/steps", {"events": [{"event": event}, {"event": further}]})
    made("/v1/checkpoints", {})
    made("/v1/verifications", {})
    made(f"/v1/runs/{run}/reservations", {"plan": [{"event": event, "count": 3}]})
    hooked = {"url": "https://alerts.example/"}
    reply = ledger.http.post("/v1/receivers", json=hooked, headers=ledger.headers("admin", organisation))
    hook = reply.json()["id"]
    made(f"/v1/receivers/{hook}/test", {})
    record_usage_snapshots(ledger.database, datetime.now(UTC))
    cookie_for(ledger, "admin", organisation)
    create_sign_in_link(ledger.database, organisation, datetime.now(UTC))
    return run


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    need_postgresql()
    folder = tmp_path_factory.mktemp("two")
    with new_database("postgresql", folder) as url, open_ledger(folder, url) as ledger:
        yield _two(ledger)


def _two(ledger: Ledger) -> Two:
    run, _ = _furnish(ledger, "hospital"), _furnish(ledger, "clinic")
    with ledger.database.read(ALL_TENANTS) as tx:
        ours, theirs = (organisations.find_organisation(tx, name) for name in ("hospital", "clinic"))
    assert ours is not None
    assert theirs is not None
    return Two(ledger, ours, theirs, run)


def _whose(table: Table) -> Any:  # noqa: ANN401 - a column
    return table.c.organisation_id if "organisation_id" in table.c else table.c.id


def _owners(tx: Connection, table: Table) -> set[str]:
    return set(tx.execute(select(_whose(table)).distinct()).scalars())


def test_every_table_is_somebodys() -> None:
    assert {table.name for table in TABLES} == {table.name for table in OWNED}


@each_table
def test_a_transaction_sees_the_rows_of_its_organisation_and_no_others(two: Two, table: Table) -> None:
    database = two.database
    with database.read(ALL_TENANTS) as tx:
        assert _owners(tx, table) == {two.ours, two.theirs}, "each has a row here, or nothing is tested"
    with database.read(two.ours) as tx:
        assert _owners(tx, table) == {two.ours}
    with database.read(two.ours, patient=True) as tx:
        assert _owners(tx, table) == {two.ours}
    with database.write(two.ours) as tx:
        assert _owners(tx, table) == {two.ours}
    for nobody in (
        database.read(NO_TENANT),
        database.write(NO_TENANT),
        database.read("org_nowhere"),
        database.read(OTHER),
    ):
        with nobody as tx:
            assert _owners(tx, table) == set()


@each_table
def test_a_transaction_changes_and_removes_no_row_of_another_organisation(two: Two, table: Table) -> None:
    before = dump(two.database)
    with two.database.write(two.ours) as tx:
        whose = _whose(table)
        for statement in (
            update(table).where(whose == two.theirs).values({whose: two.theirs}),
            delete(table).where(whose == two.theirs),
            text(f"UPDATE {table.name} SET {whose.name} = {whose.name} WHERE {whose.name} <> {number_of(two.ours)}"),  # noqa: S608 - our own names
            text(f"DELETE FROM {table.name} WHERE {whose.name} <> {number_of(two.ours)}"),  # noqa: S608 - as above
        ):
            assert tx.execute(statement).rowcount == 0
        assert tx.execute(select(whose).where(whose == two.theirs).with_for_update()).all() == []
    assert dump(two.database) == before


@each_table
def test_a_transaction_adds_no_row_to_another_organisation_and_gives_none_away(two: Two, table: Table) -> None:
    before = dump(two.database)
    with two.database.read(ALL_TENANTS) as tx:
        (row, *_) = tx.execute(select(table).where(_whose(table) == two.theirs)).mappings()
    for statement in (insert(table).values(**row), update(table).values({_whose(table): two.theirs})):
        with pytest.raises(ProgrammingError, match="row-level security"), two.database.write(two.ours) as tx:
            tx.execute(statement)
    with pytest.raises(ProgrammingError, match="row-level security"), two.database.write(NO_TENANT) as tx:
        tx.execute(insert(table).values(**row))
    assert dump(two.database) == before


def test_a_repository_that_is_asked_for_another_organisation_finds_nothing(two: Two) -> None:
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


def test_what_a_transaction_was_about_ends_with_it(two: Two) -> None:
    (organisations,) = (table for table in OWNED if table.name == "organisations")
    connections = [two.database.engine.connect() for _ in range(5)]
    for connection in connections:
        connection.close()
    for _ in range(20):  # whichever connection the pool lends
        with two.database.read(ALL_TENANTS) as tx:
            assert tx.scalar(select(func.count()).select_from(organisations)) == 2
        with two.database.write(two.ours) as tx:
            assert tx.scalar(select(func.count()).select_from(organisations)) == 1
        with two.database.read(NO_TENANT) as tx:
            assert tx.scalar(select(func.count()).select_from(organisations)) == 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        "'",
        "org_000000000000001'; SET LOCAL epsilon_ledger.all_tenants = 'on",
        "a" * 41,
        "org 1",
        "ö",
        "org_00000000000000G",
    ],
)
def test_nothing_but_the_number_of_an_id_gets_into_the_statement(two: Two, name: str) -> None:
    assert for_organisation("BEGIN", name) == f"BEGIN; SET LOCAL epsilon_ledger.organisation = '{NO_NUMBER}'"
    with two.database.read(name) as tx:
        assert {table.name: _owners(tx, table) for table in OWNED} == {table.name: set() for table in OWNED}


def test_it_takes_one_round_trip_and_is_never_prepared(two: Two) -> None:
    """A prepared statement for each organisation would push the others out of the driver's memory."""
    for _ in range(20):
        with two.database.read(two.ours) as tx:
            raw: Any = tx.connection.dbapi_connection
            assert tx.scalar(text("SELECT current_setting('epsilon_ledger.organisation')")) == str(number_of(two.ours))
            assert not [key for key in raw._prepared._names if b"epsilon_ledger.organisation = " in key[0]]


@pytest.mark.parametrize("user", [postgres.SERVICE, "ledger"])
def test_whoever_serves_as_a_superuser_is_told_so(two: Two, capsys: pytest.CaptureFixture[str], user: str) -> None:
    database = Database(postgres.shared().url(str(two.database.engine.url.database), user), 1)
    try:
        prepare_to_serve(database)
    finally:
        database.dispose()
    assert capsys.readouterr().err.count("is a superuser or has BYPASSRLS") == (user == "ledger")


def test_organisations_and_keys_are_made_across_the_wall(two: Two) -> None:
    now = datetime.now(UTC)
    name = "a third"
    organisation = authentication.create_organisation(two.database, name, now)
    key = create_key(two.database, name, Role.VIEWER, now)
    caller = authentication.authenticate(two.database, f"Bearer {key.key}", now)
    assert caller.organisation_id == organisation
    with two.database.write(ALL_TENANTS) as tx:
        for table in reversed(metadata.sorted_tables):
            tx.execute(delete(table).where(_whose(table) == organisation))
