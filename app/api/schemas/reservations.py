"""Schemas of reservations and attempts."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Self

from pydantic import Field

from app.api.links import run_url
from app.api.problems import problem_body
from app.api.schemas.common import (
    AnsweredEvent,
    Body,
    ExtendedNumber,
    Output,
    Timestamp,
)
from app.api.schemas.events import EventCount, EventCounts, step_events_of
from app.api.schemas.refusals import reservation_text
from app.api.schemas.steps import Attempt, ExpectedSteps
from app.api.schemas.waiting import Waiting
from app.ledger.admission.admission import Refusal
from app.ledger.runs.reservations import Reservation as DomainReservation
from app.ledger.runs.reservations import ReservationStatus
from app.ledger.runs.run import EndReason
from app.service.charging.requests import refusal_details
from app.service.idempotency import StoredResponse
from app.service.reservations import CreatedReservation as DomainCreatedReservation
from app.service.reservations import PrecedingReservation as DomainPrecedingReservation
from app.service.reservations import ReservationRequest
from app.service.scheduling.explanations import WaitingDetail

MAX_LEASE_SECONDS = 7 * 24 * 3600
DEFAULT_LEASE_SECONDS = 3600

LeaseSeconds = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_LEASE_SECONDS,
        description="Maximum silence of the trainer in seconds, after which the rest of the reservation is forfeited. "
        "Renewal restarts the lease.",
    ),
]
WaitUntil = Annotated[
    Timestamp,
    Field(
        description="Until when it waits if it does not fit now, at most 366 days. It is granted as a whole the "
        "moment that it fits; one that could never fit is refused.",
    ),
]
StepsExecuted = Annotated[
    int,
    Field(
        ge=0,
        le=2**53,
        description="Number of executed steps of the reservation, including individually authorized ones.",
    ),
]


class CommitReservation(Body):
    """The trainer's report on the executed steps of a reservation."""

    steps_executed: StepsExecuted


class PrecedingReservation(CommitReservation):
    """The reservation before a new one, with its executed steps."""

    reservation: str = Field(min_length=1, max_length=100, description="Its id.")


class CreateReservation(Body):
    """Steps whose exact cost is reserved or refused."""

    events: EventCounts = Field(min_length=1, description="At most 1,000.")
    lease_seconds: LeaseSeconds = DEFAULT_LEASE_SECONDS
    attempt: Attempt = 1
    wait_until: WaitUntil | None = None
    preceding: PrecedingReservation | None = Field(
        default=None,
        description="The run's active reservation, which is committed in the same transaction, and unchanged if the "
        "new one is refused.",
    )

    expected_steps: ExpectedSteps | None = Field(
        default=None,
        description="Number of all steps of the training, for the alternatives of a refusal; by default the run's.",
    )

    def request(self, run_id: str) -> ReservationRequest:
        """Convert to the domain.

        Raises:
            PlanTooExpensiveError: pricing the events exceeds the work limit of a request.
        """
        sent = self.preceding
        before = None if sent is None else DomainPrecedingReservation(sent.reservation, sent.steps_executed)
        return ReservationRequest(
            run_id,
            step_events_of(self.events),
            self.lease_seconds,
            self.attempt,
            before,
            self.expected_steps,
            self.wait_until,
        )


class EndRun(Body):
    """The trainer's report at the end of a run."""

    steps_executed: StepsExecuted | None = Field(
        default=None,
        description="Required to complete a run with an active reservation; aborting forfeits it by default.",
    )
    attempt: Attempt | None = Field(
        default=None,
        description="Fencing token of the trainer: a superseded trainer cannot end the run. Without it, as for "
        "operators: the current attempt.",
    )
    reason: Annotated[EndReason, Field(strict=False)] | None = Field(
        default=None,
        description="Why the run ends. Completed: `finished` (default) or `budget_exhausted`. Aborted: `aborted` "
        "(default) or `lost`.",
    )


class CreateAttempt(Body):
    """A new attempt from a checkpoint."""

    first_step: int | None = Field(
        default=None,
        ge=0,
        le=2**53,
        description="Number of the first step after the checkpoint; by default the run's next step.",
    )
    steps_executed: StepsExecuted | None = Field(
        default=None, description="Commits the active reservation; by default its remainder is forfeited."
    )


