"""Convert Rényi divergence to (epsilon, delta), limits to thresholds per order, and curves along a plan.

Improved conversion: Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), Proposition 12; Balle, Barthe, Gaboardi, Hsu,
Sato 2020 (arXiv 1905.09982), Theorem 21. Classic conversion: Mironov 2017 (arXiv 1702.07476), Proposition 3.
Epsilon 0: total variation <= sqrt(1 - exp(-KL)) (Bretagnolle & Huber 1979), and KL is at most the Rényi divergence of
any order above 1 (van Erven & Harremoës 2014, arXiv 1206.2459, Theorem 3).

Everywhere `orders` is (n_orders,), Rényi orders above 1, and `rdp_nats` (n_orders,), nats, infinity allowed. The method
"classic" is looser, but some systems report it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor, inf, log1p, nextafter
from typing import ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, PURE, UNIT, Floats, RdpCurve
from app.accounting.curves import orders as orders_of_grid
from app.accounting.exact_losses import UNBOUNDED, pure_limit, pure_nats

ROUNDING: Final = 2.0**-49
"""Relative error allowed for each term of a bound: 16 roundings; the formulas have at most 10."""

Method = Literal["improved", "classic"]


@dataclass(frozen=True, slots=True)
class EpsilonAtOrder:
    """An epsilon, infinite if every order is exhausted, and its order."""

    epsilon: float
    order: float


@dataclass(frozen=True, slots=True)
class DeltaAtOrder:
    """A delta, 1 if every order is exhausted, and its order."""

    delta: float
    order: float


def epsilon_at_orders(orders: Floats, rdp_nats: Floats, delta: float | Floats) -> Floats:
    """Convert the divergence at each order to an epsilon; a negative value means that epsilon 0 holds.

    `delta` is in [0, 1), scalar or (n_orders,); 0 gives infinity.
    """
    reward, price, _ = _terms(orders, delta)
    return rdp_nats - reward + price


def epsilon_from_rdp(orders: Floats, rdp_nats: Floats, delta: float, method: Method = "improved") -> EpsilonAtOrder:
    """Compute the smallest epsilon that a divergence proves at a delta in (0, 1).

    It is 0 if nothing was released or, with "improved", if delta alone covers the divergence. The method "classic" adds
    ln(1/delta) / (order - 1).
    """
    if method == "classic":
        epsilons = rdp_nats - np.log(delta) / (orders - 1)
    else:
        covered = rdp_nats <= rdp_covered_by_delta(delta)
        epsilons = np.where(covered, 0.0, rdp_nats + conversion_prices(orders, delta))
    best = int(np.argmin(epsilons))
    epsilon = max(0.0, float(epsilons[best])) if rdp_nats.any() else 0.0
    return EpsilonAtOrder(epsilon=epsilon, order=float(orders[best]))


def delta_from_rdp(orders: Floats, rdp_nats: Floats, epsilon: float, method: Method = "improved") -> DeltaAtOrder:
    """Compute the smallest delta, rounded up, that a divergence proves at a finite epsilon of at least 0.

    The improved conversion is (1/a) (1 - 1/a)^(a - 1) exp((a - 1) (R - epsilon)), or sqrt(1 - exp(-R)) at any epsilon;
    the classic one is exp((a - 1) (R - epsilon)). Logarithms are rounded up by 2^-49 of each term's size. The delta is
    0 only if nothing was released.
    """
    b = orders - 1
    logs = b * (rdp_nats - epsilon) + ROUNDING * b * (rdp_nats + epsilon)
    if method == "improved":
        log_order, log_rest = np.log(orders), np.log1p(1 / b)
        logs = logs - log_order - b * log_rest + ROUNDING * (log_order + b * log_rest)
        total_variation = np.full(logs.shape, -np.inf)
        np.log(-np.expm1(-rdp_nats), out=total_variation, where=rdp_nats > 0)
        logs = np.minimum(logs, total_variation / 2 * (1 - ROUNDING))
    best = int(np.argmin(logs))
    delta = min(1.0, nextafter(float(np.exp(logs[best])) * (1 + ROUNDING), inf)) if rdp_nats.any() else 0.0
    return DeltaAtOrder(delta=delta, order=float(orders[best]))


def epsilon_of_curve(orders: Floats, curve: RdpCurve, delta: float, method: Method = "improved") -> EpsilonAtOrder:
    """Compute the smallest epsilon that a curve proves at a delta.

    The curve's own delta is subtracted from `delta`, in (0, 1), first; epsilon is infinite if nothing remains, or if
    less than nothing does for the pure loss, which needs none.
    """
    left, purely = remaining_delta(delta, curve.delta), inf
    if curve.pure != UNBOUNDED and curve.delta * DELTA_UNIT <= Fraction(delta):
        purely = pure_nats(curve.pure)
    found = epsilon_from_rdp(orders, curve.nats(), left, method) if left > 0 else EpsilonAtOrder(inf, float(orders[0]))
    return EpsilonAtOrder(purely, PURE) if purely < found.epsilon else found


def delta_of_curve(orders: Floats, curve: RdpCurve, epsilon: float, method: Method = "improved") -> DeltaAtOrder:
    """Compute the smallest delta that a curve proves at an epsilon, rounded up.

    The curve's own delta is added, and to nothing if epsilon covers the pure loss; `epsilon` is finite and at least 0.
    """
    if curve.pure <= pure_limit(epsilon):
        return DeltaAtOrder(curve.delta_value(), PURE)
    found = delta_from_rdp(orders, curve.nats(), epsilon, method)
    if not curve.delta:
        return found
    return DeltaAtOrder(min(1.0, nextafter(found.delta + curve.delta_value(), inf)), found.order)


def remaining_delta(delta: float, own_delta: int) -> float:
    """Subtract a curve's own delta (units of 1e-18), rounded down to at least 0."""
    if not own_delta:
        return delta
    exact = Fraction(delta) - own_delta * DELTA_UNIT
    if own_delta >= EXHAUSTED or exact <= 0:
        return 0.0
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else nextafter(nearest, 0.0)


