"""Privacy filters: which spent curves stay within an (epsilon, delta) limit that was fixed beforehand.

ADR 0005 holds the proof and the counterexample that forbids the full delta at every order under
adaptive choice.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_at_orders, threshold_units
from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.orders import orders
from app.ledger.errors import InvalidInputError

PLANNED_SHARE = 0.96
"""The part of delta that the planned order gets."""

NEIGHBOUR_FACTORS = np.geomspace(0.25, 4.0, 8)
"""Where the other orders lie: (order - 1) as a multiple of (planned order - 1)."""


class FilterKind(StrEnum):
    """How a limit is enforced: `adaptive` under any choice, `declared` only for plans fixed in advance."""

    ADAPTIVE = "adaptive"
    DECLARED = "declared"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that may be spent on an account.

    Args:
        epsilon: in nats, in (0, 10000].
        delta: in [1e-30, 0.5).

    Raises:
        InvalidInputError: a value is outside its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse what no account could mean."""
        if not 0 < self.epsilon <= 10_000:  # noqa: PLR2004 - the range is documented above
            raise InvalidInputError(f"The limit's epsilon must be in (0, 10000], not {self.epsilon}.")
        if not 1e-30 <= self.delta < 0.5:  # noqa: PLR2004
            raise InvalidInputError(f"The limit's delta must be in [1e-30, 0.5), not {self.delta}.")


@dataclass(frozen=True, slots=True)
class FilterWeights:
    """The public weights of an adaptive filter, frozen with the first charge.

    Args:
        indices: places in the grid of orders, increasing.
        deltas: the part of delta at each of these orders, each positive.
    """

    indices: tuple[int, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        """Hold what every filter needs: distinct increasing orders, positive deltas."""
        assert len(self.indices) == len(self.deltas) > 0
        assert all(a < b for a, b in zip(self.indices, self.indices[1:], strict=False))
        assert all(delta > 0 for delta in self.deltas)

    def within(self, delta: float) -> bool:
        """Whether the parts sum to at most `delta`, exactly."""
        return sum(map(Fraction, self.deltas)) <= Fraction(delta)


def adaptive_weights(limit: Limit, workload: RdpCurve, grid_version: int) -> FilterWeights:
    """Choose the weights under which most repetitions of a workload fit.

    Args:
        limit: the account's limit.
        workload: the curve of one repetition of what is planned; not zero.
        grid_version: the grid of the workload.

    Returns:
        96 % of delta on the order that fits most repetitions, the rest evenly over up to 8 orders around it.

    Source: the filter of a single order is Feldman & Zrnic 2021 (arXiv 2008.11193), Theorem 4.3; the
        union over orders is ADR 0005.
    """
    grid = orders(grid_version)
    most = threshold_units(grid, limit.epsilon, PLANNED_SHARE * limit.delta)
    usable = (most >= 0) & (workload.values < EXHAUSTED)
    repetitions = np.where(usable, most / np.maximum(workload.values, 1), -1.0)
    planned = int(np.argmax(repetitions))
    wished = 1.0 + (grid[planned] - 1.0) * NEIGHBOUR_FACTORS
    nearest = {int(np.argmin(np.abs(np.log(grid - 1.0) - np.log(order - 1.0)))) for order in wished}
    around = nearest - {planned}
    rest = (1.0 - PLANNED_SHARE) * limit.delta * (1.0 - 1e-12) / len(around)
    indices = tuple(sorted(around | {planned}))
    deltas = tuple(PLANNED_SHARE * limit.delta if index == planned else rest for index in indices)
    weights = FilterWeights(indices, deltas)
    assert weights.within(limit.delta)
    return weights


@lru_cache(maxsize=4096)
def thresholds(limit: Limit, kind: FilterKind, weights: FilterWeights | None, grid_version: int) -> NDArray[np.int64]:
    """How much may be spent at each order.

    Args:
        limit: the account's limit.
        kind: the account's filter.
        weights: the frozen weights of an adaptive filter; None for a declared one.
        grid_version: the account's grid.

    Returns:
        (n_orders,) int64, units of 2^-44 nats, rounded down; -1 where the order does not count.

    Source: DESIGN section 4: B_j = epsilon - ln(1 - 1/a_j) + ln(delta_j a_j)/(a_j - 1).
    """
    grid = orders(grid_version)
    if kind is FilterKind.DECLARED:
        found = threshold_units(grid, limit.epsilon, limit.delta)
    else:
        assert weights is not None, "an adaptive filter decides by frozen weights"
        assert weights.within(limit.delta)
        chosen = np.array(weights.indices)
        found = np.full(grid.shape, -1, dtype=np.int64)
        found[chosen] = threshold_units(grid[chosen], limit.epsilon, np.array(weights.deltas))
    found.setflags(write=False)
    return found


def spent_epsilon(
    spent: RdpCurve, delta: float, kind: FilterKind, weights: FilterWeights | None, grid_version: int
) -> float:
    """The odometer: the smallest epsilon limit that this filter would still have held.

    Args:
        spent: what was spent.
        delta: of the limit.
        kind: the filter.
        weights: frozen weights; None for a declared filter, or before the first charge.
        grid_version: the grid of `spent`.

    Returns:
        Epsilon in nats, at least 0, infinite where every order is exhausted.
    """
    if spent.is_zero:
        return 0.0
    grid = orders(grid_version)
    nats = spent.nats()
    if kind is FilterKind.DECLARED or weights is None:
        at_orders = epsilon_at_orders(grid, nats, delta)
    else:
        chosen = np.array(weights.indices)
        at_orders = epsilon_at_orders(grid[chosen], nats[chosen], np.array(weights.deltas))
    return max(0.0, float(np.min(at_orders)))


def smallest_useful_epsilon(delta: float, kind: FilterKind, grid_version: int) -> float:
    """The epsilon below which a limit could never admit anything at this delta.

    Args:
        delta: of the limit.
        kind: the filter.
        grid_version: the grid of orders.

    Returns:
        Epsilon in nats.
    """
    share = delta if kind is FilterKind.DECLARED else PLANNED_SHARE * delta
    grid = orders(grid_version)
    return max(0.0, float(np.min(epsilon_at_orders(grid, np.zeros(grid.shape), share))))
