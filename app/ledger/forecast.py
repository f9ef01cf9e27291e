"""Forecast when an account will reach its limit at its recent pace.

Epsilon is unsuitable: the first step takes a large part of it, the thousandth almost none. A steady workload uses an
evenly growing share of the filter's threshold at the order that admits longest.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.accounting.curves import EXHAUSTED
from app.ledger.accounts import Account

LARGEST_SHARE: Final = 1e9
"""Share of an exhausted account."""

FARTHEST_DAYS: Final = 36_500.0
"""Longest forecast."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The used share of a limit, its growth, and the days until it is 1.

    None is unknown; for `days_left` also never or already.
    """

    share: float
    per_day: float | None
    days_left: float | None


def share_used(account: Account) -> float:
    """Compute the used share of an account's limit by its filter.

    It is the minimum over orders j of spent_j / B_j, or the used share of delta for own deltas if that is larger.
    """
    if account.spent.is_zero:
        return 0.0
    gate = account.bounds(account.spent.delta)
    spent = account.spent.values[gate.places]
    usable = (gate.bounds > 0) & (spent < EXHAUSTED)
    by_order = np.where(usable, spent / np.maximum(gate.bounds, 1), LARGEST_SHARE)
    by_delta = account.spent.delta / gate.room if gate.room > 0 else (LARGEST_SHARE if account.spent.delta else 0.0)
    return min(LARGEST_SHARE, max(float(by_order.min()), by_delta))


def forecast(share: float, before: float, days: float) -> Forecast:
    """Extrapolate the growth of a share from `before`, `days` ago, to `share` linearly."""
    if days <= 0:
        return Forecast(share, None, None)
    per_day = max(0.0, share - before) / days
    left = (1.0 - share) / per_day if per_day > 0 and share < 1 else None
    return Forecast(share, per_day, left if left is not None and left <= FARTHEST_DAYS else None)
