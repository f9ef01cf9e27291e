"""Blocks of calendar periods follow each other without a gap; a schedule opens each once, and none before it begins."""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.accounts.account_records import Block
from app.ledger.accounts.calendar import BlockSchedule, CalendarPeriod, calendar_blocks, due_blocks
from app.ledger.errors import InvalidInputError
from app.ledger.filter.limits import Limit

LIMIT = Limit(1.0, 1e-5)
PERIODS = st.sampled_from(CalendarPeriod)
DAYS = st.dates(date(1999, 1, 1), date(2010, 12, 31))
MOMENTS = st.datetimes(datetime(1998, 1, 1), datetime(2012, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - given apart
ZONES = st.builds(lambda hours: timezone(timedelta(hours=hours)), st.integers(-12, 14))


@given(PERIODS, st.dates(date(1900, 1, 1), date(2900, 12, 31)), st.integers(1, 64))
def test_blocks_join_and_the_first_holds_its_day(period: CalendarPeriod, start: date, count: int) -> None:
    blocks = calendar_blocks(period, start, count)
    assert len(blocks) == count
    assert blocks[0].data_from.date() <= start < blocks[0].data_to.date()
    assert all(one.data_to == other.data_from for one, other in pairwise(blocks))
    assert len({each.label for each in blocks}) == count
    assert calendar_blocks(period, start, 1) == blocks[:1]


@given(PERIODS)
def test_blocks_beyond_the_year_9999_are_refused(period: CalendarPeriod) -> None:
    with pytest.raises(InvalidInputError, match="beyond the year 9999"):
        calendar_blocks(period, date(9999, 12, 31), 64)
    schedule = BlockSchedule(CalendarPeriod.QUARTER, date(9999, 7, 1), LIMIT)
    assert [block.label for block in due_blocks(schedule, datetime(9999, 9, 30, tzinfo=UTC), [])] == ["9999-Q3"]
    assert schedule.next_opening(datetime(9999, 9, 30, tzinfo=UTC)) is None


@given(PERIODS, DAYS, MOMENTS, ZONES, st.data())
def test_due_blocks_are_those_from_the_first_to_the_present_period_that_are_not_there(
    period: CalendarPeriod, start: date, now: datetime, zone: timezone, data: st.DataObject
) -> None:
    schedule = BlockSchedule(period, start, LIMIT, "visits-")
    due = due_blocks(schedule, now, [])
    [present], [first] = (calendar_blocks(period, day, 1) for day in (now.date(), start))
    assert all(block.data_from <= now for block in due)
    assert (due[-1].data_from == present.data_from) if due else now < first.data_from
    assert [each.data_from for each in due] == [each.data_from for each in calendar_blocks(period, start, len(due))]
    assert schedule.next_opening(now) == (present.data_to if due else first.data_from)
    assert due_blocks(schedule, now.astimezone(zone), []) == due
    there = data.draw(st.lists(st.sampled_from(due), unique=True) if due else st.just([]))
    renamed = [Block(block.data_from, block.data_to, "by hand") for block in there]
    assert due_blocks(schedule, now, renamed) == [block for block in due if block not in there]


@pytest.mark.parametrize(
    ("period", "start", "begins", "label"),
    [
        (CalendarPeriod.MONTH, date(2026, 12, 31), datetime(2027, 1, 1, tzinfo=UTC), "2027-01"),
        (CalendarPeriod.MONTH, date(2028, 2, 29), datetime(2028, 3, 1, tzinfo=UTC), "2028-03"),
        (CalendarPeriod.QUARTER, date(2026, 11, 27), datetime(2027, 1, 1, tzinfo=UTC), "2027-Q1"),
        (CalendarPeriod.WEEK, date(2026, 12, 27), datetime(2026, 12, 28, tzinfo=UTC), "2026-W53"),
        (CalendarPeriod.WEEK, date(2026, 12, 31), datetime(2027, 1, 4, tzinfo=UTC), "2027-W01"),
        (CalendarPeriod.WEEK, date(2024, 12, 29), datetime(2024, 12, 30, tzinfo=UTC), "2025-W01"),
        (CalendarPeriod.WEEK, date(2026, 3, 29), datetime(2026, 3, 30, tzinfo=UTC), "2026-W14"),  # clocks change
    ],
)
def test_period_opens_at_midnight_utc_and_not_a_microsecond_before(
    period: CalendarPeriod, start: date, begins: datetime, label: str
) -> None:
    schedule = BlockSchedule(period, start, LIMIT)
    before = begins - timedelta(microseconds=1)
    assert len(due_blocks(schedule, before, [])) == 1
    assert schedule.next_opening(before) == begins
    assert [block.label for block in due_blocks(schedule, begins, [])][1:] == [label]
