"""Reservations and what is left of their plans."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, insert, select, update

from app.accounting.curves import RdpCurve
from app.accounting.events import fingerprint
from app.ledger.plans import PlannedItem
from app.ledger.reservations import Reservation, ReservationStatus
from app.persistence.repositories import events
from app.persistence.tables import account_paths, dp_events, reservation_items, reservations

# Statements of the hot path are built once: building one costs as much as executing it.
_USED = (
    update(reservation_items)
    .where(
        reservation_items.c.organisation_id == bindparam("of_organisation"),
        reservation_items.c.reservation_id == bindparam("of_reservation"),
        reservation_items.c.item == bindparam("of_item"),
    )
    .values(used=bindparam("now_used"))
)


def add(tx: Connection, organisation_id: str, reservation: Reservation, now: datetime) -> None:
    """Append a reservation with its plan; its run and attempt must be there.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        reservation: new, active.
        now: in UTC.
    """
    events.remember(tx, organisation_id, [item.event for item in reservation.items])
    tx.execute(
        insert(reservations).values(
            organisation_id=organisation_id,
            id=reservation.id,
            run_id=reservation.run_id,
            attempt=reservation.attempt,
            status=str(reservation.status),
            reserved=reservation.reserved.to_bytes(),
            reserved_delta=reservation.reserved.delta,
            lease_seconds=reservation.lease_seconds,
            expires_at=reservation.expires_at,
            created_at=now,
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
                "used": item.used,
            }
            for place, item in enumerate(reservation.items)
        ],
    )


def get_many(tx: Connection, organisation_id: str, reservation_ids: Iterable[str]) -> list[Reservation]:
    """The reservations with these ids, in the order of their making; unknown ones are left out.

    Nothing is locked: whoever writes holds the run's own account, and a reservation changes only under that lock.
    """
    return _read(tx, organisation_id, _of(organisation_id).where(reservations.c.id.in_(set(reservation_ids))))


def find(tx: Connection, organisation_id: str, reservation_id: str) -> Reservation | None:
    """The reservation with this id."""
    return next(iter(get_many(tx, organisation_id, [reservation_id])), None)


def find_active(tx: Connection, organisation_id: str, run_id: str) -> Reservation | None:
    """The active reservation of a run; a run has one at the most."""
    found = _of(organisation_id).where(
        reservations.c.run_id == run_id, reservations.c.status == str(ReservationStatus.ACTIVE)
    )
    return next(iter(_read(tx, organisation_id, found)), None)


def lapsed(tx: Connection, now: datetime, limit: int) -> list[tuple[str, str, str]]:
    """Active reservations whose lease has run out, of every organisation, the oldest first.

    Args:
        tx: the caller's transaction.
        now: in UTC.
        limit: how many at the most.

    Returns:
        (organisation, run, reservation) of each.
    """
    found = (
        select(reservations.c.organisation_id, reservations.c.run_id, reservations.c.id)
        .where(reservations.c.status == str(ReservationStatus.ACTIVE), reservations.c.expires_at <= now)
        .order_by(reservations.c.expires_at)
        .limit(limit)
    )
    return [(row.organisation_id, row.run_id, row.id) for row in tx.execute(found)]


def reserved_beneath(tx: Connection, organisation_id: str, account_id: str) -> list[tuple[str, RdpCurve]]:
    """What the active reservations beneath an account hold: what its held curve is the sum of.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        account_id: a population or a budget.

    Returns:
        (reservation, whole plan's curve) of each.
    """
    found = (
        select(reservations.c.id, reservations.c.reserved, reservations.c.reserved_delta)
        .join(
            account_paths,
            (account_paths.c.organisation_id == reservations.c.organisation_id)
            & (account_paths.c.account_id == reservations.c.run_id),
        )
        .where(
            reservations.c.organisation_id == organisation_id,
            reservations.c.status == str(ReservationStatus.ACTIVE),
            account_paths.c.ancestor_id == account_id,
        )
    )
    return [(row.id, RdpCurve.from_bytes(row.reserved, row.reserved_delta)) for row in tx.execute(found)]


def save_items(tx: Connection, organisation_id: str, changed: Iterable[Reservation]) -> None:
    """Write how much of some plans is used."""
    rows = [
        {
            "of_organisation": organisation_id,
            "of_reservation": reservation.id,
            "of_item": place,
            "now_used": item.used,
        }
        for reservation in changed
        for place, item in enumerate(reservation.items)
    ]
    if rows:
        tx.execute(_USED, rows)


def save_lease(tx: Connection, organisation_id: str, reservation: Reservation) -> None:
    """Write until when a reservation's trainer may be silent."""
    tx.execute(_this(organisation_id, reservation).values(expires_at=reservation.expires_at))


def close(tx: Connection, organisation_id: str, closed: Reservation, now: datetime) -> None:
    """Write how a reservation has ended, and what of its plan was used.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        closed: no longer active.
        now: in UTC.
    """
    assert closed.status is not ReservationStatus.ACTIVE, "an end is written once"
    save_items(tx, organisation_id, [closed])
    tx.execute(
        _this(organisation_id, closed).values(
            status=str(closed.status), closed_at=now, steps_executed=closed.steps_executed
        )
    )


def _this(organisation_id: str, reservation: Reservation) -> Any:  # noqa: ANN401 - an UPDATE has no public type parameters
    return update(reservations).where(
        reservations.c.organisation_id == organisation_id, reservations.c.id == reservation.id
    )


def _of(organisation_id: str) -> Select[Any]:
    return select(reservations).where(reservations.c.organisation_id == organisation_id).order_by(reservations.c.id)


def _read(tx: Connection, organisation_id: str, found: Select[Any]) -> list[Reservation]:
    rows = tx.execute(found).all()
    plans = _plans(tx, organisation_id, [row.id for row in rows])
    return [_reservation(row, plans[row.id]) for row in rows]


def _plans(tx: Connection, organisation_id: str, reservation_ids: Sequence[str]) -> dict[str, tuple[PlannedItem, ...]]:
    if not reservation_ids:
        return {}
    found = (
        select(
            reservation_items.c.reservation_id,
            reservation_items.c.count.label("planned"),
            reservation_items.c.used,
            dp_events.c.canonical,
            dp_events.c.fingerprint,
        )
        .join(
            dp_events,
            (dp_events.c.organisation_id == reservation_items.c.organisation_id)
            & (dp_events.c.fingerprint == reservation_items.c.event_fingerprint),
        )
        .where(
            reservation_items.c.organisation_id == organisation_id,
            reservation_items.c.reservation_id.in_(reservation_ids),
        )
        .order_by(reservation_items.c.reservation_id, reservation_items.c.item)
    )
    plans: dict[str, tuple[PlannedItem, ...]] = {}
    for row in tx.execute(found):
        item = PlannedItem(events.read_event(row.canonical, row.fingerprint), row.planned, row.used)
        plans[row.reservation_id] = (*plans.get(row.reservation_id, ()), item)
    return plans


def _reservation(row: Row[Any], items: tuple[PlannedItem, ...]) -> Reservation:
    return Reservation(
        id=row.id,
        run_id=row.run_id,
        attempt=row.attempt,
        status=ReservationStatus(row.status),
        items=items,
        reserved=RdpCurve.from_bytes(row.reserved, row.reserved_delta),
        lease_seconds=row.lease_seconds,
        expires_at=row.expires_at,
        steps_executed=row.steps_executed,
    )
