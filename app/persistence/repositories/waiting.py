"""Reservations that wait for budget, and what the shares of budgets have taken."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, distinct, func, select, true

from app.accounting.events import DpEvent
from app.ledger.runs.reservations import NEVER_HELD, ReservationStatus
from app.persistence.repositories.dp_events import read_event
from app.persistence.repositories.expressions import ACTIVE, WAITING, join_on, owned_by_any
from app.persistence.tables import account_ancestors, accounts, dp_events, reservation_items, reservations, runs


class WaitingRow(NamedTuple):
    """A waiting reservation, and the columns by which a change of its run shows; many are read often."""

    id: str
    run_id: str
    priority: int
    run_status: str
    run_version: int


_WAITING = (
    select(reservations.c.id, reservations.c.run_id, reservations.c.priority, runs.c.status, accounts.c.version)
    .join(runs, join_on(runs, reservations, account_id="run_id"))
    .join(accounts, join_on(accounts, reservations, id="run_id"))
    .where(reservations.c.organisation_id == bindparam("of_organisation"), WAITING)
)
_AMONG = _WAITING.where(
    reservations.c.id.in_(bindparam("of_reservations", expanding=True))
    | reservations.c.run_id.in_(bindparam("of_runs", expanding=True))
)
_THROUGH = (
    select(reservations.c.id)
    .join(account_ancestors, join_on(account_ancestors, reservations, account_id="run_id"))
    .where(
        reservations.c.organisation_id == bindparam("of_organisation"),
        WAITING,
        account_ancestors.c.ancestor_id.in_(bindparam("of_accounts", expanding=True)),
    )
    .limit(1)
)


def list_waiting(tx: Connection, organisation_id: str) -> list[WaitingRow]:
    """List the reservations that wait in an organisation, in any order."""
    rows = tx.execute(_WAITING, {"of_organisation": organisation_id}).all()  # far faster than one after the other
    return list(map(WaitingRow._make, rows))


def list_among(
    tx: Connection, organisation_id: str, reservation_ids: Collection[str], run_ids: Collection[str]
) -> list[WaitingRow]:
    """List the reservations that wait, among some and those of some runs."""
    asked = {"of_organisation": organisation_id, "of_reservations": list(reservation_ids), "of_runs": list(run_ids)}
    return [WaitingRow(*row) for row in tx.execute(_AMONG, asked)]


def any_through(tx: Connection, organisation_id: str, account_ids: Collection[str]) -> bool:
    """Check whether a reservation waits that would charge one of the accounts."""
    asked = {"of_organisation": organisation_id, "of_accounts": list(account_ids)}
    return tx.execute(_THROUGH, asked).first() is not None


_COUNTS = (
    select(account_ancestors.c.ancestor_id, func.count())
    .select_from(reservations)
    .join(account_ancestors, join_on(account_ancestors, reservations, account_id="run_id"))
    .where(reservations.c.organisation_id == bindparam("of_organisation"), WAITING)
    .group_by(account_ancestors.c.ancestor_id)
)


def counts(tx: Connection, organisation_id: str) -> dict[str, int]:
    """Count the reservations that wait for each account, by id; accounts without any are left out."""
    return {row[0]: int(row[1]) for row in tx.execute(_COUNTS, {"of_organisation": organisation_id})}


def organisations(tx: Connection, among: Collection[str] | None = None) -> list[str]:
    """List the organisations in which reservations wait, among some, None: all."""
    found = select(reservations.c.organisation_id).where(WAITING, owned_by_any(reservations, among))
    return list(tx.execute(found.distinct()).scalars())


def of_runs(tx: Connection, organisation_id: str, run_ids: Collection[str]) -> dict[str, str]:
    """Get the reservations for which runs wait, by run."""
    found = select(reservations.c.run_id, reservations.c.id).where(
        reservations.c.organisation_id == organisation_id, WAITING, reservations.c.run_id.in_(run_ids)
    )
    return {row.run_id: row.id for row in tx.execute(found)}


def expired(tx: Connection, now: datetime, limit: int, among: Collection[str] | None = None) -> list[tuple[str, str]]:
    """List organisation and id of reservations that have waited in vain, of some organisations, None: of all."""
    found = (
        select(reservations.c.organisation_id, reservations.c.id)
        .where(WAITING, reservations.c.expires_at <= now, owned_by_any(reservations, among))
        .order_by(reservations.c.expires_at, reservations.c.organisation_id, reservations.c.id)
        .limit(limit)
    )
    return [(row.organisation_id, row.id) for row in tx.execute(found)]


def parents(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> dict[str, tuple[str | None, str]]:
    """Get the parent and the population of accounts."""
    found = select(accounts.c.id, accounts.c.parent_id, accounts.c.population_id).where(
        accounts.c.organisation_id == organisation_id, accounts.c.id.in_(account_ids)
    )
    return {row.id: (row.parent_id, row.population_id) for row in tx.execute(found)}


def count_asking(tx: Connection, organisation_id: str, account_id: str, since: datetime, but: str | None = None) -> int:
    """Count the runs under an account that have asked for a reservation since; not the run `but`."""
    found = (
        select(func.count(distinct(reservations.c.run_id)))
        .join(account_ancestors, join_on(account_ancestors, reservations, account_id="run_id"))
        .where(
            reservations.c.organisation_id == organisation_id,
            account_ancestors.c.ancestor_id == account_id,
            reservations.c.created_at >= since,
            true() if but is None else reservations.c.run_id != but,
        )
    )
    return int(tx.execute(found).scalar_one())


def held_since(
    tx: Connection, organisation_id: str, account_id: str, since: datetime | None
) -> list[tuple[DpEvent, int]]:
    """Sum the reserved events of runs under an account that were held since, without what was returned."""
    whole = ACTIVE | (reservations.c.status == str(ReservationStatus.FORFEITED))
    kept = case((whole, reservation_items.c.count), else_=reservation_items.c.authorized_count)
    begun = func.coalesce(reservations.c.granted_at, reservations.c.created_at)
    found = (
        select(dp_events.c.canonical_json, dp_events.c.fingerprint, func.sum(kept).label("kept"))
        .select_from(reservations)
        .join(account_ancestors, join_on(account_ancestors, reservations, account_id="run_id"))
        .join(reservation_items, join_on(reservation_items, reservations, reservation_id="id"))
        .join(dp_events, join_on(dp_events, reservation_items, fingerprint="event_fingerprint"))
        .where(
            reservations.c.organisation_id == organisation_id,
            account_ancestors.c.ancestor_id == account_id,
            reservations.c.status.not_in(sorted(map(str, NEVER_HELD))),
            true() if since is None else begun >= since,
        )
        .group_by(dp_events.c.canonical_json, dp_events.c.fingerprint)
    )
    rows = tx.execute(found).all()
    return [(read_event(row.canonical_json, row.fingerprint), int(row.kept)) for row in rows if row.kept]
