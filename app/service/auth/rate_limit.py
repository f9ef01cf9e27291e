"""How often one may ask: a bucket of tokens for each asker, in this process.

Own code and not the package `limits`: its windows let twice the rate pass at their seams or forbid a burst, and take
2.7 to 5 us a request; this takes 0.2 us (measured).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

from app.ledger.errors import RateLimitedError

MOST_BUCKETS: Final = 10_000
"""How many askers are remembered; beyond it, those whose bucket is full are forgotten first."""

_ROUNDING: Final = 1e-6
"""Seconds by which sums of moments may be wrong: an exact burst must not fail by it."""


class TokenBuckets:
    """A bucket for each name, filled at a steady rate. Used from one event loop, so it needs no lock.

    A bucket is one number, the moment at which it will be full (the generic cell rate algorithm, ITU-T I.371): a bucket
    that is full need not be remembered.

    Args:
        per_second: tokens that flow into each bucket; 0: nobody is held up.
        burst: tokens that a bucket holds, at least 1.
        told: what an asker is told whose bucket is empty.
    """

    def __init__(self, per_second: float, burst: int, told: str) -> None:
        self._token = 1 / per_second if per_second else 0.0
        self._room = self._token * (burst - 1) + _ROUNDING
        self._told = told
        self._full_at: dict[str, float] = {}

    def take(self, name: str) -> None:
        """Take a token.

        Args:
            name: of the bucket.

        Raises:
            RateLimitedError: the bucket is empty; nothing was taken.
        """
        if not self._token:
            return
        now = monotonic()
        full_at = self._full_at.get(name, now)
        lacking = full_at - now - self._room
        if lacking > 0:
            raise RateLimitedError(self._told, retry_after=math.ceil(lacking))
        if len(self._full_at) >= MOST_BUCKETS:
            self._forget(now)
        self._full_at[name] = (max(now, full_at)) + self._token

    @contextmanager
    def spent_on(self, failure: type[Exception], name: str) -> Iterator[None]:
        """Take a token, and give it back unless what is done meanwhile fails in this way.

        Args:
            failure: what costs a token.
            name: of the bucket.

        Raises:
            RateLimitedError: the bucket is empty; nothing was done.
        """
        self.take(name)
        try:
            yield
        except failure:
            raise
        except BaseException:
            self._give_back(name)
            raise
        self._give_back(name)

    def _give_back(self, name: str) -> None:
        if name in self._full_at:
            self._full_at[name] -= self._token

    def _forget(self, now: float) -> None:
        left = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        # So many at once are a flood, under names that nobody can tell apart: to remember them all is what it wants.
        self._full_at = left if len(left) < MOST_BUCKETS // 2 else {}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How often one may ask.

    Args:
        keys: by the id of a known key.
        anonymous: requests without one, by the address that they come from.
        sign_ins: sessions that begin, by the key or person: each stays in the organisation's chain for ever.
        sign_ins_tried: attempts to begin one, whatever comes of them, by the address.
    """

    keys: TokenBuckets
    anonymous: TokenBuckets
    sign_ins: TokenBuckets
    sign_ins_tried: TokenBuckets


STRANGERS_SECONDS: Final = 10
"""A stranger may ask at once what it may ask in so many seconds."""


SIGN_INS_MINUTES: Final = 10
"""A key or a person may sign in at once as often as in so many minutes."""

ADDRESS_FACTOR: Final = 10
"""So many times as often as one key, all who share an address may try to sign in."""


def request_limits(
    keys_per_second: float, keys_burst: int, failures_per_second: float, sign_ins_per_minute: float
) -> RequestLimits:
    """The rates of a process.

    Args:
        keys_per_second: requests of one key; 0: as many as come.
        keys_burst: so many of them at once, at least 1.
        failures_per_second: requests without a known key, of one address; 0: as many as come.
        sign_ins_per_minute: of one key or person; 0: as many as come.
    """
    at_once = math.ceil(sign_ins_per_minute * SIGN_INS_MINUTES) or 1
    return RequestLimits(
        TokenBuckets(
            keys_per_second, keys_burst, "This key asks more often than one may. Repeat the request in a moment."
        ),
        TokenBuckets(
            failures_per_second,
            math.ceil(failures_per_second * STRANGERS_SECONDS) or 1,
            "Too many requests without a known key came from this address. Repeat the request in a moment.",
        ),
        TokenBuckets(
            sign_ins_per_minute / 60,
            at_once,
            "This key or person has signed in too often. Stay signed in, or wait; programs send the key itself.",
        ),
        TokenBuckets(
            sign_ins_per_minute / 60 * ADDRESS_FACTOR,
            at_once * ADDRESS_FACTOR,
            "Too many sign-ins were tried from this address. Wait, and try again.",
        ),
    )
