"""Thresholds of an account: which of them its epsilon has reached, and how far off the next one is.

Spent never decreases, so neither does epsilon: a threshold is crossed by exactly one charge. To ask each charge for
the account's epsilon would cost more than the charge. One order is enough to prove that a threshold was not reached,
because epsilon is a minimum over orders: as long as that order alone stays below, epsilon does. The order and how much
may be spent at it is a `Watch`; once it no longer holds, epsilon is computed, and the next watch.
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
"""Relative error allowed to each term of an epsilon; the watch gives way a little early, and epsilon decides."""


@dataclass(frozen=True, slots=True)
class ThresholdWatermark:
    """Proof that no further threshold was reached.

    Args:
        passed: how many thresholds were.
        place: an order, by its place in the grid.
        bound: how much may be spent there, units of 2^-44 nats; -1: the watch proves nothing.
        delta: how much mechanisms may have taken of delta, units of 2^-62.
    """

    passed: int
    place: int
    bound: int
    delta: int

    def holds(self, spent: RdpCurve) -> bool:
        """Whether an account that has spent so much has reached no further threshold for certain."""
        # On the hot path, once for every account of a path: a plain number is compared in a tenth of a microsecond.
        return spent.values.item(self.place) <= self.bound and spent.delta <= self.delta


def holds_on(watch: ThresholdWatermark, before: Account, now: Account) -> bool:
    """Whether what a watch proved of an account proves as much of a later state of it, whoever charged meanwhile.

    Args:
        watch: of the earlier state, for the same thresholds.
        before: the earlier state.
        now: the later one; an older one, as a restored backup is, may not have reached what was reached.

    Returns:
        True if it has reached the same thresholds for certain; otherwise epsilon is to be asked.
    """
    return (
        watch.holds(now.spent)
        and before.limit == now.limit
        and before.weights == now.weights
        and (not watch.passed or now.spent.covers(before.spent))
    )


def check_thresholds(thresholds: Sequence[float]) -> None:
    """Refuse thresholds that nothing could be told by.

    Args:
        thresholds: shares of a limit's epsilon.

    Raises:
        InvalidInputError: there are too many, they do not increase, or one is outside (0, 10].
    """
    if len(thresholds) > MOST_THRESHOLDS:
        raise InvalidInputError(f"An account has at most {MOST_THRESHOLDS} thresholds, not {len(thresholds)}.")
    if any(after <= before for before, after in pairwise(thresholds)):
        raise InvalidInputError("Thresholds are written in increasing order, each once.")
    if not all(0 < each <= LARGEST_THRESHOLD for each in thresholds):
        raise InvalidInputError(f"A threshold is a share of the limit's epsilon, in (0, {LARGEST_THRESHOLD:g}].")


def reached(account: Account, thresholds: Sequence[float]) -> int:
    """How many thresholds an account has reached: those whose share of the limit its epsilon is at or above.

    Args:
        account: as it stands.
        thresholds: shares of its limit's epsilon, increasing.

    Returns:
        Their number; 0 for an account without a limit.
    """
    if account.limit is None:
        return 0
    epsilon, limit = account.epsilon(), account.limit.epsilon
    return sum(epsilon >= threshold * limit for threshold in thresholds)


def watermark_of(account: Account, thresholds: Sequence[float]) -> ThresholdWatermark:
    """Find the order that proves longest that an account has not reached its next threshold.

    Args:
        account: as it stands.
        thresholds: shares of its limit's epsilon, increasing.

    Returns:
        The watch; it holds for the account itself, unless nothing or next to nothing lies before the threshold.
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
    # What mechanisms take by a delta of their own moves a declared filter's prices; weights keep it apart from them.
    delta = account.spent.delta if account.weights is None else gate.room
    return ThresholdWatermark(passed, place, max(-1, min(bound, EXHAUSTED - 1)), delta)
