"""Times and days are those of RFC 3339, and nothing else."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.times import parse_day, parse_time

NOT_TIMES = (
    *("", "soon", "20270101", "20270101000000", "1798761600", "1798761600.5", "20270101T000000Z", "2027-01-01"),
    *(
        "2027-01-01T00:00:00",
        "2027-01-01T00:00Z",
        "2027-01-01T24:00:00Z",
        "2027-01-01T23:59:60Z",
        "2027-W01-1T00:00:00Z",
    ),
    *("2027-01-01 00:00:00Z", "2027-01-01T00:00:00+0100", "2027-01-01T00:00:00+01", "2027-01-01T00:00:00+24:00"),
    *("2027-02-30T00:00:00Z", "0001-01-01T00:00:00+00:01", "\uff12027-01-01T00:00:00Z", " 2027-01-01T00:00:00Z"),
)
NOT_DAYS = ("", "20270101", "1767225600", "2027-W01-1", "2027-001", "2027-1-1", "2027-02-30", "2027-01-01T00:00:00Z")


@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)),  # noqa: DTZ001 - the zone comes
    st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_time_of_any_zone_is_read_in_utc(moment: datetime, zone: timezone) -> None:
    written = moment.replace(tzinfo=zone)
    assert parse_time(written.isoformat()) == written
    assert parse_time(written.isoformat()).tzinfo is UTC
    assert parse_time(f"{moment.isoformat(timespec='microseconds')}789z") == moment.replace(tzinfo=UTC)


@pytest.mark.parametrize("text", [*NOT_TIMES, 20270101, None])
def test_time_in_another_form_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must be a time "):
        parse_time(text)


def test_lost_plus_of_a_query_is_named() -> None:
    with pytest.raises(ValueError, match=r"the \+ of a zone is written %2B"):
        parse_time("2027-01-01T00:00:00 05:00")


@pytest.mark.parametrize("text", [*NOT_DAYS, 20270101, None])
def test_day_in_another_form_is_refused(text: object) -> None:
    assert parse_day("2027-01-01") == date(2027, 1, 1)
    with pytest.raises(ValueError, match=r"^must be a day"):
        parse_day(text)
