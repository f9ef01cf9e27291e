"""Schemas of reservations that wait."""

from datetime import datetime

from pydantic import Field

from app.api.schemas.common import Body, ExtendedNumber, Output, Reason
from app.ledger.scheduling.waiting import MAX_PRIORITY
from app.ledger.scheduling.waiting_reasons import WaitingReason
from app.ledger.settings.allocation import SchedulingRule


class Shortage(Output):
    """An account that does not hold a waiting reservation now."""

    account: str = Field(validation_alias="account_id")
    account_path: str
    reason: WaitingReason = Field(
        description="`closed`: it is not open now. `limit`: its limit leaves too little. `reserved`: active "
        "reservations have it. `locked`: it is unlocked later. `promised`: it is kept for other budgets."
    )
    requested: ExtendedNumber = Field(
        description='Share of the account\'s capacity that the reservation takes; "Infinity": its limit bounds no such '
        "loss."
    )
    available: float = Field(description="Share of it that can be taken now.")
    opens_at: datetime | None = Field(default=None, description="When a closed account opens.")


class Waiting(Output):
    """What a reservation waits for, and its place among the reservations that want the same accounts."""

    rule: SchedulingRule
    position: int = Field(description="From 1.")
    reservations: int = Field(
        validation_alias="waiting", description="Number of reservations that wait for one of its accounts."
    )
    aged: bool = Field(description="Whether it has waited so long that no younger reservation may delay it.")
    score: ExtendedNumber | None = Field(default=None, description="By the rule; the least is first. Null: by arrival.")
    lacks: list[Shortage] = Field(
        validation_alias="shortages", description="Empty: the reservation fits, and others are served before it."
    )
    estimated_at: datetime | None = Field(
        default=None,
        description="When it will be reserved if nothing changes but what time unlocks and opens; null: unknown.",
    )


class CancelReservation(Body):
    """The reason to cancel a waiting reservation."""

    reason: Reason


class PrioritizeReservation(Body):
    """The new priority of a waiting reservation."""

    priority: int = Field(
        ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Reservations with a higher one are served first."
    )
    reason: Reason
