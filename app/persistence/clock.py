"""The time by a database's clock, which all replicas of a service have in common, whatever their own clocks say.

A server's clock is read every few seconds; in between, a clock of this machine that nobody sets counts on. So a step
costs no further round trip. A SQLite file has no clock but the machine's.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.ledger.errors import LedgerUnavailableError

DRIFT: Final = 1e-3
"""By how much two clocks may go apart, as a part of the time: NTP slews each by half of it at the most."""

LONGEST_LEASE_SECONDS: Final = 7 * 24 * 3600
"""For so long a lease that was given before the database's clock was set ahead may still run."""

_COUNTER: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def counted() -> float:
    """Seconds that have passed, by a clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(_COUNTER)


@dataclass(frozen=True, slots=True)
class Moment:
    """What time it is, as far as that is known; the two are some milliseconds apart.

    Args:
        latest: it is not later: what closes behind it is still open. Moments are compared with this one, and written.
        earliest: it is not earlier: a lease that ends behind it still runs.
    """

    latest: datetime
    earliest: datetime


@dataclass(frozen=True, slots=True)
class Reading:
    """What a database's clock said, at some moment in between.

    Args:
        began: as `counted`, before it was asked.
        told: what it said.
        ended: as `counted`, when the answer was there.
    """

    began: float
    told: datetime
    ended: float


@dataclass(frozen=True, slots=True)
class _Known:
    """Bounds of what the database's clock says, less what is counted.

    Args:
        low: the least that it may be.
        high: the most.
        at: when that was, as `counted`.
        before: the least that it was before the database's clock was set ahead; leases of that time go by it.
        before_until: when none of them is left.
    """

    low: float
    high: float
    at: float
    before: float
    before_until: float


class Clock:
    """The clock of one database.

    Args:
        read: reads it; None: it is the machine's own.
    """

    def __init__(self, read: Callable[[], Reading] | None) -> None:
        self._read = read or _own
        self._own = read is None
        self._known: _Known | None = None
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Read the database's clock.

        Raises:
            SQLAlchemyError: the database does not answer.
        """
        reading = self._read()
        told, lasted = reading.told.timestamp(), reading.ended - reading.began
        low, high = told - reading.ended, told - reading.began + DRIFT * lasted
        with self._lock:
            self._known = _narrowed(self._known, low, high, reading.ended)

    @property
    def known(self) -> bool:
        """Whether it can be told without asking the database."""
        return self._own or self._known is not None

    def moment(self, *, wait: bool = True) -> Moment:
        """What time it is.

        Args:
            wait: for the database, if its clock was never read. Without it the caller is not blocked.

        Raises:
            LedgerUnavailableError: its clock was never read, and the caller does not wait.
            SQLAlchemyError: its clock was never read, and it does not answer.
        """
        if self._own:
            self.sample()
        elif self._known is None:
            if not wait:
                raise LedgerUnavailableError("The database's clock was not read yet. Repeat the request in a moment.")
            self.sample()
        known, at = self._known, counted()
        assert known is not None, "it was read"
        slack = DRIFT * max(0.0, at - known.at)
        low = known.low - slack
        if at < known.before_until:
            low = min(low, known.before)
        return Moment(_utc(at + known.high + slack), _utc(at + low))

    def now(self) -> datetime:
        """What is compared with most moments, and written: the latest that it may be."""
        return self.moment().latest

    def own_is_ahead(self) -> float | None:
        """By how many seconds this machine's clock is ahead of the database's; None: that was never read."""
        known = self._known
        if known is None or self._own:
            return 0.0 if self._own else None
        return datetime.now(UTC).timestamp() - counted() - (known.low + known.high) / 2


def _narrowed(known: _Known | None, low: float, high: float, at: float) -> _Known:
    """Take in a reading: where it agrees with what is known, each bound is the better one."""
    if known is None:
        return _Known(low, high, at, before=low, before_until=at)
    slack = DRIFT * max(0.0, at - known.at)
    least, most = known.low - slack, known.high + slack
    before, until = known.before, known.before_until
    if low > most:
        before, until = min(least, before) if at < until else least, at + LONGEST_LEASE_SECONDS
    elif high >= least:
        low, high = max(low, least), min(high, most)
    return _Known(low, high, at, before, until)


def _own() -> Reading:
    began = counted()
    return Reading(began, datetime.now(UTC), counted())


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
