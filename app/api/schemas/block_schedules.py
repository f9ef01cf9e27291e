"""Schemas of block schedules."""

from datetime import date, datetime
from typing import Any

from pydantic import Field

from app.api.schemas.account_creation import BlockTemplate
from app.api.schemas.common import EXAMPLE_BUDGET_ID, Body, Limit, Output, Reason, example
from app.ledger.accounts.calendar import CalendarPeriod

_TEMPLATE: dict[str, Any] = {
    "period": "month",
    "start": "2026-11-01",
    "limit": {"epsilon": 1.0, "delta": 1e-5},
    "prefix": "visits-",
}
_WHY = "The board of 12 November: each month of visits has a budget of its own."


class BlockScheduleInput(BlockTemplate):
    """A new block schedule."""

    model_config = example(_TEMPLATE)


class ReplaceBlockSchedule(Body):
    """A new block schedule and its reason."""

    model_config = example({"schedule": _TEMPLATE, "reason": _WHY})

    schedule: BlockScheduleInput
    reason: Reason


class BlockSchedule(Output):
    """The template of the data blocks that are opened by themselves."""

    model_config = example(_TEMPLATE)

    period: CalendarPeriod
    start: date = Field(description="A day of the first period.")
    limit: Limit = Field(description="The limit of each block.")
    prefix: str = Field(description="Begins the names, which end with the period.")


class AccountBlockSchedule(Output):
    """The block schedule of an account, and whether its blocks are open."""

    model_config = example(
        {
            "account": EXAMPLE_BUDGET_ID,
            "path": "mimic/visits",
            "schedule": _TEMPLATE,
            "next_opens_at": "2026-12-01T00:00:00Z",
            "failure": "visits-2026-11 is not open: mimic/visits has 64 parts already, the most that an account may "
            "have.",
        }
    )

    account: str = Field(validation_alias="subject")
    path: str
    schedule: BlockSchedule | None = Field(validation_alias="value", description="Null: the account has none.")
    next_opens_at: datetime | None = Field(
        validation_alias="next_opening",
        description="When the next period begins, and the service opens its block; null without a schedule.",
    )
    failure: str | None = Field(
        description="Why the oldest missing block was not opened. The service tries again every few minutes. Null: no "
        "block is missing."
    )