def rdp_covered_by_delta(delta: float) -> float:
    """Compute the largest divergence that delta alone covers: -ln(1 - delta^2), rounded down."""
    return -log1p(-delta * delta) * (1 - ROUNDING)


def threshold_units(orders: Floats, epsilon: float, delta: float | Floats) -> NDArray[np.int64]:
    """Compute the largest divergence per order that by itself proves (epsilon, delta).

    The threshold is epsilon - ln(1 - 1/a) + ln(delta a)/(a - 1), rounded down. First 2^-49 of each term's size is
    subtracted, more than the rounding errors of the formula. The result is never above the exact threshold, and at
    most one unit and 2^-48 of the terms' sizes below it.

    Args:
        orders: (n_orders,) Rényi orders above 1.
        epsilon: finite and at least 0.
        delta: in [0, 1), scalar or (n_orders,).

    Returns:
        (n_orders,) int64, units of 2^-44 nats, below EXHAUSTED; -1 at an order that cannot prove the limit.
    """
    reward, price, price_size = _terms(orders, delta)
    error = ROUNDING * (epsilon + reward + price_size)
    units = np.floor((epsilon + reward - price - error) / UNIT)
    below_exhausted = np.minimum(units, np.nextafter(float(EXHAUSTED), 0))
    return np.where(units >= 0, below_exhausted, -1).astype(np.int64)


def conversion_prices(orders: Floats, delta: float) -> Floats:
    """Compute the nats that the conversion adds at each order.

    The result is read-only (n_orders,), infinite for delta 0; the bound for epsilon 0 is not part of it.
    """
    return _conversion_prices(orders.tobytes(), delta)


