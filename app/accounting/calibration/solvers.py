"""Calibrate one parameter of a plan: noise, number of steps, or sampling.

Every answer was checked by the full rule over the whole grid, and its neighbour was checked not to fit. Root finding
over a few orders only supplies the starting point.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, root, smallest_fitting
from app.accounting.conversion import Rule, conversion_prices, remaining_delta
from app.accounting.curves import UNIT, Floats, RdpCurve, orders
from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_NOISE_MULTIPLIER,
    DpEvent,
    NeighboringRelation,
    noise_multiplier,
    sampling_probability,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.pricing_effort import curve_work, require_affordable, use_effort_of_curve
from app.accounting.rdp import curve_over

DIGITS: Final = 6
"""Significant decimal digits of an answer."""

MIN_SAMPLING_PROBABILITY: Final = 1e-12
"""The smallest that is tried: a hundredth of one person in the world's population."""

MAX_COUNT: Final = 2**62
"""Maximum number of steps in an answer."""

COARSE: Final = 12
"""Stride through the grid that is fine enough to find the region of an answer."""

NEAR: Final = np.arange(-24, 25)
"""Orders around the best one of the region that refine the estimate: evaluating neighbours is cheap."""

ROUGHLY, CLOSELY = 0.02, 1e-7
"""Relative tolerances for the region and the refined estimate; an answer's last digit is 1e-6 to 1e-5."""

MAX_WINDOW_MOVES: Final = 8
"""Maximum number of times that the window of orders moves because the best order was at its edge."""

MIN_TRIALS: Final = 6
"""Curves that every search computes: for the region, for the refinement, two for the answer."""

MAX_LOG_EXCESS: Final = 700.0
"""Bound on the logarithm of an excess; its exp is still finite."""

OUT_OF_BOUNDS: Final = (InvalidEventError, UnsupportedEventError)
"""Raised for a decay or group event with less noise than allowed."""

EventAt = Callable[[float], DpEvent]


@dataclass(frozen=True, slots=True)
class Target:
    """The rule for a repeated event and `other_cost`, the rest of the plan."""

    rule: Rule
    count: int
    other_cost: RdpCurve
    relation: NeighboringRelation

    def total(self, event: DpEvent) -> RdpCurve:
        """Compute the curve of the whole plan over the rule's grid."""
        grid = orders(self.rule.grid_version)
        use_effort_of_curve(event, grid.size, self.relation)
        return self.other_cost + curve_over(event, grid, self.relation).times(self.count)


def smallest_noise_multiplier(
    event: DpEvent, fits: Callable[[DpEvent], bool], digits: int = 4, near: float = 0.0
) -> float | None:
    """Find the smallest noise multiplier that fits and is not below the event's own, starting `near` an estimate.

    The search assumes that more noise fits if less does, which holds for all events: the divergence of every order
    decreases with the noise. The returned value was checked in any case; `fits` is called at most about 25 times.

    Returns:
        The event's own noise multiplier if it fits, else the smallest number with `digits` significant decimal digits
        that does; None if even the largest noise multiplier (1e6) does not fit.
    """
    own = noise_multiplier(event)
    if fits(event):
        return own
    last = index_at_or_below(MAX_NOISE_MULTIPLIER, digits)
    first = min(index_at_or_below(own, digits) + 1, last)
    start = index_at_or_below(max(own, near), digits) + 1
    found = smallest_fitting(
        lambda index: fits(with_noise_multiplier(event, decimal(index, digits))), start, first, last
    )
    return None if found is None else decimal(found, digits)


