"""The least noise, or the most sampling, with which a plan fits a limit by its privacy loss distribution."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import Final

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, root, smallest_fitting
from app.accounting.calibration.solvers import DIGITS, MIN_SAMPLING_PROBABILITY, OUT_OF_BOUNDS
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
from app.accounting.pld.accountant import pld_log_delta
from app.accounting.pld.events import composed
from app.accounting.pld.plans import LARGEST_LOG, approximate_plan_log_delta, root_with_slope

ROUGHLY, CLOSELY = 1e-3, 1e-6
"""Tolerances for a guess without a lattice and for one with it, in ln delta or the logarithm of the parameter."""

SLOPE_WIDTH: Final = 0.01
"""Change of the parameter's logarithm over which ln delta is taken for a line."""


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """A limit for `count` repetitions of an event together with others, all fixed in advance.

    Args:
        relation: of neighbouring data.
        count: repetitions of the event that is varied.
        epsilon: nats.
        delta: positive; the events' own deltas are subtracted already.
        others: further events with counts.
    """

    relation: NeighboringRelation
    count: int
    epsilon: float
    delta: float
    others: Mapping[DpEvent, int] = field(default_factory=dict)

    def events(self, event: DpEvent) -> Mapping[DpEvent, int]:
        """Put an event beside the others."""
        return Counter({event: self.count}) + Counter(self.others)

    def log_excess(self, event: DpEvent) -> float:
        """Compute ln delta over the limit's; at most 0 where the event is proven to fit."""
        found = pld_log_delta(self.events(event), self.relation, self.epsilon, self.delta)
        return max(found, -LARGEST_LOG) - log(self.delta)

    def approximate_log_excess(self, event: DpEvent) -> float:
        """Guess ln delta over the limit's."""
        directions = [pairs for pairs in composed(self.events(event), self.relation) if pairs]
        found = (approximate_plan_log_delta(pairs, self.epsilon, self.delta) for pairs in directions)
        return max(max(found, default=-LARGEST_LOG), -LARGEST_LOG) - log(self.delta)


def min_plan_noise_multiplier(event: DpEvent, target: PlanTarget) -> float | None:
    """Find the smallest noise multiplier with which a plan fits, starting at the event's own.

    Returns:
        Six significant digits in [1e-3, 1e6], rounded up, so that the next number below does not fit; None if 1e6 does
        not fit.

    Raises:
        UnsupportedEventError: no pair of distributions is proven to dominate an event, or it has no single noise
            multiplier.
        PlanTooExpensiveError: it would take more work than the request may take.
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
        target.log_excess(event_at(MAX_NOISE_MULTIPLIER))
        return None
    return decimal(found, DIGITS)


def max_plan_sampling_probability(event: DpEvent, target: PlanTarget) -> float | None:
    """Find the largest sampling probability with which a plan fits, starting at the event's own.

    Returns:
        Six significant digits in [1e-12, 1], rounded down, so that the next number above does not fit; None if 1e-12
        does not fit.

    Raises:
        UnsupportedEventError: no pair of distributions is proven to dominate an event, or it has no single sampling
            probability.
        PlanTooExpensiveError: it would take more work than the request may take.
    """
    bounds = (0.0, -log(MIN_SAMPLING_PROBABILITY))
    start = min(-log(sampling_probability(event)), bounds[1])
    near = exp(-_estimate(lambda at: with_sampling_probability(event, exp(-at)), target, start, bounds))
    # Counted downwards: smaller probabilities fit.
    found = smallest_fitting(
        lambda index: _fits(lambda: with_sampling_probability(event, decimal(-index, DIGITS)), target),
        -index_at_or_below(near, DIGITS),
        -index_at_or_below(1.0, DIGITS),
        -index_at_or_below(MIN_SAMPLING_PROBABILITY, DIGITS),
    )
    if found is None:
        target.log_excess(with_sampling_probability(event, MIN_SAMPLING_PROBABILITY))
        return None
    return decimal(-found, DIGITS)


def _fits(make: Callable[[], DpEvent], target: PlanTarget) -> bool:
    """Check whether an event is proven to fit; one out of bounds does not."""
    try:
        return target.log_excess(make()) <= 0
    except OUT_OF_BOUNDS:
        return False


def _estimate(
    event_at: Callable[[float], DpEvent], target: PlanTarget, start: float, bounds: tuple[float, float]
) -> float:
    """Estimate where a plan begins to fit, by the saddle point and then on lattices; larger arguments fit."""

    def excess(of: Callable[[DpEvent], float], at: float) -> float:
        try:
            return of(event_at(at))
        except OUT_OF_BOUNDS:
            return LARGEST_LOG

    def guessed(at: float) -> float:
        return excess(target.approximate_log_excess, at)

    def computed(at: float) -> float:
        return excess(target.log_excess, at)

    about = root(guessed, start, bounds, ROUGHLY)
    slope = (guessed(about) - guessed(about + SLOPE_WIDTH)) / SLOPE_WIDTH
    return root_with_slope(computed, about, bounds, slope, CLOSELY)
