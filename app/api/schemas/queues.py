"""Schemas of the plans that wait for an account."""

from typing import Any, Self

from pydantic import Field

from app.api.schemas.common import EXAMPLE_POPULATION_ID, EXAMPLE_RUN_ID, Output, example
from app.api.schemas.reservations import RESERVATION_EXAMPLE, WAITING_EXAMPLE, Reservation
from app.service.scheduling.requests import Queue

_ENTRY: dict[str, Any] = {
    "run": EXAMPLE_RUN_ID,
    "run_path": "mimic/icu-team/mortality-model",
    "reservation": RESERVATION_EXAMPLE
    | {
        "status": "waiting",
        "steps_executed": None,
        "steps_authorized": 0,
        "plan": [RESERVATION_EXAMPLE["plan"][0] | {"authorized": 0}],
        "wait_until": "2026-11-28T09:00:00Z",
        "waiting": WAITING_EXAMPLE,
    },
}


class QueueEntry(Output):
    """A plan that waits."""

    run: str
    run_path: str
    reservation: Reservation


class AccountQueue(Output):
    """The plans that wait for an account or for one under it, the next one first."""

    model_config = example({"account": EXAMPLE_POPULATION_ID, "path": "mimic", "plans": 1, "items": [_ENTRY]})

    account: str
    path: str
    plans: int = Field(description="Number of plans that wait; at most 100 are listed.")
    items: list[QueueEntry]

    @classmethod
    def of(cls, queue: Queue) -> Self:
        """Convert from the domain."""
        return cls(
            account=queue.account.id,
            path=queue.account.path,
            plans=queue.waiting,
            items=[
                QueueEntry(
                    run=each.run.id,
                    run_path=each.run.path,
                    reservation=Reservation.with_detail(each.reservation, each.detail),
                )
                for each in queue.entries
            ],
        )
