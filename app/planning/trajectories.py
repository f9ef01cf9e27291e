"""Trajectories: epsilon after the steps of a plan, and the smallest limit that admits the steps so far.

The limit and the loss distributions are computed at some of the points. A point between them has the number of the next
of these, which is proven: more steps never lose less.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, Self

from app.accounting.conversion import curves_after, epsilon_trajectory, spread
from app.accounting.curves import RdpCurve
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import DpEvent
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.pld.plans import FINE
from app.accounting.pricing_effort import bounded_apart, use_effort
from app.ledger.filter.limits import Limit
from app.ledger.step_events import StepEvent, counts_of, first_steps
from app.planning.assumptions import PlanAssumptions, if_planned
from app.planning.declared_plans import EPSILONS, DeclaredPlan
from app.planning.renyi_limits import required_epsilon
from app.planning.tightest import TightestEpsilon, tightest_epsilon

POINT: Final = 120
"""Maximum time of a trajectory's point, in microseconds."""

KNOTS: Final = 32
"""Points at which more than Rényi curves is computed, at most. The limit rises by about 3 % of the last one from one to
the next."""

FEWEST: Final = 8
"""If the limit of a declared plan is computed at fewer points, that without a plan says more about the others."""

SLIGHTLY: Final = 1e-5
"""By so much a limit grows that does not admit a plan, since numbers of different lattices differ."""


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """A point of a trajectory.

    Args:
        step: number of steps, from 1.
        epsilon: of these steps, the smallest that is proven for a plan fixed in advance, or a little larger.
        limit_needed_with_plan: epsilon of the smallest limit under which an account that declares these steps admits
            them, or a little larger.
    """

    step: int
    epsilon: float
    limit_needed_with_plan: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Cost of a plan at the first step, the last, and some between them."""

    points: tuple[PlanPoint, ...]
    steps: int
    delta: float
    warnings: tuple[str, ...]


def plan_trajectory(
    steps: tuple[StepEvent, ...], delta: float, max_points: int, setting: PlanAssumptions
) -> Trajectory:
    """Compute the epsilon of a plan after the first of its steps, the last, and evenly spaced ones between.

    Args:
        steps: the plan.
        delta: in [1e-30, 0.5).
        max_points: at least 1; a single point is the last step.
        setting: assumptions.
    """
    return trajectory_at(spread(1, 1 + sum(step.count for step in steps), max_points), steps, delta, setting)


def trajectory_at(
    places: Sequence[int], steps: tuple[StepEvent, ...], delta: float, setting: PlanAssumptions
) -> Trajectory:
    """Compute the epsilon of a plan after increasing numbers of its steps, the last of which is all; as above."""
    begun = _Beginnings.of(places, steps, delta, setting)
    whole = begun.whole()
    limits, unplanned = _Limits(steps, delta, setting, begun.curves, begun.knots).needed()
    needed = _from_the_next(dict(zip(begun.known, limits, strict=True)), len(places))
    return Trajectory(
        tuple(map(PlanPoint, places, begun.epsilons(whole), needed)),
        places[-1],
        delta,
        (*setting.warnings(steps, delta), *whole.warnings(begun.knots[-1].total, delta), *unplanned),
    )


def epsilons_at(
    places: Sequence[int], steps: tuple[StepEvent, ...], delta: float, setting: PlanAssumptions
) -> list[float]:
    """Compute the epsilons of a trajectory alone; as `trajectory_at`."""
    begun = _Beginnings.of(places, steps, delta, setting)
    return begun.epsilons(begun.whole())


def _from_the_next(known: Mapping[int, float], count: int) -> list[float]:
    """Give each of `count` places the smallest of the numbers that are known there or later; infinite without any."""
    return list(accumulate((known.get(at, inf) for at in reversed(range(count))), min))[::-1]


def _sizes(parts: Sequence[tuple[RdpCurve, int]], steps: Sequence[int]) -> list[int]:
    """Sum what parts of a plan lose at the lowest order up to some increasing steps, as a measure of their size."""
    each = [int(curve.values[0]) for curve, _ in parts]
    ends = list(accumulate((count for _, count in parts), initial=0))
    before = list(accumulate((size * count for size, (_, count) in zip(each, parts, strict=True)), initial=0))
    places = ((bisect_left(ends, step) - 1, step) for step in steps)
    return [before[place] + each[place] * (step - ends[place]) for place, step in places]


def _knots(sizes: Sequence[int]) -> list[int]:
    """Choose points at which the limit is computed: all, or the first and those with parts of the last one's size."""
    most, found = min(len(sizes), KNOTS), [-1]
    for place in range(most):
        about = bisect_left(sizes, sizes[-1] * place**2 / max(most - 1, 1) ** 2)
        found.append(min(max(about, found[-1] + 1), len(sizes) - most + place))
    return found[1:]


@dataclass(frozen=True, slots=True)
class _Knot:
    """The first steps of a plan: their number, their curve, and their epsilon at the best Rényi order."""

    steps: int
    total: RdpCurve
    epsilon: float


