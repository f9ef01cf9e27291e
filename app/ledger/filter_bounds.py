"""What a limit lets through: the thresholds of a filter, ready for one decision after another."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor, inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration.targets import declared_bounds
from app.accounting.conversion import (
    conversion_prices,
    covered_by_delta,
    delta_left,
    epsilon_at_orders,
    threshold_units,
)
from app.accounting.curves import DELTA_UNIT, UNIT, RdpCurve
from app.accounting.orders import orders
from app.ledger.filters import FilterKind, FilterWeights, Limit

# Arrays without dimensions: numpy takes twice as long for a Python number.
_ONE: Final = np.array(1)
_BELOW_ZERO: Final = np.array(-1)


@dataclass(frozen=True, slots=True, eq=False)
class FilterBounds:
    """The orders at which a filter decides, and how much may be spent at each.

    Args:
        places: indices into the grid, increasing; a full slice if every order counts.
        bounds: (n_places,) int64, units of 2^-44 nats, rounded down; -1 at an order that admits nothing.
        prices: (n_places,) what the conversion to epsilon adds at each order, nats.
        room: how much of delta mechanisms may take by a delta of their own, units of 2^-62.
        covered: the divergence that delta covers by itself at epsilon 0, units of 2^-44 nats; -1 if none.
    """

    places: NDArray[np.intp] | slice
    bounds: NDArray[np.int64]
    prices: NDArray[np.float64]
    room: int
    covered: int = -1

    def left(self, *taken: RdpCurve) -> NDArray[np.int64]:
        """What remains at each place after some curves.

        Args:
            taken: over the whole grid.

        Returns:
            (n_places,) int64, units of 2^-44 nats; negative where the order can admit nothing more.
        """
        # A bound is below EXHAUSTED, so an exhausted order ends below zero; from -1 nothing falls out of int64.
        left = self.bounds - taken[0].values[self.places]
        for curve in taken[1:]:
            left = np.maximum(left, _BELOW_ZERO) - curve.values[self.places]
        return left

    def repetitions(self, left: NDArray[np.int64], curve: RdpCurve) -> int:
        """How often a charge fits into what is left, by its curve alone.

        Args:
            left: as `left` returned.
            curve: of one repetition, over the whole grid.

        Returns:
            The largest count that some order admits; below 0 if too much is taken already.
        """
        return int((left // np.maximum(curve.values[self.places], _ONE)).max())

    def epsilon(self, spent: RdpCurve) -> float:
        """The smallest epsilon limit that this filter would still have held.

        Args:
            spent: over the whole grid.

        Returns:
            Epsilon in nats, at least 0, infinite where every order is exhausted or delta is used up.
        """
        if spent.delta > self.room:
            return inf
        here = spent.at(self.places)
        if self.covered >= 0 and bool((here.values <= self.covered).any()):
            return 0.0
        return max(0.0, float((here.nats() + self.prices).min()))


@lru_cache(maxsize=4096)
def adaptive_filter_bounds(limit: Limit, weights: FilterWeights, grid_version: int) -> FilterBounds:
    """The gate of an adaptive filter.

    Args:
        limit: the account's limit.
        weights: frozen.
        grid_version: the account's grid.

    Returns:
        The gate at the orders of the weights. Their reserve is for mechanisms with a delta of their own: both were
        fixed beforehand, so their failures add up (ADR 0007).

    Source: DESIGN section 4: B_j = epsilon - ln(1 - 1/a_j) + ln(delta_j a_j)/(a_j - 1).
    """
    assert weights.within(limit.delta), "the parts of delta are within it"
    places = np.array(weights.indices)
    chosen, deltas = orders(grid_version)[places], np.array(weights.deltas)
    bounds = threshold_units(chosen, limit.epsilon, deltas)
    return FilterBounds(places, bounds, epsilon_at_orders(chosen, np.zeros(chosen.shape), deltas), weights.set_aside())


@lru_cache(maxsize=1024)
def declared_filter_bounds(limit: Limit, own_delta: int, grid_version: int) -> FilterBounds:
    """The gate of a declared filter: every order, at what the mechanisms' own deltas leave of delta.

    Args:
        limit: the account's limit.
        own_delta: what the mechanisms take of delta, units of 2^-62.
        grid_version: the account's grid.

    Returns:
        The gate; sound because everything, these deltas included, was fixed in advance.

    Source: DESIGN section 4.
    """
    remaining = delta_left(limit.delta, own_delta)
    room = floor(Fraction(limit.delta) / Fraction(DELTA_UNIT))
    return FilterBounds(
        slice(None),
        declared_bounds(limit.epsilon, remaining, grid_version),
        conversion_prices(orders(grid_version), remaining),
        room,
        floor(covered_by_delta(remaining) / UNIT) if remaining else -1,
    )


def bounds_of(
    limit: Limit, kind: FilterKind, weights: FilterWeights | None, grid_version: int, own_delta: int = 0
) -> FilterBounds:
    """The gate of an account.

    Args:
        limit: the account's limit.
        kind: its filter.
        weights: frozen weights; None for a declared filter, or before the first charge.
        grid_version: its grid.
        own_delta: what mechanisms take of delta by a delta of their own, units of 2^-62.

    Returns:
        The gate; a filter without weights is read as a declared one.
    """
    if kind is FilterKind.DECLARED or weights is None:
        return declared_filter_bounds(limit, own_delta, grid_version)
    return adaptive_filter_bounds(limit, weights, grid_version)