class ReservedEvent(Output):
    """The reserved and authorized repetitions of an event."""

    event: AnsweredEvent
    count: int
    authorized: int = Field(validation_alias="used")
    revoked: int = Field(description="Number of repetitions removed by a lowered limit.")


class Reservation(Output):
    """Reserved steps, or ones that wait to be reserved."""

    id: str
    run: str = Field(validation_alias="run_id")
    attempt: int
    status: ReservationStatus
    events: list[ReservedEvent] = Field(validation_alias="items")
    steps_reserved: int
    steps_authorized: int = Field(
        validation_alias="steps_used", description="Steps authorized individually, or charged at the end."
    )
    steps_revoked: int = Field(
        description="Steps removed by a lowered limit, which the end of the reservation returns."
    )
    steps_executed: int | None = Field(default=None, description="Reported by the trainer; null unless committed.")
    lease_seconds: int
    expires_at: datetime = Field(description="When the lease ends, or when a waiting reservation expires.")
    created_at: datetime
    wait_until: datetime | None = Field(default=None, description="Until when it waits, or would have waited.")
    granted_at: datetime | None = Field(default=None, description="When it was reserved after it had waited.")
    claimed_at: datetime | None = Field(
        default=None,
        description="When its trainer has claimed it since. One that was granted, and neither claimed nor used before "
        "its lease ends, is returned, not charged.",
    )
    priority: int = Field(description="Among those that wait; 0 unless the privacy office has changed it.")
    waiting: Waiting | None = Field(default=None, description="What it waits for; null: it does not wait.")

    @classmethod
    def with_detail(cls, reservation: DomainReservation, detail: WaitingDetail | None) -> Self:
        """Convert from the domain, with what it waits for."""
        found = cls.of(reservation)
        return found if detail is None else found.model_copy(update={"waiting": Waiting.of(detail)})


class CreatedReservation(Reservation):
    """A new reservation and the state of its run."""

    next_step: int = Field(description="Number of the first step of the reservation.")
    epsilon: ExtendedNumber = Field(description="Of the run before the reserved steps.")
    epsilon_including_reserved: ExtendedNumber = Field(description="Of the run after the reserved steps.")
    delta: float = Field(description="Of the run's limit: its own, or else its budget's.")
    used: float = Field(description="Share of the capacity of `binding_account` that is spent.")
    used_including_reserved: float = Field(description="The same with all reserved steps.")
    steps_remaining: int = Field(
        description="Further steps like the last one that fit in addition to the reserved ones."
    )
    binding_account: str = Field(description="The account with the least room.")
    binding_account_path: str

    @classmethod
    def of(cls, held: DomainCreatedReservation) -> Self:
        """Convert from the domain."""
        return cls(
            **dict(Reservation.of(held.reservation)),
            next_step=held.next_step,
            epsilon=held.epsilon,
            epsilon_including_reserved=held.epsilon_including_reserved,
            delta=held.delta,
            used=held.used,
            used_including_reserved=held.used_including_reserved,
            steps_remaining=held.steps_remaining,
            binding_account=held.binding.id,
            binding_account_path=held.binding.path,
        )


def reservation_refused(refusal: Refusal, events: Sequence[EventCount], run_id: str | None = None) -> StoredResponse:
    """Build the response to steps that cannot be reserved; `run_id` is of a run that exists."""
    steps = sum(step.count for step in events)
    return not_made(refusal_details(refusal), refusal.binding.id, refusal.binding.path, steps, run_id)


def not_made(
    facts: dict[str, Any], binding: str, binding_path: str, count: int, run_id: str | None = None
) -> StoredResponse:
    """Build the response to a creating request whose cost does not fit."""
    members = {
        "decision": "refused",
        "count": count,
        "binding_account": binding,
        "binding_account_path": binding_path,
        **facts,
        **({} if run_id is None else {"url": run_url(run_id)}),
    }
    body = problem_body("budget_exceeded", reservation_text(facts, binding_path, count), members)
    return StoredResponse(body, HTTPStatus.FORBIDDEN)
