"""Solving for a parameter of a plan: how much noise, how many steps, how much sampling.

Every answer was tried by the full rule over the whole grid, and so was the number next to it, which does not fit. A
root over a few orders only says where to try.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import exp, inf, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, least, root
from app.accounting.calibration.targets import Rule
from app.accounting.conversion import conversion_prices, delta_left
from app.accounting.curves import UNIT, RdpCurve
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
from app.accounting.orders import orders
from app.accounting.rdp import curve_over
from app.accounting.work import curve_work, expect, spend_curve

DIGITS: Final = 6
"""Significant decimal digits of an answer."""

MIN_SAMPLING_PROBABILITY: Final = 1e-12
"""The least that is tried: a hundredth of one person among all there are."""

MAX_COUNT: Final = 2**62
"""The most steps that are answered."""

COARSE: Final = 12
"""Every so many orders of the whole grid are enough to find the region of an answer."""

NEAR: Final = np.arange(-24, 25)
"""Which orders find its place, counted from the best one of the region: neighbours take little time."""

ROUGHLY, CLOSELY = 0.02, 1e-7
"""How well the region and the place are found, relative; an answer's last digit is 1e-6 to 1e-5."""

MOST_MOVES: Final = 8
"""How often orders are chosen anew because the best one was the outermost."""

LEAST_TRIALS: Final = 6
"""Curves that every search computes: some for the region, some for the place, two for the answer."""

UTMOST: Final = 700.0
"""Bound of the logarithm of an excess; exp of it is still a float."""

OUT_OF_BOUNDS: Final = (InvalidEventError, UnsupportedEventError)
"""What an event is that decays, or protects a group, with less noise than is allowed."""

EventAt = Callable[[float], DpEvent]


@dataclass(frozen=True, slots=True)
class Target:
    """What a repeated event must fit into.

    Args:
        rule: says whether a whole plan fits.
        count: repetitions of the event, at least 1.
        besides: curve of the rest of the plan.
        relation: which data sets are neighbours.
    """

    rule: Rule
    count: int
    besides: RdpCurve
    relation: NeighboringRelation

    def total(self, event: DpEvent) -> RdpCurve:
        """Return the curve of the whole plan.

        Args:
            event: what is repeated.

        Returns:
            The curve over the rule's grid.

        Raises:
            UnsupportedEventError: no proven formula covers the event.
        """
        grid = orders(self.rule.grid_version)
        spend_curve(event, grid.size)
        return self.besides + curve_over(event, grid, self.relation).times(self.count)


def smallest_noise_multiplier(event: DpEvent, fits: Callable[[DpEvent], bool], digits: int = 4) -> float | None:
    """Return the smallest noise multiplier, from the event's own upwards, with which the event fits.

    It is assumed that more noise fits wherever less noise does: true of every event here, since every
    order's divergence falls with the noise. The returned value itself was tried, so it fits in any case.

    Args:
        event: the event; its own noise multiplier is where the search begins.
        fits: whether an event is affordable; called at most about 25 times.
        digits: significant decimal digits of the answer, at least 1.

    Returns:
        The event's own noise multiplier if it fits, else the smallest number with these digits that does,
        else None if not even the largest noise multiplier (1e6) fits.

    Raises:
        UnsupportedEventError: the event has no single noise multiplier.
    """
    own = noise_multiplier(event)
    if fits(event):
        return own
    last = index_at_or_below(MAX_NOISE_MULTIPLIER, digits)
    first = min(index_at_or_below(own, digits) + 1, last)
    found = least(lambda index: fits(with_noise_multiplier(event, decimal(index, digits))), first, first, last)
    return None if found is None else decimal(found, digits)


