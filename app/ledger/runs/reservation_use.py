"""Using reservations: steps that are taken from one, and its lease."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from app.ledger.errors import ReservationClosedError, ReservationStateConflictError
from app.ledger.runs.reservation_closing import forfeit
from app.ledger.runs.reservations import Reservation, ReservationStatus, Shortfall, closed_error, has_lapsed
from app.ledger.step_events import StepEvent, counts_of


def take(reservation: Reservation, steps: Sequence[StepEvent], now: datetime) -> Reservation | Shortfall:
    """Take steps from a reservation, all or none, unless it has ended or lapsed."""
    _require_active(reservation, now)
    asked = counts_of(steps)
    left = {item.event: item.left for item in reservation.items}
    for event, count in asked.items():
        if count > left.get(event, 0):
            return Shortfall(event, count, left.get(event, 0), event in left)
    places = {item.event: place for place, item in enumerate(reservation.items) if item.event in asked}
    return used_further(reservation, {places[event]: count for event, count in asked.items()})


def used_further(reservation: Reservation, taken: Mapping[int, int]) -> Reservation:
    """Copy a reservation after further repetitions were authorised, by place of its items."""
    items = list(reservation.items)
    for place, count in taken.items():
        items[place] = replace(items[place], used=items[place].used + count)
    return replace(reservation, items=tuple(items))


def count_covered(reservation: Reservation, steps: Sequence[StepEvent]) -> int:
    """Count the steps, from the first, that a reservation covers."""
    left = {item.event: item.left for item in reservation.items}
    covered = 0
    for step in steps:
        taken = min(step.count, left.get(step.event, 0))
        covered += taken
        if taken < step.count:
            break
        left[step.event] -= taken
    return covered


def is_revoked(reservation: Reservation, step: StepEvent) -> bool:
    """Check whether a lowered limit has revoked the rest of a step's event."""
    return any(item.event == step.event and item.revoked and not item.left for item in reservation.items)


def claim(reservation: Reservation, now: datetime, lapsed_by: datetime) -> Reservation:
    """Take up a reservation after its grant, which restarts its lease; a repeated claim renews it.

    Raises:
        ReservationStateConflictError: it waits, or the rest of its steps was revoked.
        Also ReservationClosedError, as `renew`.
    """
    claimed_at = reservation.claimed_at or (reservation.granted_at and now)
    return replace(_with_new_lease(reservation, now, lapsed_by), claimed_at=claimed_at)


def renew(reservation: Reservation, now: datetime, lapsed_by: datetime) -> Reservation:
    """Restart a lease; one is never shortened if a clock is set back.

    Leases that ended by `lapsed_by` have expired: `now`, except for clock errors.

    Raises:
        ReservationClosedError: it has ended, or its lease has expired.
        ReservationStateConflictError: nobody has claimed it since its grant, it waits, or the rest of its steps was
            revoked: there is nothing left to renew.
    """
    renewed = _with_new_lease(reservation, now, lapsed_by)
    if not reservation.is_claimed:
        raise ReservationStateConflictError(
            f"The reservation was granted at {reservation.granted_at:%Y-%m-%dT%H:%M:%S%z}, and no trainer has claimed "
            "it yet. Claim it first: POST /v1/reservations/{id}/claim.",
            reservation_status=str(reservation.status),
        )
    return renewed


def _with_new_lease(reservation: Reservation, now: datetime, lapsed_by: datetime) -> Reservation:
    _require_active(reservation, lapsed_by)
    if reservation.steps_revoked and not any(item.left for item in reservation.items):
        raise ReservationStateConflictError(
            f"A limit above this run was lowered, and the remaining {reservation.steps_revoked} steps of the "
            "reservation were revoked. Commit it with the number of steps executed; the rest is returned.",
            steps_authorized=reservation.steps_used,
            steps_revoked=reservation.steps_revoked,
        )
    until = now + timedelta(seconds=reservation.lease_seconds)
    return replace(reservation, expires_at=max(reservation.expires_at, until))


def _require_active(reservation: Reservation, now: datetime) -> None:
    if reservation.status is not ReservationStatus.ACTIVE:
        raise closed_error(reservation)
    if has_lapsed(reservation, now):
        closed = forfeit(reservation).reservation
        fate = "is forfeited" if closed.status is ReservationStatus.FORFEITED else "is returned, as nobody claimed it"
        raise ReservationClosedError(
            f"The reservation's lease ran out at {reservation.expires_at.isoformat()}, and what was left "
            f"{fate}. Make a new reservation to go on.",
            reservation_status=str(closed.status),
        )
