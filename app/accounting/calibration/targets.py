"""The integer rule that decides, order by order, whether a plan fits (epsilon, delta)."""

from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import rdp_covered_by_delta, remaining_delta, threshold_units
from app.accounting.curves import UNIT, RdpCurve
from app.accounting.orders import GRID_VERSION, orders


@dataclass(frozen=True, slots=True)
class Rule:
    """Accept a plan, fixed in advance, if one order proves the target.

    The target has epsilon >= 0, in nats, and delta in (0, 1).
    """

    epsilon: float
    delta: float
    grid_version: int = GRID_VERSION

    depends_on_plan: ClassVar[bool] = False
    """Whether the bounds depend on more of the plan's curve than its own delta."""

    def bounds(self, total: RdpCurve) -> NDArray[np.int64]:
        """Compute the maximum of each order, after the plan's own delta; see `declared_bounds`."""
        return declared_bounds(self.epsilon, remaining_delta(self.delta, total.delta), self.grid_version)

    def fits(self, total: RdpCurve) -> bool:
        """Check whether some order of a plan's curve is within its bound."""
        return bool((total.values <= self.bounds(total)).any())


@lru_cache(maxsize=64)
def declared_bounds(epsilon: float, delta: float, grid_version: int) -> NDArray[np.int64]:
    """Compute the maximum of each order for a plan that is fixed in advance.

    Args:
        epsilon: in nats, finite and at least 0.
        delta: in [0, 1); at 0 nothing can be proven.
        grid_version: the grid of orders.

    Returns:
        (n_orders,) read-only int64, units of 2^-44 nats, rounded down; -1 where an order proves nothing. An order
        within its bound has at most the given epsilon by `epsilon_from_rdp`.
    """
    grid = orders(grid_version)
    bounds = np.full(grid.shape, -1, dtype=np.int64)
    if delta > 0:
        bounds = np.maximum(threshold_units(grid, epsilon, delta), floor(rdp_covered_by_delta(delta) / UNIT))
    bounds.flags.writeable = False
    return bounds
