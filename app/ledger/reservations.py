"""A reservation: what is set aside for a declared plan, step by step used, and closed for ever.

All that is decided here is counted in whole repetitions of events; what they cost follows from the price list. So
reserved = committed + returned + forfeited holds by counting, and for every curve that the counts are multiplied with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent
from app.ledger.accounts import StepEvent
from app.ledger.errors import InvalidInputError, ReservationClosedError, ReservationStateConflictError
from app.ledger.plans import PlannedItem


class ReservationStatus(StrEnum):
    """Where a reservation is in its life; all but the first are its end."""

    ACTIVE = "active"
    COMMITTED = "committed"
    VOIDED = "voided"
    FORFEITED = "forfeited"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A plan, and what was set aside for it on every account of a run's path.

    Args:
        id: with its type prefix.
        run_id: whose steps are planned.
        attempt: of the run, when the plan was made.
        status: active, or how it ended.
        items: each event once, in the order of the plan.
        lease_seconds: how long the trainer may be silent.
        expires_at: when silence forfeits what is left.
        steps_executed: what the trainer has attested; None unless committed.
    """

    id: str
    run_id: str
    attempt: int
    status: ReservationStatus
    items: tuple[PlannedItem, ...]
    lease_seconds: int
    expires_at: datetime
    steps_executed: int | None = None

    @property
    def steps_used(self) -> int:
        """How many steps were authorised under it."""
        return sum(item.used for item in self.items)

    @property
    def steps_planned(self) -> int:
        """How many steps its plan stands for."""
        return sum(item.count for item in self.items)

    @property
    def steps_withdrawn(self) -> int:
        """How many of them a lowered limit has withdrawn."""
        return sum(item.withdrawn for item in self.items)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why steps cannot be taken under a reservation.

    Args:
        event: the first one of which not enough is left.
        asked: how many repetitions of it the steps stand for.
        left: how many the plan still holds.
        planned: whether the plan has the event at all.
    """

    event: DpEvent
    asked: int
    left: int
    planned: bool


@dataclass(frozen=True, slots=True)
class ReservationClose:
    """How a reservation ends.

    Args:
        reservation: as it is afterwards.
        charged: further steps that were executed, in plan order; they are charged with the closing.
        reported: further steps that were executed although they had been withdrawn; they are charged, too.
        returned: what is set aside no longer.
        forfeited: what is charged because nobody can say that it was not released.
        replayed: whether it was closed in the same way before; then nothing is to be done, and `charged` is empty.
    """

    reservation: Reservation
    charged: tuple[StepEvent, ...] = ()
    reported: tuple[StepEvent, ...] = ()
    returned: tuple[StepEvent, ...] = ()
    forfeited: tuple[StepEvent, ...] = ()
    replayed: bool = False


def remaining_items(reservation: Reservation) -> tuple[StepEvent, ...]:
    """What is reserved: planned, and neither authorised nor charged; withdrawn steps are part of it.

    Args:
        reservation: in any state.

    Returns:
        In plan order; empty if all was used.
    """
    return tuple(StepEvent(item.event, item.unused) for item in reservation.items if item.unused)


def has_lapsed(reservation: Reservation, now: datetime) -> bool:
    """Whether a reservation is active by its row only: its lease has run out, and what is left is to be forfeited."""
    return reservation.status is ReservationStatus.ACTIVE and now >= reservation.expires_at


def take(reservation: Reservation, steps: Sequence[StepEvent], now: datetime) -> Reservation | Shortfall:
    """Take steps out of a plan.

    Args:
        reservation: under which they are taken.
        steps: of one request, at least one; all or none of them are taken.
        now: an aware moment.

    Returns:
        The reservation with more of its plan used, or the reason why not.

    Raises:
        ReservationClosedError: it has ended, or its lease has run out.
    """
    _require_active(reservation, now)
    asked: dict[DpEvent, int] = {}
    for step in steps:
        asked[step.event] = asked.get(step.event, 0) + step.count
    left = {item.event: item.left for item in reservation.items}
    for event, count in asked.items():
        if count > left.get(event, 0):
            return Shortfall(event, count, left.get(event, 0), event in left)
    return replace(
        reservation,
        items=tuple(
            replace(item, used=item.used + asked[item.event]) if item.event in asked else item
            for item in reservation.items
        ),
    )


def first_covered(reservation: Reservation, steps: Sequence[StepEvent]) -> int:
    """Count the steps that a plan covers, from the first.

    Args:
        reservation: under which they would be taken.
        steps: of one request.

    Returns:
        0 if not even the first one is covered.
    """
    left = {item.event: item.left for item in reservation.items}
    covered = 0
    for step in steps:
        taken = min(step.count, left.get(step.event, 0))
        covered += taken
        if taken < step.count:
            break
        left[step.event] -= taken
    return covered


def is_withdrawn(reservation: Reservation, step: StepEvent) -> bool:
    """Whether a lowered limit has withdrawn what a plan had left of a step's event."""
    return any(item.event == step.event and item.withdrawn and not item.left for item in reservation.items)


