"""Schemas of block schedules."""

from datetime import date, datetime

from pydantic import Field

from app.api.schemas.account_creation import BlockTemplate
from app.api.schemas.common import Body, Limit, Output, Reason
from app.ledger.accounts.calendar import CalendarPeriod


class BlockScheduleInput(BlockTemplate):
    """A new block schedule."""


class ReplaceBlockSchedule(Body):
    """A new block schedule and its reason."""

    schedule: BlockScheduleInput
    reason: Reason


class BlockSchedule(Output):
    """The template of the data blocks that are opened by themselves."""

    period: CalendarPeriod
    start: date = Field(description="A day of the first period.")
    limit: Limit = Field(description="The limit of each block.")
    prefix: str = Field(description="Begins the names, which end with the period.")


class AccountBlockSchedule(Output):
    """The block schedule of an account, and whether its blocks are open."""

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
