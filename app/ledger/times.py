"""Times and days of requests, files and commands, as RFC 3339 writes them."""

import re
from datetime import UTC, date, datetime
from typing import Final

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    rf"({_DAY.pattern})[Tt]((?:[01][0-9]|2[0-3])(?::[0-5][0-9]){{2}})(\.[0-9]+)?([Zz]|[-+](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LOST_PLUS: Final = re.compile(r".* [0-9]{2}:[0-9]{2}")
"""In a query, a plus sign means a space."""

_MICROSECONDS: Final = len(".123456")


def parse_time(text: object) -> datetime:
    """Read a time with its zone; digits beyond microseconds are left out.

    Args:
        text: such as "2026-11-21T09:00:00Z" or "2026-11-21T10:00:00.5+01:00".

    Returns:
        The time in UTC.

    Raises:
        ValueError: it is written in another way, is no day of the calendar, or in no year from 1 to 9999.

    Source:
        RFC 3339, section 5.6, `date-time`. Numbers are no times: 20270101 would be a day in 1970.
    """
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        plus = isinstance(text, str) and _LOST_PLUS.fullmatch(text)
        hint = "; in an address, the + of a zone is written %2B" if plus else ""
        raise ValueError(f"must be a time with its zone, as text such as 2026-11-21T09:00:00Z (RFC 3339){hint}")
    day, clock, fraction, zone = found.groups("")
    try:
        return datetime.fromisoformat(f"{day}T{clock}{fraction[:_MICROSECONDS]}{zone.upper()}").astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time within the years 1 and 9999") from None
    except ValueError:
        raise ValueError(f"must be a time on a day of the calendar, and {day} is none") from None


def parse_day(text: object) -> date:
    """Read a day.

    Args:
        text: such as "2026-11-21".

    Raises:
        ValueError: it is written in another way, or is no day of the calendar.

    Source:
        RFC 3339, section 5.6, `full-date`.
    """
    if not isinstance(text, str) or not _DAY.fullmatch(text):
        raise ValueError("must be a day, as text such as 2026-01-31")
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"must be a day of the calendar, and {text} is none") from None
