"""What becomes of plans that wait is proven by the audit log, whatever is written behind its back."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select, update

from app.persistence.database import Database
from app.persistence.tables import audit_entries, reservations, runs
from app.service.verification import verify
from tests.api.waiting import START
from tests.conftest import furnished
from tests.service.prepared_ledgers import copied, wait
from tests.service.tampering import ALL, TEAM, set_account, tampering

Plans = dict[str, tuple[str, str]]
"""Run and reservation by name."""

LATER = START + timedelta(days=20)


def on(name: str, **values: Any) -> Callable[[Connection, Plans], None]:  # noqa: ANN401 - columns
    """Write columns of a reservation."""

    def write(tx: Connection, plans: Plans) -> None:
        changed = update(reservations).where(reservations.c.id == plans[name][1]).values(values)
        assert tx.execute(changed).rowcount == 1

    return write


def forgotten(action: str) -> Callable[[Connection, Plans], None]:
    """Remove the last audit event of an action."""

    def write(tx: Connection, _: Plans) -> None:
        last = select(audit_entries.c.position).where(audit_entries.c.action == action)
        position = max(tx.execute(last).scalars())
        assert tx.execute(delete(audit_entries).where(audit_entries.c.position == position)).rowcount == 1

    return write


def run_of(name: str, status: str) -> Callable[[Connection, Plans], None]:
    def write(tx: Connection, plans: Plans) -> None:
        tx.execute(update(runs).where(runs.c.account_id == plans[name][0]).values(status=status))

    return write


def account(path: str, **values: Any) -> Callable[[Connection, Plans], None]:  # noqa: ANN401 - columns
    return lambda tx, _: set_account(tx, path, **values)


TAMPERINGS: dict[str, Callable[[Connection, Plans], None]] = {
    "a plan that waits is active": on("waiting", status="active", granted_at=LATER),
    "a plan that waits is active at once": on("waiting", status="active", wait_until=None, priority=0),
    "a plan that waits was cancelled": on("waiting", status="cancelled", closed_at=LATER),
    "a plan that waits has expired": on("waiting", status="expired", closed_at=LATER),
    "a plan that waits was voided": on("waiting", status="voided", closed_at=LATER),
    "a plan waits longer": on("waiting", wait_until=LATER),
    "a plan waits in another place": on("waiting", priority=100),
    "a granted plan waits": on("granted", status="waiting", granted_at=None),
    "a granted plan has expired": on("granted", status="expired", granted_at=None, closed_at=LATER),
    "a granted plan was voided": on("granted", status="voided", closed_at=LATER),
    "a plan was granted later": on("granted", granted_at=LATER),
    "a plan was not granted but held": on("granted", granted_at=None, wait_until=None),
    "a claimed plan had another priority": on("claimed", priority=1),
    "a cancelled plan waits": on("cancelled", status="waiting", closed_at=None),
    "a cancelled plan has expired": on("cancelled", status="expired"),
    "an expired plan waits": on("expired", status="waiting", closed_at=None),
    "an expired plan was cancelled": on("expired", status="cancelled"),
    "an expired plan was active": on("expired", status="active", closed_at=None, granted_at=LATER),
    "a plan that was held at once has waited": on("held", wait_until=LATER),
    "a plan that was held at once was granted": on("held", wait_until=LATER, granted_at=LATER),
    "a plan that was held at once waits": on("held", status="waiting", wait_until=LATER),
    "a run that waits is active": run_of("waiting", "active"),
    "a run that was granted waits": run_of("granted", "waiting"),
    "a run that was not granted waits": run_of("expired", "waiting"),
    "a population without its allocation": account(ALL, allocation=None),
    "a population's allocation never changed": account(ALL, allocation_revision=0),
    "a budget with an allocation": account(
        TEAM, allocation='{"aging_seconds":null,"rule":null,"shares":{},"unlock":null}'
    ),
    "a plan that was never queued": forgotten("reservation.queued"),
    "a plan that was never granted": forgotten("reservation.granted"),
    "a plan that never expired": forgotten("reservation.expired"),
    "a plan that was never cancelled": forgotten("reservation.cancelled"),
    "a plan whose priority never changed": forgotten("reservation.prioritized"),
    "an allocation that was never replaced": forgotten("allocation.replaced"),
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with copied("waiting", tmp_path) as opened:
        yield opened


@pytest.fixture
def plans() -> Plans:
    """Runs and reservations of the prepared ledger."""
    made: Plans = furnished("sqlite", wait)[0]
    return made


@pytest.mark.parametrize("what", TAMPERINGS)
def test_rows_of_waiting_plans_are_held_against_the_audit_log(database: Database, plans: Plans, what: str) -> None:
    with tampering(database) as tx:
        TAMPERINGS[what](tx, plans)
    assert verify(database).problems


@pytest.mark.parametrize("name", ["waiting", "granted", "claimed", "cancelled", "expired"])
def test_deleted_plan_that_waited_is_named(database: Database, plans: Plans, name: str) -> None:
    with tampering(database) as tx:
        tx.execute(delete(reservations).where(reservations.c.id == plans[name][1]))
    problems = verify(database).problems
    assert any(plans[name][1] in problem for problem in problems), problems
