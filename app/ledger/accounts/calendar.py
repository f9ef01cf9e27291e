"""Data blocks of calendar weeks, months and quarters, and their schedules."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from app.ledger.accounts.account_records import Block
from app.ledger.errors import InvalidInputError
from app.ledger.filter.limits import Limit


class CalendarPeriod(StrEnum):
    """The length of a data block."""

    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"


_MONTHS: Final = {CalendarPeriod.MONTH: 1, CalendarPeriod.QUARTER: 3}


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """The template of an account's data blocks, each a budget with the same limit.

    `start` is a day of the first period. `prefix` begins their names, which end with the label of the period.
    """

    period: CalendarPeriod
    start: date
    limit: Limit
    prefix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert it to JSON."""
        template = {"period": str(self.period), "start": self.start.isoformat(), "prefix": self.prefix}
        return template | {"limit": self.limit.facts()}

    def name_of(self, block: Block) -> str:
        """Name the budget of a block."""
        return f"{self.prefix}{block.label}"

    def blocks(self, count: int) -> list[Block]:
        """List the first blocks; see `calendar_blocks`."""
        return calendar_blocks(self.period, self.start, count)

    def begun(self, now: datetime) -> int:
        """Count the periods that have begun by `now`."""
        return max(0, _place(self.period, now.astimezone(UTC).date()) - _place(self.period, self.start) + 1)

    def next_opening(self, now: datetime) -> datetime | None:
        """Get the beginning of the first period that has not begun by `now`; None: the calendar ends before."""
        try:
            return self.blocks(self.begun(now) + 1)[-1].data_from
        except InvalidInputError:
            return None


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A block schedule with the reason that its oldest missing block was not opened; None: nothing is missing.

    `due_at` is when the service looks at it next; None: the calendar ends before.
    """

    schedule: BlockSchedule
    due_at: datetime | None = None
    failure: str | None = None


def due_blocks(schedule: BlockSchedule, now: datetime, existing: Collection[Block]) -> list[Block]:
    """List the blocks whose period has begun by `now`, oldest first, without those of an existing block's period."""
    known = {(block.data_from, block.data_to) for block in existing}
    return [block for block in schedule.blocks(schedule.begun(now)) if (block.data_from, block.data_to) not in known]


def calendar_blocks(period: CalendarPeriod, start: date, count: int) -> list[Block]:
    """List consecutive blocks from the period that holds `start`, labelled 2026-W01, 2026-01 or 2026-Q1.

    Periods begin at midnight UTC; weeks are those of ISO 8601.

    Raises:
        InvalidInputError: they go beyond the year 9999.
    """
    try:
        days = list(_first_days(period, start, count + 1))
    except (OverflowError, ValueError):
        raise InvalidInputError(
            f"{count} blocks from {start.isoformat()} go beyond the year 9999; start earlier, or ask for fewer.",
            field="start",
        ) from None
    moments = [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days]
    return [
        Block(data_from=moments[place], data_to=moments[place + 1], label=_label(period, days[place]))
        for place in range(count)
    ]


def _first_days(period: CalendarPeriod, start: date, count: int) -> Iterator[date]:
    if period is CalendarPeriod.WEEK:
        first = start - timedelta(days=start.weekday())
        yield from (first + timedelta(weeks=place) for place in range(count))
        return
    length = _MONTHS[period]
    first_month = _place(period, start) * length
    for month in range(first_month, first_month + count * length, length):
        yield date(month // 12, month % 12 + 1, 1)


def _place(period: CalendarPeriod, day: date) -> int:
    """Number the periods of a calendar; the first day of year 1 is a Monday."""
    if period is CalendarPeriod.WEEK:
        return (day.toordinal() - 1) // 7
    return (day.year * 12 + day.month - 1) // _MONTHS[period]


def _label(period: CalendarPeriod, first: date) -> str:
    if period is CalendarPeriod.WEEK:
        year, week, _ = first.isocalendar()
        return f"{year:04}-W{week:02}"
    if period is CalendarPeriod.QUARTER:
        return f"{first.year:04}-Q{(first.month + 2) // 3}"
    return f"{first:%Y-%m}"
