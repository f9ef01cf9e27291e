"""Identifiers that sort by creation time."""

import secrets
from datetime import datetime
from typing import Final

from app.ledger.ids import DIGITS, TIME_DIGITS, is_numbered

RANDOM_DIGITS: Final = 16


def new_id(prefix: str, now: datetime, after: str | None = None) -> str:
    """Generate an identifier: prefix, "_", eleven hex digits of milliseconds, and random ones.

    Those of organisations and accounts, which are stored as integers, have four random digits, others sixteen.

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
    digits = DIGITS - TIME_DIGITS if is_numbered(prefix) else RANDOM_DIGITS
    return f"{prefix}_{moment:0{TIME_DIGITS}x}{secrets.token_hex(digits // 2)}"


def is_of(made: str, now: datetime) -> bool:
    """Return whether an identifier without predecessor was generated at a time."""
    return made.partition("_")[2][:TIME_DIGITS] == f"{_milliseconds(now):0{TIME_DIGITS}x}"


def _milliseconds(now: datetime) -> int:
    return int(now.timestamp() * 1000)