@lru_cache(maxsize=256)
def _conversion_prices(orders: bytes, delta: float) -> Floats:
    """Cache the prices: every response needs them, and there are few distinct limits."""
    grid = np.frombuffer(orders, dtype=np.float64)
    prices = epsilon_at_orders(grid, np.zeros_like(grid), delta)
    prices.flags.writeable = False
    return prices


def _terms(orders: Floats, delta: float | Floats) -> tuple[Floats, ...]:
    """Compute -ln(1 - 1/a), -(ln delta + ln a)/(a - 1) and the latter's error scale."""
    log_delta = np.full(orders.shape, -np.inf)
    np.log(delta, out=log_delta, where=np.broadcast_to(np.asarray(delta) > 0, orders.shape))
    log_orders = np.log(orders)
    reward = np.log1p(1 / (orders - 1))
    return reward, -(log_delta + log_orders) / (orders - 1), (log_orders - log_delta) / (orders - 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """Accept a plan, fixed in advance, if one order or its pure loss proves the target.

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
        """Check whether some order of a plan's curve is within its bound, or its pure loss within epsilon."""
        by_orders = bool((total.values <= self.bounds(total)).any())
        return by_orders or (total.pure <= pure_limit(self.epsilon) and self.has_room(total))

    def has_room(self, total: RdpCurve) -> bool:
        """Check whether the target's delta covers a plan's own."""
        return total.delta * DELTA_UNIT <= Fraction(self.delta)


@lru_cache(maxsize=64)
def declared_bounds(epsilon: float, delta: float, grid_version: int) -> NDArray[np.int64]:
    """Compute the maximum of each order for a plan that is fixed in advance.

    `epsilon` is finite and at least 0, `delta` in [0, 1); at 0 nothing can be proven.

    Returns:
        (n_orders,) read-only int64, units of 2^-44 nats, rounded down; -1 where an order proves nothing. An order
        within its bound has at most the given epsilon by `epsilon_from_rdp`.
    """
    grid = orders_of_grid(grid_version)
    bounds = np.full(grid.shape, -1, dtype=np.int64)
    if delta > 0:
        bounds = np.maximum(threshold_units(grid, epsilon, delta), floor(rdp_covered_by_delta(delta) / UNIT))
    bounds.flags.writeable = False
    return bounds


@dataclass(frozen=True, slots=True)
class TrajectoryPoint:
    """The epsilon after a number of steps, and the order that attains it."""

    step: int
    epsilon: float
    order: float


def epsilon_trajectory(
    parts: Sequence[tuple[RdpCurve, int]], delta: float, steps: Sequence[int]
) -> list[TrajectoryPoint]:
    """Compute the epsilon after some increasing numbers of steps.

    `parts` has each step's curve and its number of consecutive steps. Each point converts the exact curve so far.
    Converting all points as one matrix measured no faster: one curve fits the processor's cache, a matrix of a thousand
    does not.
    """
    grid = orders_of_grid(GRID_VERSION)
    found = []
    for step, curve in curves_after(parts, steps):
        best = epsilon_of_curve(grid, curve, delta)
        found.append(TrajectoryPoint(step, best.epsilon, best.order))
    return found


def spread(start: int, stop: int, most: int) -> list[int]:
    """Spread at most `most` integers evenly over [start, stop), both ends included; a single one is the last."""
    length = stop - start
    if length <= most:
        return list(range(start, stop))
    if most == 1:
        return [stop - 1]
    return [start + index * (length - 1) // (most - 1) for index in range(most)]


def curves_after(parts: Sequence[tuple[RdpCurve, int]], steps: Sequence[int]) -> Iterator[tuple[int, RdpCurve]]:
    """Yield the curve after each of some increasing steps; `parts` as for `epsilon_trajectory`."""
    before, begun = RdpCurve.zero(parts[0][0].values.size), 0
    remaining = iter(parts)
    curve, count = next(remaining)
    for step in steps:
        while step > begun + count:
            before, begun = before + curve.times(count), begun + count
            curve, count = next(remaining)
        yield step, before + curve.times(step - begun)
