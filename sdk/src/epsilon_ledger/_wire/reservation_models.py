"""Reservations: plans whose cost is set aside."""

from dataclasses import dataclass
from datetime import datetime

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """An event's planned count, and the steps authorized or removed by a lowered limit."""

    event: Event
    count: int
    authorized: int
    revoked: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved plan or its end; an active one's remainder is forfeited at `expires_at`."""

    id: str
    run: str
    attempt: int
    status: str
    plan: tuple[PlannedEvent, ...]
    steps_planned: int
    steps_authorized: int
    steps_revoked: int
    steps_executed: int | None
    lease_seconds: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CreatedReservation:
    """Response to a new reservation.

    `epsilon` is the run's so far, `epsilon_planned` after the plan; `steps_remaining` fit in addition.
    """

    id: str
    plan: tuple[PlannedEvent, ...]
    steps_planned: int
    lease_seconds: int
    expires_at: datetime
    next_step: int
    epsilon: float
    epsilon_planned: float
    delta: float
    epsilon_limit: float
    steps_remaining: int
    binding_account: str
    binding_account_path: str
