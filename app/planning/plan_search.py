"""The best parameter of a repeated event with which a limit admits all of a declared plan.

Answers were checked by the plan filter, and their neighbours were checked not to fit. Searches assume that more noise
fits if less does, and less sampling and fewer steps if more do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, smallest_fitting
from app.accounting.calibration.solvers import DIGITS, MIN_SAMPLING_PROBABILITY, OUT_OF_BOUNDS
from app.accounting.curves import RdpCurve
from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_NOISE_MULTIPLIER,
    DpEvent,
    NeighboringRelation,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.ledger.filter.limits import Limit
from app.ledger.step_events import MAX_COUNT, StepEvent
from app.planning.declared_plans import DeclaredPlan, Excess, share_of_delta


@dataclass(frozen=True, slots=True)
class DeclaredTarget:
    """The limit of an account, and the planned events beside the one that is searched for, with their curves."""

    limit: Limit
    other_events: tuple[StepEvent, ...]
    relation: NeighboringRelation
    curves: Mapping[DpEvent, RdpCurve]

    def plan(self, event: DpEvent, count: int) -> DeclaredPlan:
        """Declare an event beside the others; raises as `DeclaredPlan.of`."""
        return DeclaredPlan.of((*self.other_events, StepEvent(event, count)), self.relation, self.curves)

    def fits_alone(self) -> bool:
        """Check whether the limit admits the other events; raises as `DeclaredPlan.of`."""
        return DeclaredPlan.of(self.other_events, self.relation, self.curves).fits(self.limit)

    def fits(self, made: Callable[[], DpEvent], count: int) -> bool:
        """Check whether the limit admits an event beside the others; one out of bounds is not admitted."""
        try:
            return self.plan(made(), count).fits(self.limit)
        except OUT_OF_BOUNDS:
            return False


def min_planned_noise(event: DpEvent, count: int, target: DeclaredTarget, near: float) -> float | None:
    """Find the smallest noise multiplier with which a declared plan fits.

    Args:
        event: repeated.
        count: of repetitions.
        target: that the plan is to meet.
        near: an estimate of the answer, from where the search starts.

    Returns:
        Six significant digits in [1e-3, 1e6], rounded up, so that the next number below does not fit; None if 1e6 does
        not fit.

    Raises:
        UnsupportedEventError: a plan cannot hold the event, or one of the others.
        PlanTooExpensiveError: it takes more work than the request may take.
    """

    def event_at(noise: float) -> DpEvent:
        return with_noise_multiplier(event, min(max(noise, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER))

    target.plan(event_at(MAX_NOISE_MULTIPLIER), count)
    bounds = (log(MIN_NOISE_MULTIPLIER), log(MAX_NOISE_MULTIPLIER))
    excess = Excess(lambda at: (target.plan(event_at(exp(at)), count), target.limit))
    found = smallest_fitting(
        lambda index: target.fits(lambda: event_at(decimal(index, DIGITS)), count),
        index_at_or_below(exp(excess.root(log(near), bounds)), DIGITS) + 1,
        *(index_at_or_below(bound, DIGITS) for bound in (MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER)),
    )
    return None if found is None else decimal(found, DIGITS)


def max_planned_sampling(event: DpEvent, count: int, target: DeclaredTarget, near: float) -> float | None:
    """Find the largest sampling probability with which a declared plan fits; arguments and raises as above.

    Returns:
        Six significant digits in [1e-12, 1], rounded down, so that the next number above does not fit; None if 1e-12
        does not fit.
    """

    def event_at(probability: float) -> DpEvent:
        return with_sampling_probability(event, min(max(probability, MIN_SAMPLING_PROBABILITY), 1.0))

    target.plan(event_at(MIN_SAMPLING_PROBABILITY), count)
    excess = Excess(lambda at: (target.plan(event_at(exp(-at)), count), target.limit))
    close = exp(-excess.root(-log(near), (0.0, -log(MIN_SAMPLING_PROBABILITY))))
    # Counted downwards: smaller probabilities fit.
    found = smallest_fitting(
        lambda index: target.fits(lambda: event_at(decimal(-index, DIGITS)), count),
        -index_at_or_below(close, DIGITS),
        *(-index_at_or_below(bound, DIGITS) for bound in (1.0, MIN_SAMPLING_PROBABILITY)),
    )
    return None if found is None else decimal(-found, DIGITS)


def max_planned_steps(event: DpEvent, target: DeclaredTarget, near: int) -> int:
    """Find the largest number of repetitions, up to 1e9, with which a declared plan fits; 0 if none does.

    Args:
        event: repeated.
        target: that the plan is to meet.
        near: an estimate of the answer.

    Raises:
        UnsupportedEventError: a plan cannot hold the event, or one of the others.
        PlanTooExpensiveError: it takes more work than the request may take.
    """
    plan = target.plan(event, MAX_COUNT)
    if plan.total.is_zero:
        return MAX_COUNT
    if not plan.total.delta:
        delta = share_of_delta(target.limit, plan.total)
        longest = plan.workload.longest(target.limit.value, delta)
        return max(0, longest - sum(each.count for each in target.other_events))
    # The reserve for own deltas, and so the plan's share, depends on the number. Counted downwards: fewer steps fit.
    found = smallest_fitting(
        lambda index: target.fits(lambda: event, -index), -min(max(near, 1), MAX_COUNT), -MAX_COUNT, -1
    )
    return 0 if found is None else -found
