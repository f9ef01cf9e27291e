"""The clock of the database, and this machine's deviation from it."""

import asyncio
import logging
from typing import Final

from app.persistence.clock import Clock
from app.service.background import attempt

SAMPLED_SECONDS: Final = 5.0

MOST_APART_SECONDS: Final = 5.0
"""Clock deviation that is reported; it affects logs and tokens, not the ledger."""

_logger = logging.getLogger(__name__)


async def keep_time(clock: Clock) -> None:
    """Sample the database's clock until cancelled.

    Failures are logged; the uncertainty of the time grows until the next sample.
    """
    logged = None
    while True:
        await attempt("clock", "The clock of the database could not be read", clock.sample)
        found = wrong_clock(clock)
        if (found is None) != (logged is None):
            _logger.warning("%s", found or "This machine's clock is right again.")
        logged = found
        await asyncio.sleep(SAMPLED_SECONDS)


def wrong_clock(clock: Clock) -> str | None:
    """Return a warning about this machine's clock, if it is wrong."""
    ahead = clock.own_is_ahead()
    if ahead is None or abs(ahead) <= MOST_APART_SECONDS:
        return None
    how = "ahead of" if ahead > 0 else "behind"
    return (
        f"This machine's clock is {abs(ahead):.0f} s {how} the database's. Steps go by the database's; set this "
        "machine's by NTP."
    )
