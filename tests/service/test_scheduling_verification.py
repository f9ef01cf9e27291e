"""What becomes of plans that wait is proven by the audit log, whatever is written behind its back."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select, update

from app.persistence.tables import audit_entries, reservations, runs
from app.service.verification import verify
from tests.api.waiting import FITTING, START, Queued, Waiting
from tests.conftest import Ledger, furnished
from tests.service.tampering import ALL, TEAM, set_account, tampering


def _waited(ledger: Ledger) -> dict[str, Queued]:
    """Plans of every kind, by name."""
    with pytest.MonkeyPatch.context() as patch:
        return _have_waited(Waiting(ledger, patch))


def _have_waited(office: Waiting) -> dict[str, Queued]:
    office.allocate("mimic", rule="first_come", shares=[{"account": "mimic/icu-team", "weight": 2.0}])
    first = office.held(FITTING - 80, "first")
    plans = {"held": office.held(80, "held")}
    plans |= {name: office.queued(20, name) for name in ("granted", "claimed", "cancelled")}
    plans["expired"] = office.queued(20, "expired", wait_until=office.until(hours=1))
    plans["waiting"] = office.queued(120, "waiting", wait_until=office.until(days=9))
    plans["waiting"].prioritize(-7)
    plans["cancelled"].cancel()
    office.later(hours=1)
    assert office.expired() == 1
    first.end("void")
    assert office.granted() == 2
    assert plans["claimed"].end("renew").status_code == 200
    assert office.sound()
    return plans


def on(name: str, **values: Any) -> Callable[[Connection, dict[str, Queued]], None]:  # noqa: ANN401 - columns
    """Write columns of a reservation."""

    def write(tx: Connection, plans: dict[str, Queued]) -> None:
        changed = update(reservations).where(reservations.c.id == plans[name].plan).values(values)
        assert tx.execute(changed).rowcount == 1

    return write


def forgotten(action: str) -> Callable[[Connection, dict[str, Queued]], None]:
    """Remove the last audit event of an action."""

    def write(tx: Connection, _: dict[str, Queued]) -> None:
        last = select(audit_entries.c.position).where(audit_entries.c.action == action)
        position = max(tx.execute(last).scalars())
        assert tx.execute(delete(audit_entries).where(audit_entries.c.position == position)).rowcount == 1

    return write


def run_of(name: str, status: str) -> Callable[[Connection, dict[str, Queued]], None]:
    def write(tx: Connection, plans: dict[str, Queued]) -> None:
        tx.execute(update(runs).where(runs.c.account_id == plans[name].run).values(status=status))

    return write


def account(path: str, **values: Any) -> Callable[[Connection, dict[str, Queued]], None]:  # noqa: ANN401 - columns
    return lambda tx, _: set_account(tx, path, **values)


LATER = START + timedelta(days=20)

TAMPERINGS: dict[str, Callable[[Connection, dict[str, Queued]], None]] = {
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


FURNISHED = {"plans": _waited}


@pytest.fixture
def plans(ledger: Ledger, database_kind: str) -> dict[str, Queued]:
    """As furnished; only their ids are of use."""
    del ledger
    made: dict[str, Queued] = furnished(database_kind, _waited)[0]
    return made


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_written_behind_the_back_of_the_log_is_named(
    ledger: Ledger, plans: dict[str, Queued], what: str
) -> None:
    with tampering(ledger.database) as tx:
        TAMPERINGS[what](tx, plans)
    assert verify(ledger.database).problems


@pytest.mark.parametrize("name", ["waiting", "granted", "claimed", "cancelled", "expired"])
def test_a_plan_that_was_forgotten_is_named(ledger: Ledger, plans: dict[str, Queued], name: str) -> None:
    with tampering(ledger.database) as tx:
        tx.execute(delete(reservations).where(reservations.c.id == plans[name].plan))
    problems = verify(ledger.database).problems
    assert any(plans[name].plan in problem for problem in problems), problems
