"""When an account will reach its limit, if it goes on as it has.

Epsilon is no measure of that: the first step takes a large part of it, the thousandth next to nothing. What grows
evenly with a steady workload is the part of the filter's thresholds that is used, at the order that admits longest.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.accounting.curves import EXHAUSTED
from app.ledger.accounts import Account

LARGEST_SHARE: Final = 1e9
"""What an exhausted account counts as."""

FARTHEST_DAYS: Final = 36_500.0
"""What lies beyond is no forecast."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an account's use so far lets expect.

    Args:
        share: the part of the limit that is used, as the filter counts it; nothing is admitted from 1 on.
        per_day: by how much it grew a day; None: too little is known.
        days_left: until it reaches 1; None: never, or it has, or nobody knows.
    """

    share: float
    per_day: float | None
    days_left: float | None


def share_used(account: Account) -> float:
    """The part of an account's limit that is used, as its filter counts.

    Args:
        account: with a limit.

    Returns:
        spent_j / B_j at the order j where it is smallest, or the part of delta that mechanisms took by a delta of
        their own, if that is larger; at least 0.
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
    """Let an account go on at the pace of the last days.

    Args:
        share: used now.
        before: used then.
        days: how long ago that was; 0: too short to say anything.

    Returns:
        The forecast by the straight line through both.
    """
    if days <= 0:
        return Forecast(share, None, None)
    per_day = max(0.0, share - before) / days
    left = (1.0 - share) / per_day if per_day > 0 and share < 1 else None
    return Forecast(share, per_day, left if left is not None and left <= FARTHEST_DAYS else None)
