"""What the service does on Citus, tried on one PostgreSQL server: `make citus` tries it on a cluster."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event, select
from sqlalchemy.exc import DBAPIError

from app.ledger.errors import InvalidInputError, LedgerUnavailableError
from app.persistence import citus, postgresql
from app.persistence import write_probe as rehearsal
from app.persistence.bulk import BulkStatement
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.postgresql import CITUS, is_in_doubt
from app.persistence.repositories import runs
from app.persistence.tables import dp_events, metadata
from app.persistence.tables import runs as stored_runs
from app.persistence.write_probe import Fault, Rehearsal, rehearse, rehearse_everywhere
from app.service.auth.authentication import create_organisation
from tests.api.trainer import hired
from tests.conftest import Ledger, open_ledger
from tests.service.step_commands import CommandRunner, request

pytestmark = pytest.mark.postgresql

INTERNAL_ERROR_AT_COMMIT = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'a worker is lost' USING ERRCODE = 'XX000'; END $$;
    CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION fail();
"""


@pytest.fixture
def url(database_url: str) -> str:
    """A database with the newest schema on a server without Citus."""
    return database_url


@pytest.fixture
def citus_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every server for one with Citus: a server without it takes the same statements."""
    monkeypatch.setattr(postgresql, "_notice_citus", lambda _, record: record.info.update({CITUS: True}))


@pytest.fixture
def ledger(url: str, tmp_path_factory: pytest.TempPathFactory, citus_forms: None) -> Iterator[Ledger]:
    """A ledger whose statements have the form for Citus."""
    del citus_forms
    with open_ledger(tmp_path_factory.mktemp("ledger"), url) as made:
        yield made


def _sent(url: str) -> list[str]:
    """The messages that begin a transaction on all rows."""
    database, sent = Database(url), []
    with database.read(ALL_TENANTS):
        pass
    event.listen(database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with database.read(ALL_TENANTS):
        pass
    database.dispose()
    return sent


def test_tenant_is_set_in_a_message_of_its_own_only_on_citus(url: str, request: pytest.FixtureRequest) -> None:
    """Citus sends the text of the message with SET to the workers; elsewhere a second one would cost a round trip."""
    assert _sent(url) == [postgresql.for_everyone(postgresql.READ)]
    request.getfixturevalue("citus_forms")
    assert _sent(url) == [postgresql.READ, "SET LOCAL epsilon_ledger.all_tenants = 'on'"]


def test_steps_are_written_on_citus_and_not_over_another_state(ledger: Ledger) -> None:
    """Through both paths: the first step loads its rows, the next ones are sent in a pipeline."""
    run, runner = hired(ledger).run, CommandRunner(ledger)
    assert [runner.charged(request(run)).first_step for _ in range(3)] == [0, 1, 2]
    with ledger.database.read(ALL_TENANTS) as tx:
        found = runs.get(tx, runner.organisation_id, run)
    assert found.next_step == 3

    def write() -> None:
        stale = found._replace(attempt=2)
        with ledger.database.write(runner.organisation_id) as tx:
            runs.advance_all(tx, [(runner.organisation_id, stale, stale)])

    with pytest.raises(DBAPIError):
        write()


def test_row_is_refused_when_its_organisation_is_not_there(ledger: Ledger) -> None:
    """The rows are read from the organisation's row; without it none would be written, unnoticed."""
    strange = "org_000000000000001"
    added = BulkStatement(dp_events, ["organisation_id", "fingerprint", "canonical_json"])

    def add() -> None:
        with ledger.database.write(strange) as tx:
            added.execute(tx, [(strange, "0" * 64, "{}")])

    with pytest.raises(DBAPIError) as failed:
        add()
    assert getattr(failed.value.orig, "sqlstate", None) == "22012"


def test_failed_commit_is_in_doubt_by_its_sqlstate() -> None:
    """A coordinator may fail after the worker has committed; one server reports what it has undone."""
    states = ("XX000", "57014", "40001", "08006", None)
    assert [is_in_doubt(state, citus=True) for state in states] == [True, True, False, True, True]
    assert [is_in_doubt(state, citus=False) for state in states] == [False, False, False, True, True]


