"""Identifiers that sort by creation time."""

import secrets
from datetime import datetime

TIME_DIGITS = 12


def new_id(prefix: str, now: datetime, after: str | None = None) -> str:
    """Generate an identifier: prefix, "_", twelve hex digits of milliseconds and sixteen random ones.

    Args:
        prefix: of its type, such as "run".
        now: in UTC.
        after: the newest identifier of its type, before which the new one never sorts, even if the clock goes back;
            cursors therefore skip nothing.
    """
    moment = _milliseconds(now)
    if after is not None:
        newest = int(after[len(prefix) + 1 :][:TIME_DIGITS], 16)
        moment = max(moment, newest + 1)
    return f"{prefix}_{moment:0{TIME_DIGITS}x}{secrets.token_hex(8)}"


def is_of(made: str, now: datetime) -> bool:
    """Return whether an identifier without predecessor was generated at a time."""
    return made.partition("_")[2][:TIME_DIGITS] == f"{_milliseconds(now):0{TIME_DIGITS}x}"


def _milliseconds(now: datetime) -> int:
    return int(now.timestamp() * 1000)
