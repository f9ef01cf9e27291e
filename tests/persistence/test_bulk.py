"""Writes of many rows at once: whatever is written is there, and no row is written over another state."""

from collections.abc import Callable

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from app.ledger.errors import LedgerUnavailableError
from app.ledger.runs.run import Run
from app.persistence.bulk import BulkStatement
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import runs
from app.persistence.tables import decision_events, organisations
from app.persistence.tables import runs as stored_runs
from tests.api.trainer import hired
from tests.conftest import Ledger
from tests.service.step_commands import CommandRunner, request

pytestmark = pytest.mark.both_databases

HOSTILE = ['"', "\\", "{}", "NULL", "null", "a,b", "", " ", "'; --", "\n", "é\u2028\U0001f512", '\\"', "%(name)s", "$1"]


@pytest.fixture
def charged(ledger: Ledger) -> tuple[CommandRunner, Run]:
    run, runner = hired(ledger).run, CommandRunner(ledger)
    runner.charged(request(run))
    with ledger.database.read(ALL_TENANTS) as tx:
        stored = runs.get(tx, runner.organisation_id, run)
    return runner, stored


def test_text_is_written_as_it_is_when_it_looks_like_syntax(charged: tuple[CommandRunner, Run], ledger: Ledger) -> None:
    named = BulkStatement(organisations, ["policy"], ["id"])
    runner, _ = charged
    for text in (*HOSTILE, None):
        with ledger.database.write(ALL_TENANTS) as tx:
            named.execute(tx, [(runner.organisation_id, text)])
            found = tx.execute(select(organisations.c.policy).where(organisations.c.id == runner.organisation_id))
            assert found.scalar_one() == text


def test_number_and_hash_are_written_as_they_are(charged: tuple[CommandRunner, Run], ledger: Ledger) -> None:
    runner, run = charged
    with ledger.database.write(ALL_TENANTS) as tx:
        [event] = tx.execute(select(stored_runs.c.event_fingerprint)).scalars()
        added = BulkStatement(decision_events, [column.name for column in decision_events.c])
        rows = [(runner.organisation_id, run.account_id, 0, item, event, 10**item, f"[{item + 1}]") for item in (1, 9)]
        added.execute(tx, rows)
        assert [tuple(row) for row in tx.execute(select(decision_events).order_by(decision_events.c.item))] == rows


@pytest.mark.parametrize("save", [runs.save_all, runs.advance_all])
def test_run_is_not_written_when_its_state_has_changed(
    charged: tuple[CommandRunner, Run], ledger: Ledger, save: Callable[..., None]
) -> None:
    runner, run = charged
    after = run._replace(next_step=7, chain_head=b"y" * 32)

    def write(before: Run) -> None:
        with ledger.database.write(ALL_TENANTS) as tx:
            save(tx, [(runner.organisation_id, run, after), (runner.organisation_id, before, after)])

    on_postgresql = ledger.database.dialect == "postgresql"
    for stale in (
        {"chain_head": b"x" * 32},
        {"attempt": 2},
        {"status": "paused"},
        {"account_id": "run_000000000000001"},
    ):
        with pytest.raises(DBAPIError if on_postgresql else LedgerUnavailableError) as failed:
            write(run._replace(**stale))
        assert not on_postgresql or getattr(getattr(failed.value, "orig", None), "sqlstate", None) == "22012"
    with ledger.database.read(ALL_TENANTS) as tx:
        assert runs.get(tx, runner.organisation_id, run.account_id) == run