def test_internal_error_at_the_commit_is_in_doubt_on_citus(ledger: Ledger) -> None:
    """In a usual transaction, and in a pipeline."""
    run, runner = hired(ledger).run, CommandRunner(ledger)
    runner.charged(request(run))
    with ledger.database.migration() as tx:
        tx.exec_driver_sql(INTERNAL_ERROR_AT_COMMIT)

    def update(tx: Connection) -> None:
        tx.exec_driver_sql("UPDATE accounts SET depth = depth")

    with pytest.raises(LedgerUnavailableError, match="may or may not"):
        ledger.database.transact(ALL_TENANTS, update)
    with pytest.raises(LedgerUnavailableError, match="may or may not"):
        runner.once(request(run))


def test_internal_error_at_the_commit_is_an_error_without_citus(url: str) -> None:
    """Nothing was done."""
    database = Database(url)
    create_organisation(database, "hospital", datetime.now(UTC))
    with database.migration() as tx:
        tx.exec_driver_sql(INTERNAL_ERROR_AT_COMMIT.replace("accounts", "organisations"))
    with pytest.raises(DBAPIError, match="a worker is lost"):
        database.transact(ALL_TENANTS, lambda tx: tx.exec_driver_sql("UPDATE organisations SET name = name"))
    database.dispose()


def test_step_is_rehearsed_by_statements_for_one_worker(ledger: Ledger) -> None:
    """It leaves nothing behind."""
    assert rehearse(ledger.database) is None
    with ledger.database.read(ALL_TENANTS) as tx:
        assert tx.execute(select(stored_runs)).all() == []


@pytest.mark.parametrize("broken", [(), ("b:2",), ("a:1", "b:2")])
def test_step_is_rehearsed_on_each_worker(url: str, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]) -> None:
    """Only if no worker takes a step, the database takes none."""
    unused = {"a:1": "org_000000000000001", "b:2": "org_000000000000002"}
    monkeypatch.setattr(citus, "is_distributed", lambda _: True)
    monkeypatch.setattr(citus, "unused_ids", lambda _: unused)
    silent = {unused[worker] for worker in broken}
    monkeypatch.setattr(rehearsal, "rehearse", lambda _, owner: Fault.SILENT if owner in silent else None)
    database = Database(url)
    faults = dict.fromkeys(broken, Fault.SILENT)
    assert rehearse_everywhere(database) == Rehearsal(Fault.SILENT if len(broken) == 2 else None, faults)
    database.dispose()


def test_server_without_citus_is_not_distributed(url: str) -> None:
    """The message says how a cluster is set up."""
    database = Database(url)
    with pytest.raises(InvalidInputError, match="CREATE EXTENSION citus"):
        citus.distribute(database)
    database.dispose()


def test_table_has_a_place_on_citus() -> None:
    """Its organisation is the distribution column of each table that is not copied to every node."""
    statements = {name: citus.distribution_of(name) for name in metadata.tables}
    assert {name for name, statement in statements.items() if "create_reference_table" in statement} == {
        *("api_keys", "sessions", "sign_in_links")
    }
    for name, table in metadata.tables.items():
        column = "id" if name == "organisations" else "organisation_id"
        assert next(iter(table.primary_key)).name == column
        assert name in citus.REFERENCE_TABLES or f"create_distributed_table('{name}', '{column}'" in statements[name]


def test_unique_constraint_has_the_organisation_unless_it_is_known_to_be_lost() -> None:
    """Citus refuses a unique constraint of a distributed table without its distribution column."""
    lost = set()
    for name, table in metadata.tables.items():
        column = table.c.id if name == "organisations" else table.c.organisation_id
        unique: list[Any] = [each for each in table.constraints if type(each).__name__ == "UniqueConstraint"]
        unique += [index for index in table.indexes if index.unique]
        if name not in citus.REFERENCE_TABLES:
            lost |= {each.name for each in unique if column not in set(each.columns)}
    assert lost == set(citus.LOST_CONSTRAINTS)
