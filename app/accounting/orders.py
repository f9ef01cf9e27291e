"""The versioned grid of Rényi orders that curves are stored over."""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.errors import UnknownGridVersionError

GRID_VERSION: Final = 1
"""Version of the grid, stored with each account."""

HIGHEST: Final = 1024.0
"""The highest order at which divergences are computed."""

PURE: Final = 2.0**60
"""An order that represents infinity: there the divergence is the largest privacy loss, so epsilons of pure mechanisms
add up exactly. Its conversion to epsilon costs less than 1e-15. See docs/adr/0008."""


@lru_cache
def orders(grid_version: int) -> NDArray[np.float64]:
    """Get the read-only, increasing orders of a grid version."""
    if grid_version != GRID_VERSION:
        raise UnknownGridVersionError(f"The grid of orders {grid_version} is unknown; known is {GRID_VERSION}.")
    # The curve of a sampled Gaussian bends upwards at one order, by a factor of up to 1/q per order, and for small
    # epsilons the best order is in that bend. If the nearest grid order is x away from it, epsilon is too large by a
    # share of about ln(1/q) x^2 / (2 (a - 1)): the spacing must grow with the root of a - 1. Steps of 1/70 in that root
    # keep DP-SGD (q from 1e-4, noise multiplier 0.5 to 10, delta 1e-5 to 1e-10, epsilon 0.1 to 20) within 0.1 % of the
    # best order: measured 0.09 % at worst, 0.0004 % at the median (benchmarks/orders_grid.py). For comparison: 128
    # geometric orders 7.6 % and 0.026 %; dp_accounting's 155 orders 86 % and 0.004 %. No best order was above 335; the
    # tail serves smaller epsilons.
    bend = 1 + np.arange(16, 1293) ** 2 / 4900
    tail = np.concatenate([np.arange(344, 512, 8), np.arange(512, 1025, 16)])
    grid = np.append(np.unique(np.concatenate([bend, np.arange(2, 65), tail])), PURE)
    grid.flags.writeable = False
    return grid


def finite_orders(grid_version: int) -> NDArray[np.float64]:
    """Get the orders of a grid without `PURE`: the others bound unbounded noise, as Gaussian noise is."""
    return orders(grid_version)[:-1]
