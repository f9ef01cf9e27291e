"""A block schedule opens each period of the calendar once, and none before it begins."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.account_records import Block
from app.ledger.calendar import BlockSchedule, CalendarPeriod, calendar_blocks, due_blocks
from app.ledger.filters import Limit

LIMIT = Limit(1.0, 1e-5)
PERIODS = st.sampled_from(CalendarPeriod)
DAYS = st.dates(date(1999, 1, 1), date(2010, 12, 31))
MOMENTS = st.datetimes(datetime(1998, 1, 1), datetime(2012, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - given apart
ZONES = st.builds(lambda hours: timezone(timedelta(hours=hours)), st.integers(-12, 14))


def labels(schedule: BlockSchedule, now: datetime, existing: list[Block] | None = None) -> list[str | None]:
    return [block.label for block in due_blocks(schedule, now, existing or [])]


@given(PERIODS, DAYS, MOMENTS)
def test_the_due_blocks_are_those_from_the_first_to_the_present_period(
    period: CalendarPeriod, start: date, now: datetime
) -> None:
    schedule = BlockSchedule(period, start, LIMIT)
    due = due_blocks(schedule, now, [])
    [present] = calendar_blocks(period, now.date(), 1)
    [first] = calendar_blocks(period, start, 1)
    assert all(block.data_from <= now for block in due)
    assert (due[-1] == present) if due else now < first.data_from
    assert due == calendar_blocks(period, start, len(due))
    opening = schedule.next_opening(now)
    assert opening == (present.data_to if due else first.data_from)


@given(PERIODS, DAYS, MOMENTS, st.data())
def test_a_period_that_has_a_block_is_not_due_again(
    period: CalendarPeriod, start: date, now: datetime, data: st.DataObject
) -> None:
    schedule = BlockSchedule(period, start, LIMIT, "visits-")
    due = due_blocks(schedule, now, [])
    there = data.draw(st.lists(st.sampled_from(due), unique=True) if due else st.just([]))
    renamed = [Block(block.data_from, block.data_to, "by hand") for block in there]
    assert due_blocks(schedule, now, renamed) == [block for block in due if block not in there]


@given(PERIODS, DAYS, MOMENTS, ZONES)
def test_the_zone_in_which_the_time_is_written_changes_nothing(
    period: CalendarPeriod, start: date, now: datetime, zone: timezone
) -> None:
    schedule = BlockSchedule(period, start, LIMIT)
    assert due_blocks(schedule, now.astimezone(zone), []) == due_blocks(schedule, now, [])


@pytest.mark.parametrize(
    ("period", "start", "begins", "label"),
    [
        (CalendarPeriod.MONTH, date(2026, 12, 31), datetime(2027, 1, 1, tzinfo=UTC), "2027-01"),
        (CalendarPeriod.MONTH, date(2028, 2, 29), datetime(2028, 3, 1, tzinfo=UTC), "2028-03"),
        (CalendarPeriod.QUARTER, date(2026, 11, 27), datetime(2027, 1, 1, tzinfo=UTC), "2027-Q1"),
        (CalendarPeriod.WEEK, date(2026, 12, 27), datetime(2026, 12, 28, tzinfo=UTC), "2026-W53"),
        (CalendarPeriod.WEEK, date(2026, 12, 31), datetime(2027, 1, 4, tzinfo=UTC), "2027-W01"),
        (CalendarPeriod.WEEK, date(2024, 12, 29), datetime(2024, 12, 30, tzinfo=UTC), "2025-W01"),
    ],
)
def test_a_period_opens_at_midnight_utc_and_not_a_microsecond_before(
    period: CalendarPeriod, start: date, begins: datetime, label: str
) -> None:
    schedule = BlockSchedule(period, start, LIMIT)
    before = begins - timedelta(microseconds=1)
    assert len(labels(schedule, before)) == 1
    assert schedule.next_opening(before) == begins
    assert labels(schedule, begins)[1:] == [label]


def test_the_days_when_clocks_change_are_as_long_as_others_in_utc() -> None:
    """On 29 March 2026, most of Europe's clocks go from 2 to 3 o'clock: a week that ends there has seven whole days."""
    schedule = BlockSchedule(CalendarPeriod.WEEK, date(2026, 3, 23), LIMIT)
    first, second = due_blocks(schedule, datetime(2026, 3, 30, tzinfo=UTC), [])
    assert first.data_to - first.data_from == second.data_to - second.data_from == timedelta(days=7)
    assert labels(schedule, datetime(2026, 3, 29, 23, 59, tzinfo=UTC)) == [first.label]


def test_a_schedule_of_the_future_has_nothing_due() -> None:
    schedule = BlockSchedule(CalendarPeriod.MONTH, date(2027, 5, 20), LIMIT)
    assert labels(schedule, datetime(2027, 4, 30, 23, 59, tzinfo=UTC)) == []
    assert schedule.next_opening(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2027, 5, 1, tzinfo=UTC)


def test_the_calendar_ends_with_the_year_9999() -> None:
    schedule = BlockSchedule(CalendarPeriod.QUARTER, date(9999, 7, 1), LIMIT)
    assert labels(schedule, datetime(9999, 9, 30, tzinfo=UTC)) == ["9999-Q3"]
    assert schedule.next_opening(datetime(9999, 9, 30, tzinfo=UTC)) is None
