"""Identifiers that sort by the time of their making."""

import secrets
from datetime import datetime

TIME_DIGITS = 12


def new_id(prefix: str, now: datetime, after: str | None = None) -> str:
    """A new identifier.

    Args:
        prefix: of its type, such as "run".
        now: in UTC.
        after: the newest identifier of its type; the new one sorts behind it, even if the clock went back or
            the request waited while others were served, so that a cursor misses nothing.

    Returns:
        The prefix, "_", twelve hex digits of milliseconds since 1970 and sixteen random ones.
    """
    moment = _milliseconds(now)
    if after is not None:
        newest = int(after[len(prefix) + 1 :][:TIME_DIGITS], 16)
        moment = max(moment, newest + 1)
    return f"{prefix}_{moment:0{TIME_DIGITS}x}{secrets.token_hex(8)}"


def is_of(made: str, now: datetime) -> bool:
    """Whether an identifier that had none before it was made at a moment."""
    return made.partition("_")[2][:TIME_DIGITS] == f"{_milliseconds(now):0{TIME_DIGITS}x}"


def _milliseconds(now: datetime) -> int:
    return int(now.timestamp() * 1000)
