"""Identifiers that sort by the time of their making."""

import secrets
from datetime import datetime


def new_id(prefix: str, now: datetime) -> str:
    """A new identifier.

    Args:
        prefix: of its type, such as "run".
        now: in UTC.

    Returns:
        The prefix, "_", twelve hex digits of milliseconds since 1970 and sixteen random ones.
    """
    return f"{prefix}_{int(now.timestamp() * 1000):012x}{secrets.token_hex(8)}"