def extend(reservation: Reservation, now: datetime, lapsed_by: datetime) -> Reservation:
    """Answer a renewal.

    Args:
        reservation: whose trainer is alive.
        now: an aware moment.
        lapsed_by: a lease that ended by then has run out; `now`, but for the error of a clock.

    Returns:
        The reservation with a whole lease from now; a clock that was set back shortens none.

    Raises:
        ReservationClosedError: it has ended, or its lease has run out.
        ReservationStateConflictError: all that was left of its plan was withdrawn: there is nothing to keep it for.
    """
    _require_active(reservation, lapsed_by)
    if reservation.steps_withdrawn and not any(item.left for item in reservation.items):
        raise ReservationStateConflictError(
            f"A limit above this run was lowered, and the {reservation.steps_withdrawn} steps that were left of the "
            "plan were withdrawn. Commit the reservation with the number of steps executed; the rest is returned.",
            steps_authorized=reservation.steps_used,
            steps_withdrawn=reservation.steps_withdrawn,
        )
    until = now + timedelta(seconds=reservation.lease_seconds)
    return replace(reservation, expires_at=max(reservation.expires_at, until))


def commit(reservation: Reservation, steps_executed: int) -> ReservationClose:
    """End a reservation with the trainer's word on how many steps were executed.

    Args:
        reservation: active, and not lapsed; the caller forfeits a lapsed one first.
        steps_executed: all steps of the plan that were executed, authorised or not.

    Returns:
        The rest of the plan is returned; what was executed beyond what was authorised is charged, in plan order:
        first what could still have been authorised, then what was withdrawn.

    Raises:
        ReservationClosedError: it ended before, in another way.
        InvalidInputError: fewer steps than were authorised, or more than were planned.
    """
    if reservation.status is not ReservationStatus.ACTIVE:
        if reservation.status is ReservationStatus.COMMITTED and reservation.steps_executed == steps_executed:
            return ReservationClose(reservation, returned=remaining_items(reservation), replayed=True)
        raise _terminal(reservation)
    further = steps_executed - reservation.steps_used
    if further < 0:
        raise InvalidInputError(
            f"{steps_executed} steps cannot have been executed: {reservation.steps_used} were authorised, and what "
            f"was authorised is spent. Send at least {reservation.steps_used}."
        )
    if steps_executed > reservation.steps_planned:
        raise InvalidInputError(
            f"{steps_executed} steps are more than the {reservation.steps_planned} of the plan. Commit those of the "
            "plan, and report the others as steps of the run."
        )
    items, charged = _first(reservation.items, further, [item.left for item in reservation.items])
    further -= sum(step.count for step in charged)
    items, reported = _first(items, further, [item.unused for item in items])
    closed = replace(reservation, status=ReservationStatus.COMMITTED, items=items, steps_executed=steps_executed)
    return ReservationClose(closed, charged=charged, reported=reported, returned=remaining_items(closed))


