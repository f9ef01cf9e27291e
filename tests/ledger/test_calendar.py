"""Blocks of calendar periods follow each other without a gap."""

from datetime import UTC, date, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.calendar import CalendarPeriod, calendar_blocks
from app.ledger.errors import InvalidInputError

PERIODS = st.sampled_from(CalendarPeriod)
DAYS = st.dates(date(1900, 1, 1), date(2900, 12, 31))


@given(PERIODS, DAYS, st.integers(1, 64))
def test_blocks_join_and_the_first_holds_its_day(period: CalendarPeriod, start: date, count: int) -> None:
    blocks = calendar_blocks(period, start, count)
    assert len(blocks) == count
    assert blocks[0].data_from.date() <= start < blocks[0].data_to.date()
    assert all(one.data_to == other.data_from for one, other in pairwise(blocks))
    assert len({each.label for each in blocks}) == count
    assert calendar_blocks(period, start, 1) == blocks[:1]


@pytest.mark.parametrize(
    ("period", "label", "ends"),
    [
        (CalendarPeriod.MONTH, "2024-12", datetime(2025, 1, 1, tzinfo=UTC)),
        (CalendarPeriod.QUARTER, "2024-Q4", datetime(2025, 1, 1, tzinfo=UTC)),
        (CalendarPeriod.WEEK, "2025-W01", datetime(2025, 1, 6, tzinfo=UTC)),
    ],
)
def test_the_last_day_of_a_year(period: CalendarPeriod, label: str, ends: datetime) -> None:
    [block] = calendar_blocks(period, date(2024, 12, 31), 1)
    assert (block.label, block.data_to) == (label, ends)


@given(PERIODS)
def test_the_calendar_has_an_end(period: CalendarPeriod) -> None:
    with pytest.raises(InvalidInputError, match="beyond the year 9999"):
        calendar_blocks(period, date(9999, 12, 31), 64)
