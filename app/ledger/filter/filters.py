"""Privacy filters: which spent curves stay within an (epsilon, delta) limit fixed in advance.

ADR 0005 has the proof, and the counterexample to spending the full delta at every order under adaptive choice.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor, inf, nextafter
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import conversion_prices, epsilon_at_orders, threshold_units
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, HIGHEST, RdpCurve, nats_of, orders
from app.accounting.exact_losses import UNBOUNDED, UNBOUNDED_LOSSES, Coordinate, exact, pure_nats, quotient
from app.ledger.errors import DeltaTooLargeError, LimitTooSmallError
from app.ledger.filter.limits import Limit

SET_ASIDE = 0.01
"""Minimum share of delta reserved for mechanisms with a delta of their own."""

PLANNED_SHARE = 0.96
"""Share of delta for the planned order, without a plan."""

AROUND_SHARE = 1.0 - PLANNED_SHARE - SET_ASIDE
"""Share of delta for the other orders, without a plan."""

NEIGHBOUR_FACTORS = np.geomspace(0.25, 4.0, 8)
"""The other orders: (order - 1) as a multiple of (planned order - 1)."""


@dataclass(frozen=True, slots=True)
class PlanBound:
    """What a limit allows of an account's planned events (ADR 0038).

    Args:
        share: of the limit's delta, as it was chosen for the plan.
        delta: positive part of delta for the plan; less than the share if events have a delta of their own.
        steps: number of planned steps that fit, from the first.
    """

    share: float
    delta: float
    steps: int

    def __post_init__(self) -> None:
        """Check the ranges."""
        assert self.delta > 0
        assert self.steps >= 0


@dataclass(frozen=True, slots=True)
class FilterWeights:
    """The public weights of a filter, frozen before the first charge.

    Args:
        indices: increasing indices in the grid of orders.
        deltas: positive part of delta at each of these orders.
        reserve: part of delta for mechanisms with a delta of their own.
        plan: what the limit allows of the planned events; None: the account has no plan, or left it.
    """

    indices: tuple[int, ...]
    deltas: tuple[float, ...]
    reserve: float = 0.0
    plan: PlanBound | None = None

    def __post_init__(self) -> None:
        """Check for distinct increasing orders and positive deltas."""
        assert len(self.indices) == len(self.deltas) > 0
        assert all(a < b for a, b in zip(self.indices, self.indices[1:], strict=False))
        assert all(delta > 0 for delta in self.deltas)
        assert self.reserve >= 0

    def within(self, delta: float) -> bool:
        """Check whether the parts and the reserve sum to at most `delta`, exactly."""
        return sum(map(Fraction, self.parts)) <= Fraction(delta)

    @property
    def parts(self) -> tuple[float, ...]:
        """All parts of delta: of the orders, the reserve and the plan."""
        return (*self.deltas, self.reserve, *(() if self.plan is None else (self.plan.delta,)))

    def set_aside(self) -> int:
        """Get the reserve in units of 1e-18, rounded down."""
        return floor(Fraction(self.reserve) / DELTA_UNIT)

    @classmethod
    def of(
        cls, delta: float, indices: tuple[int, ...], deltas: tuple[float, ...], plan: PlanBound | None = None
    ) -> Self:
        """Create weights that reserve the rest of `delta`, rounded down."""
        left = Fraction(delta) - sum(map(Fraction, (*deltas, *(() if plan is None else (plan.delta,)))))
        assert left >= 0, "the parts of delta are within it"
        reserve = float(left)
        return cls(indices, deltas, reserve if Fraction(reserve) <= left else nextafter(reserve, 0.0), plan)


def spread_delta(limit: Limit, workload: RdpCurve, grid_version: int) -> float:
    """Compute the delta of a limit of which the orders and the plan have shares; 1 % of it is always reserved.

    It is smaller for a workload with a delta of its own, so that the reserve and the orders run out together.
    """
    aside = _balanced_share(limit, workload, grid_version) if workload.delta else SET_ASIDE
    return limit.delta * ((1.0 - aside) / (1.0 - SET_ASIDE))


def spread_beside(limit: Limit, own_delta: int) -> float:
    """Compute the most of a limit's delta that orders and plan may share beside own deltas, in units of 1e-18."""
    return (limit.delta - (own_delta + 1) * DELTA_UNIT) / (1.0 - SET_ASIDE) * (1.0 - 1e-12)


