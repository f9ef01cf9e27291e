"""Reservations and their items."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Update, func, insert, select, update

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, fingerprint
from app.ledger.runs.reservations import Reservation, ReservationStatus, ReservedItem
from app.persistence.bulk import BulkStatement
from app.persistence.repositories.dp_events import read_event, remember
from app.persistence.repositories.expressions import ACTIVE, join_on, owned_by, values_of
from app.persistence.tables import account_ancestors, accounts, dp_events, reservation_items, reservations

# Steps under a reservation read its row often; only verification reads the curve, which follows from the items.
_PLAIN: Final = (
    *("id", "run_id", "attempt", "lease_seconds", "expires_at", "steps_executed", "created_at"),
    *("wait_until", "granted_at", "claimed_at", "priority"),
)
_RESERVATIONS = select(*(reservations.c[name] for name in (*_PLAIN, "status")))
_EVENT_OF_ITEM = join_on(dp_events, reservation_items, fingerprint="event_fingerprint")
_ITEM: Final = ("organisation_id", "reservation_id", "item")
_USED = BulkStatement(reservation_items, ["authorized_count"], _ITEM)
_REVOKED = BulkStatement(reservation_items, ["revoked_count"], _ITEM)


def add(tx: Connection, organisation_id: str, reservation: Reservation, reserved: RdpCurve, now: datetime) -> None:
    """Add an active or waiting reservation with the exact curve of its items."""
    remember(tx, organisation_id, [item.event for item in reservation.items])
    tx.execute(
        insert(reservations).values(
            organisation_id=organisation_id,
            **values_of(reservation, (*_PLAIN, "status")) | {"created_at": now},
            reserved_curve=reserved.to_bytes(),
            reserved_delta=reserved.delta,
        )
    )
    tx.execute(
        insert(reservation_items),
        [
            {
                "organisation_id": organisation_id,
                "reservation_id": reservation.id,
                "item": place,
                "event_fingerprint": fingerprint(item.event),
                "count": item.count,
                "authorized_count": item.used,
            }
            for place, item in enumerate(reservation.items)
        ],
    )


def get_many(tx: Connection, organisation_id: str, reservation_ids: Sequence[str]) -> list[Reservation]:
    """List reservations by id, ignoring unknown ones.

    Nothing is locked: a writer holds the run's account, and a reservation changes only under that lock.
    """
    mine = reservations.c.organisation_id == organisation_id
    rows = tx.execute(_RESERVATIONS.where(mine, reservations.c.id.in_(reservation_ids))).all()
    items = _items(tx, organisation_id, [row.id for row in rows])
    return [_reservation(row, items[row.id]) for row in rows]


def find(tx: Connection, organisation_id: str, reservation_id: str) -> Reservation | None:
    """Find a reservation by id."""
    return next(iter(get_many(tx, organisation_id, [reservation_id])), None)


def newest_of(tx: Connection, organisation_id: str, run_id: str, limit: int) -> list[Reservation]:
    """List a run's reservations, newest first."""
    mine = _RESERVATIONS.where(owned_by(reservations, organisation_id, run_id=run_id))
    rows = tx.execute(mine.order_by(reservations.c.created_at.desc(), reservations.c.id.desc()).limit(limit)).all()
    items = _items(tx, organisation_id, [row.id for row in rows])
    return [_reservation(row, items[row.id]) for row in rows]


def last_attested(tx: Connection, organisation_id: str, run_id: str) -> int | None:
    """Get the last attested number of executed steps of a run."""
    found = select(reservations.c.steps_executed).where(
        owned_by(reservations, organisation_id, run_id=run_id), reservations.c.steps_executed.is_not(None)
    )
    return tx.execute(found.order_by(reservations.c.closed_at.desc(), reservations.c.id.desc()).limit(1)).scalar()


def active_under(tx: Connection, organisation_id: str, account_id: str) -> list[tuple[str, str]]:
    """List the run and the id of active reservations at or under an account, oldest first."""
    found = (
        select(reservations.c.run_id, reservations.c.id)
        .join(account_ancestors, join_on(account_ancestors, reservations, account_id="run_id"))
        .where(reservations.c.organisation_id == organisation_id, ACTIVE, account_ancestors.c.ancestor_id == account_id)
        .order_by(reservations.c.created_at, reservations.c.id)
    )
    return [(row.run_id, row.id) for row in tx.execute(found)]