def min_noise_multiplier(event: DpEvent, target: Target) -> float | None:
    """Find the smallest noise multiplier with which a repeated event fits, starting at the event's own.

    Returns:
        Six significant digits in [1e-3, 1e6], rounded up, so that the next number below does not fit; None if 1e6 does
        not fit.

    Raises:
        InvalidEventError: the event is out of its bounds even with the largest noise multiplier.
        UnsupportedEventError: the event has no single noise multiplier, or no formula even with the largest.
    """

    def event_at(value: float) -> DpEvent:
        return with_noise_multiplier(event, min(max(value, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER))

    bounds = (log(MIN_NOISE_MULTIPLIER), log(MAX_NOISE_MULTIPLIER))
    near = exp(_estimate(lambda at: event_at(exp(at)), target, log(noise_multiplier(event)), bounds))
    found = smallest_fitting(
        lambda index: _fits(lambda: event_at(decimal(index, DIGITS)), target),
        index_at_or_below(near, DIGITS) + 1,
        index_at_or_below(MIN_NOISE_MULTIPLIER, DIGITS),
        index_at_or_below(MAX_NOISE_MULTIPLIER, DIGITS),
    )
    if found is None:
        target.total(event_at(MAX_NOISE_MULTIPLIER))
        return None
    return decimal(found, DIGITS)


def max_sampling_probability(event: DpEvent, target: Target) -> float | None:
    """Find the largest sampling probability with which a repeated event fits, starting at the event's own.

    The search assumes that less sampling fits if more does, which holds for all events.

    Returns:
        Six significant digits in [1e-12, 1], rounded down, so that the next number above does not fit; None if 1e-12
        does not fit.

    Raises:
        UnsupportedEventError: the event has no single sampling probability, or no formula even with the smallest.
    """
    bounds = (0.0, -log(MIN_SAMPLING_PROBABILITY))
    start = -log(max(sampling_probability(event), MIN_SAMPLING_PROBABILITY))
    near = exp(-_estimate(lambda at: with_sampling_probability(event, exp(-at)), target, start, bounds))
    # Counted downwards: smaller probabilities fit.
    found = smallest_fitting(
        lambda index: _fits(lambda: with_sampling_probability(event, decimal(-index, DIGITS)), target),
        -index_at_or_below(near, DIGITS),
        -index_at_or_below(1.0, DIGITS),
        -index_at_or_below(MIN_SAMPLING_PROBABILITY, DIGITS),
    )
    if found is None:
        if _fits(lambda: with_sampling_probability(event, 1.0), target):  # some have a bound only without sampling
            return 1.0
        target.total(with_sampling_probability(event, MIN_SAMPLING_PROBABILITY))
        return None
    return decimal(-found, DIGITS)


def max_count(curve: RdpCurve, other_cost: RdpCurve, rule: Rule) -> int:
    """Find the largest count of `curve`, up to 2^62, that fits with `other_cost`."""
    bounds = rule.bounds(other_cost + curve)
    free = np.where(bounds >= other_cost.values, bounds - np.minimum(other_cost.values, bounds), 0)
    near = int((free // np.maximum(curve.values, 1)).max())
    # Counted downwards: fewer steps fit.
    found = smallest_fitting(lambda index: rule.fits(other_cost + curve.times(-index)), -max(near, 1), -MAX_COUNT, -1)
    return 0 if found is None else -found


def _fits(make: Callable[[], DpEvent], target: Target) -> bool:
    """Check whether an event fits; one out of bounds does not."""
    try:
        return target.rule.fits(target.total(make()))
    except OUT_OF_BOUNDS:
        return False


def _estimate(event_at: EventAt, target: Target, start: float, bounds: tuple[float, float]) -> float:
    """Estimate the parameter at which a repeated event begins to fit.

    Every COARSE-th order finds the region where a plan that is fixed in advance fits; the best of them and its
    neighbours refine the estimate. A rule that depends on the plan is evaluated there. The parameter grows towards
    fitting.
    """
    rule, size = target.rule, target.other_cost.values.size
    require_affordable(MIN_TRIALS * curve_work(event_at(start), few=False, relation=target.relation))
    excess = _Excess(event_at, target, np.arange(0, size, COARSE))
    at = root(excess, start, bounds, ROUGHLY)
    for _ in range(MAX_WINDOW_MOVES):
        places = np.unique(np.clip(excess.best + NEAR, 0, size - 1))
        excess = _Excess(event_at, target, places)
        at = root(excess, at, bounds, CLOSELY)
        if excess.best not in {places[0], places[-1]} or excess.best in {0, size - 1}:
            break
    if rule.depends_on_plan:
        with suppress(*OUT_OF_BOUNDS):  # if so, the integer search starts from this estimate
            most = rule.bounds(target.total(event_at(at)))
            places = np.flatnonzero(most >= 0)
            prices = rule.epsilon - most[places].astype(np.float64) * UNIT
            at = root(_Excess(event_at, target, places, prices), at, bounds, CLOSELY)
    return at


@dataclass
class _Excess:
    """The excess ln(epsilon / target) at the best of some orders.

    It decreases in the parameter and is 0 where the event just fits.

    Args:
        event_at: the event for the logarithm of the parameter.
        target: the limit.
        places: (n,) indices of the orders in the grid.
        prices: (n,) nats that the conversion adds at these orders; None: as for a plan that is fixed in advance.
    """

    event_at: EventAt
    target: Target
    places: NDArray[np.intp]
    prices: Floats | None = None
    best: int = field(init=False)
    """Grid index of the best order at the last evaluation."""

    def __post_init__(self) -> None:
        self.best = int(self.places[0]) if self.places.size else 0

    def __call__(self, at: float) -> float:
        """Compute the logarithm, clipped to +-MAX_LOG_EXCESS."""
        if self.places.size == 0:
            return MAX_LOG_EXCESS
        target, rule = self.target, self.target.rule
        grid = orders(rule.grid_version)[self.places]
        try:
            event = self.event_at(at)
            use_effort_of_curve(event, grid.size, target.relation)
            curve = curve_over(event, grid, target.relation)
        except OUT_OF_BOUNDS:
            return MAX_LOG_EXCESS
        total = target.other_cost.at(self.places) + curve.times(target.count)
        prices = self.prices
        if prices is None:
            prices = conversion_prices(grid, remaining_delta(rule.delta, total.delta))
        epsilons = total.nats() + prices
        nearest = int(np.argmin(epsilons))
        self.best = int(self.places[nearest])
        ratio = max(float(epsilons[nearest]), 0.0) / rule.epsilon
        if not 0 < ratio < inf:
            return MAX_LOG_EXCESS if ratio else -MAX_LOG_EXCESS
        return min(max(log(ratio), -MAX_LOG_EXCESS), MAX_LOG_EXCESS)