def noise_multiplier_that_fits(event: DpEvent, target: Target) -> float | None:
    """Return the smallest noise multiplier with which a repeated event fits.

    Args:
        event: what is repeated; its own noise multiplier is only where the search begins.
        target: what it must fit into.

    Returns:
        Six significant digits, rounded up, in [1e-3, 1e6]; the next number below does not fit, if there is one. None
        if not even 1e6 fits.

    Raises:
        InvalidEventError: the event is out of its bounds even with the largest noise multiplier.
        UnsupportedEventError: the event has no single noise multiplier, or no formula even with the largest.
    """

    def event_at(value: float) -> DpEvent:
        return with_noise_multiplier(event, min(max(value, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER))

    bounds = (log(MIN_NOISE_MULTIPLIER), log(MAX_NOISE_MULTIPLIER))
    near = exp(_estimate(lambda at: event_at(exp(at)), target, log(noise_multiplier(event)), bounds))
    found = least(
        lambda index: _fits(lambda: event_at(decimal(index, DIGITS)), target),
        index_at_or_below(near, DIGITS) + 1,
        index_at_or_below(MIN_NOISE_MULTIPLIER, DIGITS),
        index_at_or_below(MAX_NOISE_MULTIPLIER, DIGITS),
    )
    if found is None:
        target.total(event_at(MAX_NOISE_MULTIPLIER))
        return None
    return decimal(found, DIGITS)


def sampling_probability_that_fits(event: DpEvent, target: Target) -> float | None:
    """Return the largest sampling probability with which a repeated event fits.

    It is assumed that less sampling fits wherever more does: true of every event here.

    Args:
        event: what is repeated; its own sampling probability is only where the search begins.
        target: what it must fit into.

    Returns:
        Six significant digits, rounded down, in [1e-12, 1]; the next number above does not fit, if there is one. None
        if not even 1e-12 fits.

    Raises:
        UnsupportedEventError: the event has no single sampling probability, or no formula even with the smallest.
    """
    bounds = (0.0, -log(MIN_SAMPLING_PROBABILITY))
    start = min(-log(sampling_probability(event)), bounds[1])
    near = exp(-_estimate(lambda at: with_sampling_probability(event, exp(-at)), target, start, bounds))
    # Counted downwards, because less sampling is what fits.
    found = least(
        lambda index: _fits(lambda: with_sampling_probability(event, decimal(-index, DIGITS)), target),
        -index_at_or_below(near, DIGITS),
        -index_at_or_below(1.0, DIGITS),
        -index_at_or_below(MIN_SAMPLING_PROBABILITY, DIGITS),
    )
    if found is None:
        if _fits(lambda: with_sampling_probability(event, 1.0), target):  # where only a true sample has no bound
            return 1.0
        target.total(with_sampling_probability(event, MIN_SAMPLING_PROBABILITY))
        return None
    return decimal(-found, DIGITS)


def count_that_fits(curve: RdpCurve, besides: RdpCurve, rule: Rule) -> int:
    """Return the largest number of repetitions that does not break a target.

    Args:
        curve: of one repetition.
        besides: of the rest of the plan.
        rule: says whether a whole plan fits.

    Returns:
        The count, at most 2^62; 0 if not even one repetition fits.
    """
    bounds = rule.bounds(besides + curve)
    free = np.where(bounds >= besides.values, bounds - np.minimum(besides.values, bounds), 0)
    near = int((free // np.maximum(curve.values, 1)).max())
    # Counted downwards, because fewer steps are what fits.
    found = least(lambda index: rule.fits(besides + curve.times(-index)), -max(near, 1), -MAX_COUNT, -1)
    return 0 if found is None else -found


def _fits(make: Callable[[], DpEvent], target: Target) -> bool:
    """Tell whether an event fits; one out of bounds does not."""
    try:
        return target.rule.fits(target.total(make()))
    except OUT_OF_BOUNDS:
        return False


def _estimate(event_at: EventAt, target: Target, start: float, bounds: tuple[float, float]) -> float:
    """Return about where a repeated event begins to fit, the argument rising towards what fits.

    Some orders over the whole grid find the region where a plan that is fixed in advance fits; the best of them and
    its neighbours find the place. A rule that looks at the plan is asked there.
    """
    rule, size = target.rule, target.besides.values.size
    expect(LEAST_TRIALS * curve_work(event_at(start), few=False))
    excess = _Excess(event_at, target, np.arange(0, size, COARSE))
    at = root(excess, start, bounds, ROUGHLY)
    for _ in range(MOST_MOVES):
        places = np.unique(np.clip(excess.best + NEAR, 0, size - 1))
        excess = _Excess(event_at, target, places)
        at = root(excess, at, bounds, CLOSELY)
        if excess.best not in {places[0], places[-1]} or excess.best in {0, size - 1}:
            break
    if rule.looks_at_the_plan:
        with suppress(*OUT_OF_BOUNDS):  # if it is, the search goes on from here, number by number
            most = rule.bounds(target.total(event_at(at)))
            places = np.flatnonzero(most >= 0)
            prices = rule.epsilon - most[places].astype(np.float64) * UNIT
            at = root(_Excess(event_at, target, places, prices), at, bounds, CLOSELY)
    return at


class _Excess:
    """A function that falls through 0 where the event just fits: ln(epsilon / target) by the best of some orders.

    Args:
        event_at: the event with a parameter, given by its logarithm.
        target: what it must fit into.
        places: (n,) of these orders in the grid.
        prices: (n,) what the conversion to epsilon adds there, nats; None: as for a plan that is fixed in advance.
    """

    def __init__(
        self,
        event_at: EventAt,
        target: Target,
        places: NDArray[np.intp],
        prices: NDArray[np.float64] | None = None,
    ) -> None:
        self._event_at = event_at
        self._target = target
        self._places = places
        self._grid = orders(target.rule.grid_version)[places]
        self._besides = target.besides.at(places)
        self._prices = prices
        self.best = int(places[0]) if places.size else 0
        """The place of the best order where the function was last asked for."""

    def __call__(self, at: float) -> float:
        """Return the logarithm, bounded."""
        if self._places.size == 0:
            return UTMOST
        target, rule = self._target, self._target.rule
        try:
            event = self._event_at(at)
            spend_curve(event, self._grid.size)
            curve = curve_over(event, self._grid, target.relation)
        except OUT_OF_BOUNDS:
            return UTMOST
        total = self._besides + curve.times(target.count)
        prices = self._prices
        if prices is None:
            prices = conversion_prices(self._grid, delta_left(rule.delta, total.delta))
        epsilons = total.nats() + prices
        nearest = int(np.argmin(epsilons))
        self.best = int(self._places[nearest])
        ratio = max(float(epsilons[nearest]), 0.0) / rule.epsilon
        return min(max(log(ratio), -UTMOST), UTMOST) if 0 < ratio < inf else UTMOST if ratio else -UTMOST