def reserved_under(tx: Connection, organisation_id: str, account_id: str, but: str) -> list[tuple[DpEvent, int]]:
    """Sum the reserved events that an account's held curve adds up.

    Those that reach it through partitions are excluded, since their holds do not add up, and so is the reservation
    `but`.
    """
    found = (
        select(
            dp_events.c.canonical_json, dp_events.c.fingerprint, func.sum(reservation_items.c.count).label("reserved")
        )
        .select_from(reservations)
        .join(account_ancestors, join_on(account_ancestors, reservations, account_id="run_id"))
        .join(reservation_items, join_on(reservation_items, reservations, reservation_id="id"))
        .join(dp_events, _EVENT_OF_ITEM)
        .where(
            reservations.c.organisation_id == organisation_id,
            ACTIVE,
            reservations.c.id != but,
            account_ancestors.c.ancestor_id == account_id,
            ~_through_parts(organisation_id, account_id),
        )
        .group_by(dp_events.c.canonical_json, dp_events.c.fingerprint)
    )
    return [(read_event(row.canonical_json, row.fingerprint), int(row.reserved)) for row in tx.execute(found)]


def _through_parts(organisation_id: str, account_id: str) -> ColumnElement[bool]:
    """Build the condition that a parallel account is between run and account."""
    above_run, above_parts = account_ancestors.alias("above_run"), account_ancestors.alias("above_parts")
    between = (
        select(above_run.c.ancestor_id)
        .join(accounts, join_on(accounts, above_run, id="ancestor_id"))
        .join(above_parts, join_on(above_parts, above_run, account_id="ancestor_id"))
        .where(
            owned_by(above_run, organisation_id, account_id=reservations.c.run_id),
            above_parts.c.ancestor_id == account_id,
            accounts.c.max_partitions_per_unit.is_not(None),
        )
    )
    return between.correlate(reservations).exists()


def save_items(tx: Connection, changed: Iterable[tuple[str, Reservation, Iterable[int]]]) -> None:
    """Write the used counts of changed items."""
    rows = [
        (organisation_id, reservation.id, place, reservation.items[place].used)
        for organisation_id, reservation, places in changed
        for place in places
    ]
    if rows:
        _USED.execute(tx, rows)


def save_revoked(tx: Connection, organisation_id: str, changed: Sequence[Reservation]) -> None:
    """Write the revoked counts of reservations; the caller has locked the runs' accounts."""
    _REVOKED.execute(
        tx,
        [
            (organisation_id, reservation.id, place, item.revoked)
            for reservation in changed
            for place, item in enumerate(reservation.items)
        ],
    )


def save_lease(tx: Connection, organisation_id: str, reservation: Reservation) -> None:
    """Write when a lease expires, and that its trainer has claimed it."""
    lease = {"expires_at": reservation.expires_at, "claimed_at": reservation.claimed_at}
    tx.execute(_this(organisation_id, reservation).values(lease))


def save_waiting(tx: Connection, organisation_id: str, reservation: Reservation, now: datetime) -> None:
    """Write what became of a waiting reservation, or its priority."""
    open_now = reservation.status in {ReservationStatus.WAITING, ReservationStatus.ACTIVE}
    tx.execute(
        _this(organisation_id, reservation).values(
            **values_of(reservation, ("status", "expires_at", "granted_at", "priority")),
            closed_at=None if open_now else now,
        )
    )


def close(tx: Connection, organisation_id: str, closed: Reservation, now: datetime) -> None:
    """Write the end of a reservation, and the used counts of its items."""
    assert closed.status is not ReservationStatus.ACTIVE, "an end is written once"
    save_items(tx, [(organisation_id, closed, range(len(closed.items)))])
    tx.execute(
        _this(organisation_id, closed).values(
            status=str(closed.status), closed_at=now, steps_executed=closed.steps_executed
        )
    )


def _this(organisation_id: str, reservation: Reservation) -> Update:
    return update(reservations).where(owned_by(reservations, organisation_id, id=reservation.id))


def _items(tx: Connection, organisation_id: str, reservation_ids: Sequence[str]) -> dict[str, tuple[ReservedItem, ...]]:
    if not reservation_ids:
        return {}
    found = (
        select(
            reservation_items.c.reservation_id,
            reservation_items.c.count.label("reserved"),
            reservation_items.c.authorized_count,
            reservation_items.c.revoked_count,
            dp_events.c.canonical_json,
            dp_events.c.fingerprint,
        )
        .join(dp_events, _EVENT_OF_ITEM)
        .where(
            reservation_items.c.organisation_id == organisation_id,
            reservation_items.c.reservation_id.in_(reservation_ids),
        )
        .order_by(reservation_items.c.reservation_id, reservation_items.c.item)
    )
    items: dict[str, list[ReservedItem]] = {}
    for row in tx.execute(found):
        item = ReservedItem(
            read_event(row.canonical_json, row.fingerprint), row.reserved, row.authorized_count, row.revoked_count
        )
        items.setdefault(row.reservation_id, []).append(item)
    return {reservation_id: tuple(found) for reservation_id, found in items.items()}


def _reservation(row: Row[Any], items: tuple[ReservedItem, ...]) -> Reservation:
    return Reservation(**row._asdict() | {"status": ReservationStatus(row.status), "items": items})
