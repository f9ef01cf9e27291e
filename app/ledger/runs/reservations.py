"""Reservations: loss held for steps until they are used or closed.

Everything here is counted in repetitions of events; their cost follows from the cost table. So reserved = committed +
returned + forfeited holds for the counts, and for every curve multiplied by them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from app.accounting.events import DpEvent
from app.ledger.errors import (
    InvalidInputError,
    LedgerError,
    ReservationClosedError,
    ReservationStateConflictError,
)
from app.ledger.step_events import MAX_COUNT, StepEvent, counts_of


@dataclass(frozen=True, slots=True)
class ReservedItem:
    """Reserved and authorised repetitions of an event, 1 to 1e9.

    `revoked` ones are no longer authorised since a limit was lowered; they stay reserved until the trainer reports
    whether they were executed (ADR 0026).
    """

    event: DpEvent
    count: int
    used: int = 0
    revoked: int = 0

    def __post_init__(self) -> None:
        """Check the invariants of the counts."""
        assert 1 <= self.count <= MAX_COUNT, "a reservation holds at least one repetition of each of its events"
        assert 0 <= self.used <= self.count, "no more is used than reserved"
        assert 0 <= self.revoked <= self.count, "at most the reserved steps are revoked"

    @property
    def left(self) -> int:
        """Number of repetitions that may still be authorised."""
        return max(0, self.unused - self.revoked)

    @property
    def unused(self) -> int:
        """Number of reserved repetitions that are neither authorised nor charged."""
        return self.count - self.used


def items_of(steps: Sequence[StepEvent]) -> tuple[ReservedItem, ...]:
    """Merge steps into items with each event once, in order of first occurrence."""
    if not steps:
        raise InvalidInputError("A reservation has at least one step event.")
    counts = counts_of(steps)
    most = max(counts.values())
    if most > MAX_COUNT:
        raise InvalidInputError(
            f"{most} repetitions of one event are to be reserved; at most {MAX_COUNT} can be for a run at once."
        )
    return tuple(ReservedItem(event, count) for event, count in counts.items())


class ReservationStatus(StrEnum):
    """Status of a reservation; all but the first two are final."""

    WAITING = "waiting"
    ACTIVE = "active"
    COMMITTED = "committed"
    VOIDED = "voided"
    FORFEITED = "forfeited"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


NEVER_HELD: Final = frozenset({ReservationStatus.WAITING, ReservationStatus.EXPIRED, ReservationStatus.CANCELLED})
"""Statuses of reservations for which nothing is held, nor was."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Steps, each event once, held on every account of a run's path unless they wait for that.

    Args:
        attempt: of the run at creation.
        expires_at: when the rest is forfeited without renewal, or when a waiting reservation expires.
        steps_executed: attested by the trainer; None unless committed.
        created_at: when it was requested; None: now.
        wait_until: until when it waits, or would have waited; None: it was held at once or refused.
        granted_at: when it was held after it had waited.
        claimed_at: when its trainer has claimed it since.
        priority: in the order of those that wait, -100 to 100.
    """

    id: str
    run_id: str
    attempt: int
    status: ReservationStatus
    items: tuple[ReservedItem, ...]
    lease_seconds: int
    expires_at: datetime
    steps_executed: int | None = None
    created_at: datetime | None = None
    wait_until: datetime | None = None
    granted_at: datetime | None = None
    claimed_at: datetime | None = None
    priority: int = 0

    @property
    def is_claimed(self) -> bool:
        """Whether its trainer knows that it is held, and may have executed its steps."""
        return self.granted_at is None or self.claimed_at is not None or self.steps_used > 0

    @property
    def steps_used(self) -> int:
        """Number of authorised steps."""
        return sum(item.used for item in self.items)

    @property
    def steps_reserved(self) -> int:
        """Number of reserved steps."""
        return sum(item.count for item in self.items)

    @property
    def steps_revoked(self) -> int:
        """Number of reserved steps revoked by lowered limits."""
        return sum(item.revoked for item in self.items)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The first event with too few repetitions left in a reservation."""

    event: DpEvent
    asked: int
    left: int
    is_reserved: bool


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


def remaining_items(reservation: Reservation) -> tuple[StepEvent, ...]:
    """List the reserved steps, in the order of items, that are neither authorised nor charged."""
    return tuple(StepEvent(item.event, item.unused) for item in reservation.items if item.unused)


def has_lapsed(reservation: Reservation, now: datetime) -> bool:
    """Check whether the lease of an active reservation has expired."""
    return reservation.status is ReservationStatus.ACTIVE and now >= reservation.expires_at


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
        raise _closed_error(reservation)
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
        raise _closed_error(reservation)
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
        raise _closed_error(reservation)
    return ReservationClose(
        replace(reservation, status=ReservationStatus.FORFEITED),
        forfeited=remaining_items(reservation),
        replayed=reservation.status is ReservationStatus.FORFEITED,
    )


def _require_active(reservation: Reservation, now: datetime) -> None:
    if reservation.status is not ReservationStatus.ACTIVE:
        raise _closed_error(reservation)
    if has_lapsed(reservation, now):
        closed = forfeit(reservation).reservation
        fate = "is forfeited" if closed.status is ReservationStatus.FORFEITED else "is returned, as nobody claimed it"
        raise ReservationClosedError(
            f"The reservation's lease ran out at {reservation.expires_at.isoformat()}, and what was left "
            f"{fate}. Make a new reservation to go on.",
            reservation_status=str(closed.status),
        )


def _closed_error(reservation: Reservation) -> LedgerError:
    if reservation.status is ReservationStatus.WAITING:
        return ReservationStateConflictError(
            f"The reservation waits for budget until {reservation.expires_at.isoformat()}, and nothing is held for it "
            "yet. Wait until it is granted, or cancel it.",
            reservation_status=str(reservation.status),
        )
    executed = f" with {reservation.steps_executed} steps executed" if reservation.steps_executed is not None else ""
    return ReservationClosedError(
        f"The reservation was {reservation.status}{executed}, and stays so. Make a new reservation to go on.",
        reservation_status=str(reservation.status),
    )