def filter_weights(
    limit: Limit, workload: RdpCurve, grid_version: int, plan: PlanBound | None = None, spread: float | None = None
) -> FilterWeights:
    """Choose the weights that fit the most repetitions of a nonzero workload.

    Args:
        limit: of the account.
        workload: to repeat.
        grid_version: of its orders.
        plan: what it allows of a plan.
        spread: delta that the plan and the orders share; None: as `spread_delta` computes for the workload.

    Of what the plan and the reserve leave, 97 % goes to the order that fits the most repetitions, and the rest evenly
    to up to 8 orders around it.

    Source: the filter of a single order is Feldman & Zrnic 2021 (arXiv 2008.11193), Theorem 4.3; the union over orders
    is ADR 0005, and with a plan ADR 0038.
    """
    if spread is None:
        spread = spread_delta(limit, workload, grid_version)
    for_orders = 1.0 if plan is None else 1.0 - plan.delta / ((1.0 - SET_ASIDE) * spread)
    grid = orders(grid_version)
    planned_delta = PLANNED_SHARE * spread * for_orders
    planned = int(np.argmax(_repetitions_at_orders(limit.value, planned_delta, workload, grid_version)))
    # The order that represents infinity has no neighbours: the highest computed orders replace them.
    centre = min(float(grid[planned]) - 1.0, HIGHEST - 1.0)
    if grid[planned] > HIGHEST:
        centre /= float(NEIGHBOUR_FACTORS[-1])
    wished = 1.0 + centre * NEIGHBOUR_FACTORS
    nearest = {int(np.argmin(np.abs(np.log(grid - 1.0) - np.log(order - 1.0)))) for order in wished}
    around = nearest - {planned}
    rest = AROUND_SHARE * spread * for_orders * (1.0 - 1e-12) / len(around)
    indices = tuple(sorted(around | {planned}))
    deltas = tuple(planned_delta if index == planned else rest for index in indices)
    return FilterWeights.of(limit.delta, indices, deltas, plan)


def _repetitions_at_orders(epsilon: float, delta: float, workload: RdpCurve, grid_version: int) -> NDArray[np.float64]:
    """Compute how often a workload fits at each order; -1 where an order is unusable."""
    most = threshold_units(orders(grid_version), epsilon, delta)
    usable = (most >= 0) & (workload.values < EXHAUSTED)
    return np.where(usable, most / np.maximum(workload.values, 1), -1.0)


def _balanced_share(limit: Limit, workload: RdpCurve, grid_version: int) -> float:
    """Compute the reserve that lets own deltas and curves run out together."""
    low, high = SET_ASIDE, 0.99
    for _ in range(20):
        share = (low + high) / 2
        by_delta = share * limit.delta / (workload.delta * DELTA_UNIT)
        spread = (1.0 - share) * limit.delta
        by_curve = float(np.max(_repetitions_at_orders(limit.value, spread, workload, grid_version)))
        low, high = (share, high) if by_delta < by_curve else (low, share)
    return high


def smallest_useful_epsilon(delta: float, grid: NDArray[np.float64]) -> float:
    """Compute the epsilon below which a limit with this delta admits nothing at the orders of a grid."""
    return max(0.0, float(conversion_prices(grid, PLANNED_SHARE * delta).min()))


def check_delta(delta: float, population_size: int) -> None:
    """Reject a delta of 1/size or more."""
    if delta * population_size >= 1:
        raise DeltaTooLargeError(
            f"delta {delta:g} is not below 1/{population_size} = {1 / population_size:.3g}: it would allow "
            f"one whole record of this population to be published. Choose a smaller delta.",
            delta=delta,
            population_size=population_size,
        )


def check_limit(limit: Limit, population_size: int | None, grid_version: int = GRID_VERSION) -> None:
    """Reject a limit whose delta is 1/size or more, or that admits no mechanism."""
    if population_size is not None:
        check_delta(limit.delta, population_size)
    if limit.is_exact:
        return
    smallest = smallest_useful_epsilon(limit.delta, orders(grid_version))
    if limit.value <= smallest:
        raise LimitTooSmallError(
            f"With delta {limit.delta:g} no mechanism can be admitted below epsilon {smallest:.4g}; "
            f"the limit's epsilon is {limit.value:g}. Choose a larger epsilon or a larger delta.",
            smallest_epsilon=smallest,
        )


_BELOW_ZERO: Final = np.array(-1)
"""A zero-dimensional array: Python ints take numpy twice as long."""


