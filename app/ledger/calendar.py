"""Data blocks of calendar weeks, months and quarters."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Final

from app.ledger.account_records import Block
from app.ledger.errors import InvalidInputError


class CalendarPeriod(StrEnum):
    """The length of a data block."""

    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"


_MONTHS: Final = {CalendarPeriod.MONTH: 1, CalendarPeriod.QUARTER: 3}


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
            f"{count} blocks from {start.isoformat()} go beyond the year 9999; ask for fewer.", field="count"
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
    first_month = start.year * 12 + (start.month - 1) // length * length
    for month in range(first_month, first_month + count * length, length):
        yield date(month // 12, month % 12 + 1, 1)


def _label(period: CalendarPeriod, first: date) -> str:
    if period is CalendarPeriod.WEEK:
        year, week, _ = first.isocalendar()
        return f"{year:04}-W{week:02}"
    if period is CalendarPeriod.QUARTER:
        return f"{first.year:04}-Q{(first.month + 2) // 3}"
    return f"{first:%Y-%m}"
