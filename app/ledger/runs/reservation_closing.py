"""Closing reservations: by the trainer's report, unused, or because the trainer is gone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.ledger.errors import InvalidInputError, ReservationStateConflictError
from app.ledger.runs.reservations import Reservation, ReservationStatus, ReservedItem, closed_error, remaining_items
from app.ledger.step_events import StepEvent


@dataclass(frozen=True, slots=True)
class ReservationClose:
    """The result of closing a reservation, in the order of its items.

    Args:
        reported: executed steps to charge although they had been revoked.
        forfeited: steps to charge because their release cannot be ruled out.
        replayed: whether it was already closed in the same way; then `charged` is empty and nothing remains to do.
    """

    reservation: Reservation
    charged: tuple[StepEvent, ...] = ()
    reported: tuple[StepEvent, ...] = ()
    returned: tuple[StepEvent, ...] = ()
    forfeited: tuple[StepEvent, ...] = ()
    replayed: bool = False


def commit(reservation: Reservation, steps_executed: int) -> ReservationClose:
    """Close an active reservation with the number of executed steps, authorised or not.

    The caller forfeits a lapsed one first. Steps beyond the authorised ones are charged in the order of items: first
    those still left, then those revoked. The rest of the reservation is returned.

    Raises:
        ReservationClosedError: it ended before, in another way.
        InvalidInputError: fewer steps than were authorised, or more than were reserved.
    """
    if reservation.status is not ReservationStatus.ACTIVE:
        if reservation.status is ReservationStatus.COMMITTED and reservation.steps_executed == steps_executed:
            return ReservationClose(reservation, returned=remaining_items(reservation), replayed=True)
        raise closed_error(reservation)
    further = steps_executed - reservation.steps_used
    if further < 0:
        raise InvalidInputError(
            f"{steps_executed} steps cannot have been executed: {reservation.steps_used} were authorised, and "
            f"authorised steps are spent. Send at least {reservation.steps_used}."
        )
    if steps_executed > reservation.steps_reserved:
        raise InvalidInputError(
            f"{steps_executed} steps are more than the {reservation.steps_reserved} reserved ones. Commit those, and "
            "report the others as steps of the run."
        )
    items, charged = _use_next(reservation.items, further, [item.left for item in reservation.items])
    further -= sum(step.count for step in charged)
    items, reported = _use_next(items, further, [item.unused for item in items])
    closed = replace(reservation, status=ReservationStatus.COMMITTED, items=items, steps_executed=steps_executed)
    return ReservationClose(closed, charged=charged, reported=reported, returned=remaining_items(closed))


def _use_next(
    items: Sequence[ReservedItem], count: int, most: Sequence[int]
) -> tuple[tuple[ReservedItem, ...], tuple[StepEvent, ...]]:
    """Use `count` further steps in the order of items, at most `most` of each item."""
    used, taken = [], []
    for item, left in zip(items, most, strict=True):
        now = min(left, count)
        count -= now
        used.append(replace(item, used=item.used + now))
        if now:
            taken.append(StepEvent(item.event, now))
    return tuple(used), tuple(taken)


def void(reservation: Reservation) -> ReservationClose:
    """Close an active, unused reservation and return all of it.

    The caller forfeits a lapsed one first.

    Raises:
        ReservationClosedError: it ended before, in another way.
        ReservationStateConflictError: steps were authorised under it.
    """
    if reservation.status is ReservationStatus.VOIDED:
        return ReservationClose(reservation, returned=remaining_items(reservation), replayed=True)
    if reservation.status is not ReservationStatus.ACTIVE:
        raise closed_error(reservation)
    if reservation.steps_used:
        raise ReservationStateConflictError(
            f"{reservation.steps_used} steps were authorised under this reservation, so it cannot be voided. Commit it "
            "with the number of steps executed; what is left is returned.",
            steps_authorized=reservation.steps_used,
        )
    return ReservationClose(
        replace(reservation, status=ReservationStatus.VOIDED), returned=remaining_items(reservation)
    )


def forfeit(reservation: Reservation) -> ReservationClose:
    """Close a reservation whose trainer is gone, charging the rest of it.

    A reservation that was granted to a trainer that never claimed it is returned instead: nobody has executed its
    steps.
    """
    if reservation.status is ReservationStatus.ACTIVE and not reservation.is_claimed:
        return void(reservation)
    if reservation.status not in {ReservationStatus.ACTIVE, ReservationStatus.FORFEITED}:
        raise closed_error(reservation)
    return ReservationClose(
        replace(reservation, status=ReservationStatus.FORFEITED),
        forfeited=remaining_items(reservation),
        replayed=reservation.status is ReservationStatus.FORFEITED,
    )