@dataclass(frozen=True, slots=True)
class _Beginnings:
    """The first steps of a plan, at increasing places.

    Args:
        curves: of the different events.
        by_orders: epsilon at the best Rényi order, at each place.
        known: indices of the places of the knots, the last one among them.
        knots: the first steps at these.
    """

    places: Sequence[int]
    items: tuple[StepEvent, ...]
    delta: float
    setting: PlanAssumptions
    curves: Mapping[DpEvent, RdpCurve]
    by_orders: Sequence[float]
    known: Sequence[int]
    knots: Sequence[_Knot]

    @classmethod
    def of(cls, places: Sequence[int], items: tuple[StepEvent, ...], delta: float, setting: PlanAssumptions) -> Self:
        """Compute the Rényi curves."""
        use_effort(POINT * len(places))
        curves = setting.curves(items)
        parts = [(curves[step.event], step.count) for step in items]
        by_orders = [point.epsilon for point in epsilon_trajectory(parts, delta, places)]
        known = _knots(_sizes(parts, places))
        totals = curves_after(parts, [places[at] for at in known])
        knots = [_Knot(*each, by_orders[at]) for at, each in zip(known, totals, strict=True)]
        return cls(places, items, delta, setting, curves, by_orders, known, knots)

    def whole(self) -> TightestEpsilon:
        """Compute the epsilon of all of the plan."""
        return tightest_epsilon(counts_of(self.items), self.knots[-1].total, self.delta, self.setting)

    def epsilons(self, whole: TightestEpsilon) -> list[float]:
        """Compute the epsilon at each place: by orders, or by loss distributions at the next knot, if it is less."""
        last = len(self.known) - 1
        found = dict(enumerate(self.by_orders)) | {self.known[last]: whole.value}
        if whole.pld is not None:
            with suppress(PlanTooExpensiveError), bounded_apart():
                for at in (self.known[knot] for knot in _coarse_to_fine(last)):
                    counts = counts_of(first_steps(self.items, self.places[at]))
                    found[at] = min(found[at], pld_epsilon(counts, self.setting.relation, self.delta))
        return _from_the_next(found, len(self.places))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The smallest limits that admit the first steps of a plan, at some knots."""

    items: tuple[StepEvent, ...]
    delta: float
    setting: PlanAssumptions
    curves: Mapping[DpEvent, RdpCurve]
    knots: Sequence[_Knot]

    def needed(self) -> tuple[list[float], list[str]]:
        """Find the epsilon of a limit for each knot; infinite where none is known. With warnings."""
        last = len(self.knots) - 1
        planned, warnings = if_planned(self._planned)
        known = planned or {}
        if planned is not None and len(planned) < min(FEWEST, len(self.knots)):
            warnings = [_ABOUT_FEW]
        # By orders, no limit is below the epsilon at the best one.
        unknown = 0.0 if len(known) >= FEWEST else inf
        wanted = [
            place for place in (last, *_coarse_to_fine(last)) if self.knots[place].epsilon < known.get(place, unknown)
        ]
        for place in wanted:
            try:
                known[place] = min(self._by_orders(place), known.get(place, inf))
            except PlanTooExpensiveError:
                if last not in known:
                    raise
                break  # the limit of a later knot holds for an earlier one, too
        return [known.get(place, inf) for place in range(last + 1)], warnings

    def _by_orders(self, place: int) -> float:
        knot = self.knots[place]
        return required_epsilon(knot.total, self.delta, knot.epsilon)

    def _planned(self) -> dict[int, float]:
        """Find limits for an account that declares the steps, at the last knot and as many others as work allows.

        Raises:
            UnsupportedEventError: a plan cannot hold one of the events.
            PlanTooExpensiveError: it takes more work than the request may take.
        """
        plan, last = DeclaredPlan.of(self.items, self.setting.relation, self.curves), len(self.knots) - 1
        found = {last: self._admitting(plan, self.knots[last])}
        for place in _coarse_to_fine(last):
            knot, later = self.knots[place], min(limit for after, limit in found.items() if after > place)
            try:
                found[place] = plan.beginning_epsilon(knot.steps, knot.total, self.delta, min(later, 2 * knot.epsilon))
            except PlanTooExpensiveError:
                break
        return found

    def _admitting(self, plan: DeclaredPlan, whole: _Knot) -> float:
        """Find a limit that admits the whole plan: about the smallest, and checked by the rule that admits steps."""
        found = plan.beginning_epsilon(whole.steps, whole.total, self.delta, whole.epsilon, FINE)
        while 0 < found <= EPSILONS[1] and not plan.fits(Limit(found, self.delta)):
            found *= 1 + SLIGHTLY
        return found


_ABOUT_FEW: Final = (
    "To compute what a declared plan needs takes more work than a request may take, but for few of the points. Between "
    "these, `limit_needed_with_plan` is larger than needed."
)


def _coarse_to_fine(count: int) -> Iterator[int]:
    """Yield 0 ... count - 1, the first ones spread over all of them."""
    stride = 1
    while stride < count:
        stride *= 2
    yield from range(min(count, 1))
    while stride > 1:
        yield from range(stride // 2, count, stride)
        stride //= 2
