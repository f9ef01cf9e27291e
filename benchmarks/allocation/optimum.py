"""The most plans that blocks can grant: the privacy knapsack, solved exactly.

Maximise the number of granted plans, such that each block has an order at which the granted plans fit. Source:
Tholoniat et al., EuroSys 2025. Solver: HiGHS, by scipy.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from app.ledger.filter.filters import filter_bounds
from benchmarks.allocation.simulation import Workload


@dataclass(frozen=True)
class Optimum:
    """The best found, and the least number that is proven not to be exceeded."""

    granted: int
    at_most: int

    @property
    def is_proven(self) -> bool:
        """Whether nothing better exists."""
        return self.granted == self.at_most


def solve(workload: Workload, seconds: float) -> Optimum | None:
    """Solve a workload whose filter is fixed, all of it unlocked; None if nothing was found in time.

    Variables, all 0 or 1: whether each plan is granted, then for each block and order whether that is the order at
    which the block's plans fit. Demands are parts of the bound, so that at such an order their sum is at most 1; at the
    others it may be all that is asked.
    """
    weights = workload.blocks.weights
    assert weights is not None, "the filter is fixed"
    bounds = filter_bounds(workload.blocks.limit, weights, 1)
    n_plans, n_blocks, n_orders = len(workload.arrivals), len(workload.born), len(bounds.places)
    parts = np.array([each.demand.cost.values[bounds.places] / bounds.bounds for each in workload.arrivals])
    asks = np.zeros((n_blocks, n_plans), dtype=bool)
    for index, arrival in enumerate(workload.arrivals):
        asks[list(arrival.blocks), index] = True
    # An order at which a plan asks for more than the whole block is used only without that plan.
    parts = np.minimum(parts, 1.0 + 1e-6)
    rows = lil_array((n_blocks * n_orders + n_blocks, n_plans + n_blocks * n_orders))
    low, high = np.full(rows.shape[0], -np.inf), np.ones(rows.shape[0])
    for block in range(n_blocks):
        for order in range(n_orders):
            row, flag = block * n_orders + order, n_plans + block * n_orders + order
            asked = np.where(asks[block], parts[:, order], 0.0)
            slack = max(0.0, float(asked.sum()) - 1.0)
            for plan in np.flatnonzero(asked):
                rows[row, plan] = asked[plan]
            rows[row, flag] = slack
            high[row] = 1.0 + slack
        row = n_blocks * n_orders + block
        rows[row, n_plans + block * n_orders : n_plans + (block + 1) * n_orders] = 1.0
        low[row] = 1.0
    costs = np.concatenate([-np.ones(n_plans), np.zeros(n_blocks * n_orders)])
    found = milp(
        costs,
        integrality=np.ones(costs.size, dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows.tocsr(), low, high),
        options={"time_limit": seconds},
    )
    if found.x is None:
        return None
    return Optimum(round(-found.fun), int(np.floor(-found.mip_dual_bound + 1e-6)))
