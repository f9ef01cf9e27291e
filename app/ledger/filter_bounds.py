"""The thresholds of a filter, precomputed for decisions."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor, inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import (
    conversion_prices,
    declared_bounds,
    epsilon_at_orders,
    rdp_covered_by_delta,
    remaining_delta,
    threshold_units,
)
from app.accounting.curves import DELTA_UNIT, UNIT, RdpCurve, nats_of, orders
from app.ledger.filters import FilterWeights, Limit

# Zero-dimensional arrays: Python ints take numpy twice as long.
_ONE: Final = np.array(1)
_BELOW_ZERO: Final = np.array(-1)


@dataclass(frozen=True, slots=True, eq=False)
class FilterBounds:
    """The orders of a filter and the maximum loss at each.

    Args:
        places: increasing indices into the grid; a full slice for all orders.
        bounds: (n_places,) int64, units of 2^-44 nats, rounded down; -1 at an order that admits nothing.
        prices: (n_places,) nats that the conversion to epsilon adds.
        room: maximum sum of mechanisms' own deltas, units of 2^-62.
        covered: divergence that delta alone covers at epsilon 0, units of 2^-44 nats; -1 if none.
    """

    places: NDArray[np.intp] | slice
    bounds: NDArray[np.int64]
    prices: NDArray[np.float64]
    room: int
    covered: int = -1

    def left(self, *taken: RdpCurve) -> NDArray[np.int64]:
        """Subtract curves from the bounds; (n_places,), negative where an order is exceeded."""
        # Bounds are below EXHAUSTED, so an exhausted order becomes negative; clipping at -1 avoids int64 overflow.
        left = self.bounds - taken[0].values[self.places]
        for curve in taken[1:]:
            left = np.maximum(left, _BELOW_ZERO) - curve.values[self.places]
        return left

    def repetitions(self, left: NDArray[np.int64], curve: RdpCurve) -> int:
        """Count how often a curve fits into `left`, ignoring deltas; negative if exceeded already."""
        return int((left // np.maximum(curve.values[self.places], _ONE)).max())

    def epsilon(self, spent: RdpCurve) -> float:
        """Compute the smallest epsilon limit that this filter would still have admitted."""
        if spent.delta > self.room:
            return inf
        here = spent.values[self.places]
        if self.covered >= 0 and bool((here <= self.covered).any()):
            return 0.0
        return max(0.0, float((nats_of(here) + self.prices).min()))


@lru_cache(maxsize=4096)
def adaptive_filter_bounds(limit: Limit, weights: FilterWeights, grid_version: int) -> FilterBounds:
    """Get the bounds of an adaptive filter.

    B_j = epsilon - ln(1 - 1/a_j) + ln(delta_j a_j)/(a_j - 1). The weights' reserve is for mechanisms with a delta of
    their own: both were fixed in advance, so their failure probabilities add up (ADR 0005, ADR 0007).
    """
    assert weights.within(limit.delta), "the parts of delta are within it"
    places = np.array(weights.indices)
    chosen, deltas = orders(grid_version)[places], np.array(weights.deltas)
    bounds = threshold_units(chosen, limit.epsilon, deltas)
    return FilterBounds(places, bounds, epsilon_at_orders(chosen, np.zeros(chosen.shape), deltas), weights.set_aside())


@lru_cache(maxsize=1024)
def declared_filter_bounds(limit: Limit, own_delta: int, grid_version: int) -> FilterBounds:
    """Get the bounds of a declared filter.

    Every order counts, with the delta that own deltas leave. It is sound because everything, including these deltas,
    was fixed in advance (ADR 0007).
    """
    remaining = remaining_delta(limit.delta, own_delta)
    room = floor(Fraction(limit.delta) / Fraction(DELTA_UNIT))
    return FilterBounds(
        slice(None),
        declared_bounds(limit.epsilon, remaining, grid_version),
        conversion_prices(orders(grid_version), remaining),
        room,
        floor(rdp_covered_by_delta(remaining) / UNIT) if remaining else -1,
    )