def _first(
    items: Sequence[PlannedItem], count: int, most: Sequence[int]
) -> tuple[tuple[PlannedItem, ...], tuple[StepEvent, ...]]:
    """Use so many further steps of a plan, in its order, of each item at the most so many."""
    used, taken = [], []
    for item, left in zip(items, most, strict=True):
        now = min(left, count)
        count -= now
        used.append(replace(item, used=item.used + now))
        if now:
            taken.append(StepEvent(item.event, now))
    return tuple(used), tuple(taken)


def void(reservation: Reservation) -> ReservationClose:
    """End a reservation of which nothing was used.

    Args:
        reservation: active, and not lapsed; the caller forfeits a lapsed one first.

    Returns:
        The whole plan is returned.

    Raises:
        ReservationClosedError: it ended before, in another way.
        ReservationStateConflictError: steps were authorised under it.
    """
    if reservation.status is ReservationStatus.VOIDED:
        return ReservationClose(reservation, returned=remaining_items(reservation), replayed=True)
    if reservation.status is not ReservationStatus.ACTIVE:
        raise _terminal(reservation)
    if reservation.steps_used:
        raise ReservationStateConflictError(
            f"{reservation.steps_used} steps were authorised under this reservation, so it cannot be voided. Commit it "
            "with the number of steps executed; what is left of its plan is returned.",
            steps_authorized=reservation.steps_used,
        )
    return ReservationClose(
        replace(reservation, status=ReservationStatus.VOIDED),
        returned=remaining_items(reservation),
    )


def forfeit(reservation: Reservation) -> ReservationClose:
    """End a reservation whose trainer fell silent: it may have released everything.

    Args:
        reservation: whose lease has run out, or whose run was given up.

    Returns:
        What is left of the plan is forfeited: it is charged.

    Raises:
        ReservationClosedError: it ended before, in another way.
    """
    if reservation.status not in {ReservationStatus.ACTIVE, ReservationStatus.FORFEITED}:
        raise _terminal(reservation)
    return ReservationClose(
        replace(reservation, status=ReservationStatus.FORFEITED),
        forfeited=remaining_items(reservation),
        replayed=reservation.status is ReservationStatus.FORFEITED,
    )


def subtract_hold(held: RdpCurve, cost: RdpCurve) -> RdpCurve:
    """What is still held after something was taken out of it.

    Args:
        held: a sum that `cost` is a part of.
        cost: what is taken.

    Returns:
        The difference; an order that is exhausted stays so, since what was cut off there cannot be subtracted.
        `is_exact` says whether that is the sum of the rest.

    Raises:
        ValueError: more is taken than is held.
    """
    rest = held.values - cost.values
    rest[held.values == EXHAUSTED] = EXHAUSTED
    return RdpCurve(rest, held.delta - cost.delta)


def is_exact(held: RdpCurve, left: Iterable[RdpCurve]) -> bool:
    """Whether `taken_out` gives the very sum of what is left.

    Args:
        held: before something was taken out of it.
        left: of which curves something is left; no more of them are looked at than are needed.

    Returns:
        True if one repetition of what is left exhausts every order at which `held` is exhausted, as every Gaussian
        exhausts the order that stands for infinity.
    """
    doubtful = np.flatnonzero(held.values == EXHAUSTED)
    for curve in left:
        if not doubtful.size:
            break
        doubtful = doubtful[curve.values[doubtful] != EXHAUSTED]
    return not doubtful.size and held.delta != EXHAUSTED


def _require_active(reservation: Reservation, now: datetime) -> None:
    if reservation.status is not ReservationStatus.ACTIVE:
        raise _terminal(reservation)
    if has_lapsed(reservation, now):
        raise ReservationClosedError(
            f"The reservation's lease ran out at {reservation.expires_at.isoformat()}, and what was left of its plan "
            "is forfeited. Make a new reservation to go on.",
            reservation_status=str(ReservationStatus.FORFEITED),
        )


def _terminal(reservation: Reservation) -> ReservationClosedError:
    executed = f" with {reservation.steps_executed} steps executed" if reservation.steps_executed is not None else ""
    return ReservationClosedError(
        f"The reservation was {reservation.status}{executed}, and stays so. Make a new reservation to go on.",
        reservation_status=str(reservation.status),
    )
