"""Limit request rates by token buckets of this process.

The package `limits` was slower (2.7 to 5 us a request against 0.2 us), and its windows allow twice the rate at their
edges or forbid bursts.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from app.ledger.errors import AuthenticationError, RateLimitedError
from app.service.auth.oidc.errors import ProviderUnavailableError

MOST_BUCKETS: Final = 10_000
"""How many buckets are kept; beyond it, full ones are dropped first."""

_ROUNDING: Final = 1e-6
"""Tolerance in seconds for sums of times, so that an exact burst passes."""


class TokenBuckets:
    """Token buckets by name, for use from one event loop.

    A bucket is one number, the time at which it will be full (generic cell rate algorithm, ITU-T I.371). Full buckets
    need no memory. A rate of 0 means no limit.
    """

    def __init__(self, per_second: float, burst: int, detail: str) -> None:
        self._token = 1 / per_second if per_second else 0.0
        self._room = self._token * (burst - 1) + _ROUNDING
        self._detail = detail
        self._full_at: dict[str, float] = {}

    def take(self, name: str) -> None:
        """Take a token from a bucket. RateLimitedError: the bucket is empty; nothing was taken."""
        if not self._token:
            return
        now = monotonic()
        full_at = self._full_at.get(name, now)
        lacking = full_at - now - self._room
        if lacking > 0:
            raise RateLimitedError(self._detail, retry_after=math.ceil(lacking))
        if len(self._full_at) >= MOST_BUCKETS:
            self._forget(now)
        self._full_at[name] = max(now, full_at) + self._token

    @contextmanager
    def refund_unless(self, failures: tuple[type[Exception], ...], name: str) -> Iterator[None]:
        """Take a token, and return it unless the body raises one of `failures`.

        Raises:
            RateLimitedError: the bucket is empty; the body did not run.
        """
        self.take(name)
        failed = False
        try:
            yield
        except failures:
            failed = True
            raise
        finally:
            if not failed and name in self._full_at:
                self._full_at[name] -= self._token

    def _forget(self, now: float) -> None:
        left = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        # A flood of new names: dropping all buckets is cheaper than tracking them.
        self._full_at = left if len(left) < MOST_BUCKETS // 2 else {}


UNAUTHENTICATED: Final = (AuthenticationError, ProviderUnavailableError)
"""Failures of credentials that anyone can make up, also while nobody can check them."""

STRANGERS_SECONDS: Final = 10
"""Burst of anonymous requests, in seconds of their rate."""

SIGN_INS_MINUTES: Final = 10
"""Burst of sign-ins, in minutes of their rate."""

ADDRESS_FACTOR: Final = 10
"""Login attempts of an address, as a multiple of the sign-ins of one key."""


class RequestLimits:
    """Rate limits of a process; a rate of 0 means no limit.

    Attributes:
        keys: requests, by the id of the key.
        anonymous: requests without a known key, by address.
        exchanges: exchanged tokens, by workload; each makes a key, which stays in the audit log for ever.
        sign_ins: new sessions, by key or person; each stays in the audit log for ever.
        sign_ins_tried: login attempts, by address.
    """

    def __init__(
        self,
        keys_per_second: float,
        keys_burst: int,
        failures_per_second: float,
        sign_ins_per_minute: float,
        exchanges_per_minute: float = 0,
    ) -> None:
        at_once = math.ceil(sign_ins_per_minute * SIGN_INS_MINUTES) or 1
        self.keys = TokenBuckets(
            keys_per_second,
            keys_burst,
            f"Rate limit of this key exceeded: {keys_per_second:g} requests a second, {keys_burst:g} at once, in each "
            "worker process. Nothing was done. Wait as long as Retry-After says, and ask for several steps at once: "
            "`count`, or `prefetch` of the client.",
        )
        self.anonymous = TokenBuckets(
            failures_per_second,
            math.ceil(failures_per_second * STRANGERS_SECONDS) or 1,
            "Too many requests without a valid key from this address. Retry the request shortly.",
        )
        self.exchanges = TokenBuckets(
            exchanges_per_minute / 60,
            math.ceil(exchanges_per_minute * SIGN_INS_MINUTES) or 1,
            "This workload has exchanged too many tokens. Keep the key until it expires, or wait.",
        )
        self.sign_ins = TokenBuckets(
            sign_ins_per_minute / 60,
            at_once,
            "This key or person has signed in too often. Stay signed in, or wait; programs send the key itself.",
        )
        self.sign_ins_tried = TokenBuckets(
            sign_ins_per_minute / 60 * ADDRESS_FACTOR,
            at_once * ADDRESS_FACTOR,
            "Too many sign-ins were tried from this address. Wait, and try again.",
        )
