"""Schemas of the reservations that wait for an account."""

from typing import Self

from pydantic import Field

from app.api.schemas.common import Body, Output
from app.api.schemas.events import EventCounts, step_events_of
from app.api.schemas.reservations import Reservation
from app.api.schemas.waiting import Waiting
from app.ledger.step_events import StepEvent
from app.service.scheduling.requests import Queue
from app.service.scheduling.what_if import WaitPreview as DomainWaitPreview


class QueueEntry(Output):
    """A reservation that waits."""

    run: str
    run_path: str
    reservation: Reservation


class AccountQueue(Output):
    """The reservations that wait for an account or for one under it, the next one first."""

    account: str
    path: str
    reservations: int = Field(description="Number of reservations that wait; at most 100 are listed.")
    items: list[QueueEntry]

    @classmethod
    def of(cls, queue: Queue) -> Self:
        """Convert from the domain."""
        return cls(
            account=queue.account.id,
            path=queue.account.path,
            reservations=queue.waiting,
            items=[
                QueueEntry(
                    run=each.run.id,
                    run_path=each.run.path,
                    reservation=Reservation.with_detail(each.reservation, each.detail),
                )
                for each in queue.entries
            ],
        )


class PreviewWait(Body):
    """Steps that a new run would reserve."""

    events: EventCounts = Field(min_length=1, description="At most 1,000.")

    def steps(self) -> tuple[StepEvent, ...]:
        """Convert to the domain.

        Raises:
            PlanTooExpensiveError: pricing it exceeds the work limit of a request.
        """
        return step_events_of(self.events)


class WaitPreview(Output):
    """What would become of a reservation that arrived now."""

    fits: bool = Field(description="Whether it would be reserved at once.")
    waiting: Waiting | None = Field(
        description="Its place, and what it would wait for. Null: it fits; or, if it does not, it could never fit and "
        "would be refused."
    )

    @classmethod
    def of(cls, preview: DomainWaitPreview) -> Self:
        """Convert from the domain."""
        return cls(fits=preview.fits, waiting=None if preview.detail is None else Waiting.of(preview.detail))
