"""Reservations: loss held for steps until they are used or closed.

Everything here is counted in repetitions of events; their cost follows from the cost table. So reserved = committed +
returned + forfeited holds for the counts, and for every curve multiplied by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
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


def remaining_items(reservation: Reservation) -> tuple[StepEvent, ...]:
    """List the reserved steps, in the order of items, that are neither authorised nor charged."""
    return tuple(StepEvent(item.event, item.unused) for item in reservation.items if item.unused)


def has_lapsed(reservation: Reservation, now: datetime) -> bool:
    """Check whether the lease of an active reservation has expired."""
    return reservation.status is ReservationStatus.ACTIVE and now >= reservation.expires_at


def closed_error(reservation: Reservation) -> LedgerError:
    """Build the error for what an ended or waiting reservation does not take."""
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
