"""The database's clock, shared by all replicas of a service (ADR 0031).

A server's clock is read every few seconds; in between, a monotonic clock of this machine continues it, so that a step
needs no extra round trip. SQLite uses the machine's clock.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from app.ledger.errors import LedgerUnavailableError

DRIFT: Final = 1e-3
"""Maximum drift between two clocks, as a share of time: NTP slews each by at most half of it."""

OWN_SECONDS: Final = 1e-3
"""Time after which the machine's own clock is read again."""

LONGEST_LEASE_SECONDS: Final = 7 * 24 * 3600
"""A lease granted before the database's clock was set ahead may still run for this long."""

counted: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Read a monotonic clock in seconds, which also runs during suspension."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Bounds on the current time, some milliseconds apart.

    Args:
        latest: upper bound, used for comparisons and stored times: what closes after it is still open.
        earliest: lower bound: a lease that ends after it still runs.
    """

    latest: datetime
    earliest: datetime


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of the database's clock, between the `counted` times `began` and `ended`."""

    began: float
    time: datetime
    ended: float


@dataclass(frozen=True, slots=True)
class _ClockBounds:
    """Bounds on the database's clock minus `counted`, as of the counted time `at`.

    `before` is the lower bound before the database's clock was set ahead. It holds for leases of that time, the last of
    which ends at `before_until`.
    """

    low: float
    high: float
    at: float
    before: float
    before_until: float


class Clock:
    """The clock of one database; without `read`, the machine's own."""

    def __init__(self, read: Callable[[], Reading] | None) -> None:
        self._read = read or _own
        self._own = read is None
        self._known: _ClockBounds | None = None
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Read the database's clock.

        Raises:
            SQLAlchemyError: the database does not answer.
        """
        reading = self._read()
        time_read, lasted = reading.time.timestamp(), reading.ended - reading.began
        low, high = time_read - reading.ended, time_read - reading.began + DRIFT * lasted
        with self._lock:
            self._known = _merge_reading(self._known, low, high, reading.ended)

    @property
    def known(self) -> bool:
        """Whether the time is available without a query."""
        return self._own or self._known is not None

    def moment(self, *, wait: bool = True) -> Moment:
        """Get bounds on the current time.

        Without `wait` the caller is never blocked by a first reading.

        Raises:
            LedgerUnavailableError: the clock was never read, and the caller does not wait.
            SQLAlchemyError: the clock was never read, and the database does not answer.
        """
        if self._own:
            if self._known is None or counted() - self._known.at > OWN_SECONDS:
                self.sample()
        elif self._known is None:
            if not wait:
                raise LedgerUnavailableError("The database's clock has not been read yet. Retry the request shortly.")
            self.sample()
        known, at = self._known, counted()
        assert known is not None, "it was read"
        slack = DRIFT * max(0.0, at - known.at)
        low = known.low - slack
        if at < known.before_until:
            low = min(low, known.before)
        latest, earliest = at + known.high + slack, at + low
        return Moment(datetime.fromtimestamp(latest, UTC), datetime.fromtimestamp(earliest, UTC))

    def now(self) -> datetime:
        """Get the upper bound on the current time, for comparisons and storage."""
        return self.moment().latest

    def own_is_ahead(self) -> float | None:
        """Compute this machine's lead in seconds; None before the first reading."""
        known = self._known
        if known is None or self._own:
            return 0.0 if self._own else None
        return datetime.now(UTC).timestamp() - counted() - (known.low + known.high) / 2


def _merge_reading(known: _ClockBounds | None, low: float, high: float, at: float) -> _ClockBounds:
    """Merge a reading: where it agrees with the known bounds, take the tighter ones."""
    if known is None:
        return _ClockBounds(low, high, at, before=low, before_until=at)
    slack = DRIFT * max(0.0, at - known.at)
    least, most = known.low - slack, known.high + slack
    before, until = known.before, known.before_until
    if low > most:
        before, until = min(least, before) if at < until else least, at + LONGEST_LEASE_SECONDS
    elif high >= least:
        low, high = max(low, least), min(high, most)
    return _ClockBounds(low, high, at, before, until)


def _own() -> Reading:
    began = counted()
    return Reading(began, datetime.now(UTC), counted())
