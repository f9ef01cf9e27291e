"""Alert thresholds: shares of a limit's epsilon that an account crosses once.

The spent curve never decreases, and neither does epsilon. Computing epsilon would cost more than the charge. One order
is enough to prove that a threshold was not reached: epsilon is a minimum over orders, so it stays below as long as that
order does. A watermark is the order and its maximum; once it is exceeded, epsilon and the next watermark are computed
(ADR 0018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from typing import Final

import numpy as np

from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve
from app.ledger.accounts import Account
from app.ledger.errors import InvalidInputError

DEFAULT_THRESHOLDS: Final = (0.5, 0.8, 1.0)
"""Shares of a limit's epsilon."""

MOST_THRESHOLDS: Final = 10
LARGEST_THRESHOLD: Final = 10.0
"""An overdrawn account may be far past its limit."""

_ROUNDING: Final = 2.0**-48
"""Relative error allowed for each term of an epsilon; the watermark is a little early, and epsilon decides."""


@dataclass(frozen=True, slots=True)
class ThresholdWatermark:
    """Proof that no further threshold was reached.

    Args:
        passed: number of thresholds reached.
        place: grid index of an order.
        bound: maximum spent there, units of 2^-44 nats; -1 proves nothing.
        delta: maximum sum of mechanisms' own deltas, units of 2^-62.
    """

    passed: int
    place: int
    bound: int
    delta: int

    def holds(self, spent: RdpCurve) -> bool:
        """Check whether a spent curve has provably reached no further threshold."""
        # Hot path, once per account and step: comparing Python ints takes a tenth of a microsecond.
        return spent.values.item(self.place) <= self.bound and spent.delta <= self.delta


def holds_on(watch: ThresholdWatermark, before: Account, now: Account) -> bool:
    """Check whether a watermark still proves the same for a later account state.

    If not, epsilon must be computed. `now` may be older than `before` after a restore; then the thresholds that were
    reached may not be.
    """
    return (
        watch.holds(now.spent)
        and before.limit == now.limit
        and before.weights == now.weights
        and (not watch.passed or now.spent.covers(before.spent))
    )


def check_thresholds(thresholds: Sequence[float]) -> None:
    """Raise InvalidInputError unless there are few increasing thresholds in (0, 10]."""
    if len(thresholds) > MOST_THRESHOLDS:
        raise InvalidInputError(f"An account has at most {MOST_THRESHOLDS} thresholds, not {len(thresholds)}.")
    if any(after <= before for before, after in pairwise(thresholds)):
        raise InvalidInputError("Thresholds are written in increasing order, each once.")
    if not all(0 < each <= LARGEST_THRESHOLD for each in thresholds):
        raise InvalidInputError(f"A threshold is a share of the limit's epsilon, in (0, {LARGEST_THRESHOLD:g}].")


def reached(account: Account, thresholds: Sequence[float]) -> int:
    """Count the thresholds that an account's epsilon has reached; 0 without a limit."""
    if account.limit is None:
        return 0
    epsilon, limit = account.epsilon(), account.limit.epsilon
    return sum(epsilon >= threshold * limit for threshold in thresholds)


def watermark_of(account: Account, thresholds: Sequence[float]) -> ThresholdWatermark:
    """Find the order that proves longest that the next threshold is not reached.

    The watermark holds for the account itself, unless it is at or next to the threshold.
    """
    passed = reached(account, thresholds)
    if account.limit is None or passed == len(thresholds):
        return ThresholdWatermark(passed, 0, EXHAUSTED, EXHAUSTED)
    if account.spent.is_zero:  # its filter may not be fixed yet
        return ThresholdWatermark(passed, 0, -1, 0)
    gate = account.bounds(account.spent.delta)
    best = int(np.argmin(account.spent.at(gate.places).nats() + gate.prices))
    target, price = thresholds[passed] * account.limit.epsilon, float(gate.prices[best])
    bound = floor((target - price - _ROUNDING * (target + abs(price))) / UNIT) - 1
    place = best if isinstance(gate.places, slice) else int(gate.places[best])
    # Own deltas change the prices of a declared filter; weights keep them separate.
    delta = account.spent.delta if account.weights is None else gate.room
    return ThresholdWatermark(passed, place, max(-1, min(bound, EXHAUSTED - 1)), delta)
