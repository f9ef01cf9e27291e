"""Waiting: a reservation that does not fit is granted later, or expires, or is cancelled; one of them, once."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from app.ledger.errors import InvalidInputError, ReservationStateConflictError
from app.ledger.runs.reservations import Reservation, ReservationStatus

LONGEST_WAIT: Final = timedelta(days=366)
"""Maximum time that a reservation may wait."""

MAX_PRIORITY: Final = 100
"""Largest priority; the smallest is its negative."""


def check_wait(wait_until: datetime, now: datetime) -> None:
    """Raise InvalidInputError unless a reservation may wait until then."""
    if not now < wait_until <= now + LONGEST_WAIT:
        raise InvalidInputError(
            f"`wait_until` is {wait_until.isoformat()}, and it is {now.isoformat()} now. A reservation waits until "
            f"a later time, at most {LONGEST_WAIT.days} days from now.",
            field="wait_until",
        )


def has_expired(reservation: Reservation, now: datetime) -> bool:
    """Check whether a reservation has waited in vain."""
    return reservation.status is ReservationStatus.WAITING and now >= reservation.expires_at


def wait(reservation: Reservation, until: datetime) -> Reservation:
    """Let a new reservation wait."""
    return replace(reservation, status=ReservationStatus.WAITING, expires_at=until, wait_until=until)


def grant(reservation: Reservation, now: datetime) -> Reservation:
    """Activate a waiting reservation, whose lease begins."""
    _require_waiting(reservation)
    lease_end = now + timedelta(seconds=reservation.lease_seconds)
    return replace(reservation, status=ReservationStatus.ACTIVE, granted_at=now, expires_at=lease_end)


def expire(reservation: Reservation) -> Reservation:
    """End a reservation that has waited in vain."""
    _require_waiting(reservation)
    return replace(reservation, status=ReservationStatus.EXPIRED)


def cancel(reservation: Reservation) -> Reservation:
    """End a waiting reservation by request; one that was cancelled before stays so."""
    if reservation.status is ReservationStatus.CANCELLED:
        return reservation
    _require_waiting(reservation)
    return replace(reservation, status=ReservationStatus.CANCELLED)


def prioritize(reservation: Reservation, priority: int) -> Reservation:
    """Move a waiting reservation in the order of those that wait.

    Raises:
        InvalidInputError: the priority is out of range.
        ReservationStateConflictError: the reservation does not wait.
    """
    if abs(priority) > MAX_PRIORITY:
        raise InvalidInputError(f"`priority` is -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority}.", field="priority")
    _require_waiting(reservation)
    return replace(reservation, priority=priority)


def _require_waiting(reservation: Reservation) -> None:
    if reservation.status is not ReservationStatus.WAITING:
        raise ReservationStateConflictError(
            f"The reservation does not wait: it is {reservation.status}.",
            reservation_status=str(reservation.status),
        )