@dataclass(frozen=True, slots=True, eq=False)
class FilterBounds:
    """The orders of a filter and the maximum loss at each, and the maximum of the loss that is kept exactly.

    Args:
        places: (n_places,) increasing indices into the grid.
        bounds: (n_places,) int64, units of 2^-44 nats, rounded down; -1 at an order that admits nothing.
        prices: (n_places,) nats that the conversion to epsilon adds.
        room: maximum sum of mechanisms' own deltas, units of 1e-18.
        most: maximum of the exact loss, units of 1 / PER_NAT: it takes no part of delta (ADR 0046, ADR 0052).
        coordinate: of the exact loss.
    """

    places: NDArray[np.intp]
    bounds: NDArray[np.int64]
    prices: NDArray[np.float64]
    room: int
    most: int
    coordinate: Coordinate = Coordinate.PURE

    def exact_loss(self, curve: RdpCurve) -> int:
        """Get the exact loss of a curve that is bounded."""
        return curve.exact[self.coordinate]

    @property
    def unbounded(self) -> int:
        """The exact loss of what has none."""
        return UNBOUNDED_LOSSES[self.coordinate]

    def left(self, *taken: RdpCurve) -> NDArray[np.int64]:
        """Subtract curves from the bounds; (n_places,), negative where an order is exceeded."""
        # Bounds are below EXHAUSTED, so an exhausted order becomes negative; clipping at -1 avoids int64 overflow.
        left = self.bounds - taken[0].values[self.places]
        for curve in taken[1:]:
            left = np.maximum(left, _BELOW_ZERO) - curve.values[self.places]  # an exceeded order stays exceeded
        return left

    def repetitions(self, spent: RdpCurve, curve: RdpCurve) -> int:
        """Count the repetitions of a curve that fit after a loss: at some order or exactly, and by own deltas."""
        by_orders = int((self.left(spent) // np.maximum(curve.values[self.places], 1)).max())
        most = max(by_orders, exact_repetitions(self.most - self.exact_loss(spent), self.exact_loss(curve)))
        return min(most, (self.room - spent.delta) // curve.delta) if curve.delta else most

    def used(self, spent: RdpCurve) -> float:
        """Compute the share of the bounds that a loss takes where that is least: at an order, or exactly."""
        # Quotients of Python's integers are rounded once, so that counting finds the same (`filter_orders`).
        rows = zip(self.bounds.tolist(), spent.values[self.places].tolist(), strict=True)
        by_orders = min([loss / bound for bound, loss in rows if bound > 0 and loss < EXHAUSTED], default=inf)
        return min(by_orders, self.exact_share(self.exact_loss(spent)))

    def limit_needed(self, spent: RdpCurve) -> float:
        """Compute the smallest epsilon limit under which this filter, of orders, would still have admitted a loss."""
        if spent.delta > self.room:
            return inf
        by_orders = max(0.0, float((nats_of(spent.values[self.places]) + self.prices).min()))
        return by_orders if spent.pure == UNBOUNDED else min(by_orders, pure_nats(spent.pure))

    def exact_share(self, loss: int) -> float:
        """Compute an exact loss as a share of the largest one; infinite without a bound."""
        return inf if loss == self.unbounded else quotient(loss, self.most)


def exact_repetitions(left: int, each: int) -> int:
    """Count the repetitions of an exact loss that fit into what is left of the limit; negative if that is exceeded."""
    return -1 if left < 0 else left // each if each else UNLIMITED


UNLIMITED: Final = 2**62
"""Repetitions of what loses nothing, or that an account without a limit admits: more than any count."""

UNTUNED: Final = FilterBounds(np.array([0]), np.array([EXHAUSTED - 1]), np.array([0.0]), 0, 0)
"""Bounds of a filter without weights, under which nothing has been charged that loses anything."""


@lru_cache(maxsize=4096)
def filter_bounds(limit: Limit, weights: FilterWeights, grid_version: int) -> FilterBounds:
    """Get the bounds of a filter.

    B_j = epsilon - ln(1 - 1/a_j) + ln(delta_j a_j)/(a_j - 1). The weights' reserve is for mechanisms with a delta of
    their own: both were fixed in advance, so their failure probabilities add up (ADR 0005, ADR 0007).
    """
    assert weights.within(limit.delta), "the parts of delta are within it"
    places = np.array(weights.indices)
    chosen, deltas = orders(grid_version)[places], np.array(weights.deltas)
    bounds = threshold_units(chosen, limit.value, deltas)
    prices = epsilon_at_orders(chosen, np.zeros(chosen.shape), deltas)
    return FilterBounds(places, bounds, prices, weights.set_aside(), limit.most())


@lru_cache(maxsize=4096)
def exact_bounds(limit: Limit) -> FilterBounds:
    """Get the bounds of a limit of which one exact loss decides: no order admits anything (ADR 0052)."""
    room = floor(exact(limit.delta) / DELTA_UNIT)
    return FilterBounds(np.array([0]), np.array([-1]), np.array([0.0]), room, limit.most(), limit.coordinate)
