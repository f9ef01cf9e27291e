"""Plans that an account declares as `planned`: which limits admit all of one (ADR 0038)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log
from typing import Final, Self

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, root, smallest_fitting
from app.accounting.calibration.solvers import DIGITS, MAX_LOG_EXCESS, OUT_OF_BOUNDS
from app.accounting.curves import GRID_VERSION, RdpCurve
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import Composed, Decay, DpEvent, NeighboringRelation
from app.accounting.pld.merging import merged
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import COARSE, Fineness, approximate_plan_log_delta, plan_log_delta
from app.accounting.pld.prefixes import SPARE, pure_delta
from app.accounting.pricing_effort import use_effort
from app.accounting.rdp import event_curve
from app.ledger.filter.filters import PlanBound, spread_delta
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, planned_weights
from app.ledger.plan.plan_filter import Workload
from app.ledger.step_events import StepEvent, counts_of, first_steps
from app.planning.assumptions import total_of

EPSILONS: Final = (1e-9, 10_000.0)
"""Search range of the epsilon of a limit."""

DELTAS: Final = (1e-30, 0.499999)
"""Search range of the delta of a limit."""

WORK_OF_ITEM: Final = 20
WORK_OF_DOMINATION: Final = 4
"""Work of taking an item of a plan apart, and of comparing two mechanisms."""

WORK_OF_STEP: Final = 50
STEPS_COMPARED: Final = 40
"""Work of a step of a schedule, and how many steps are compared with others within a microsecond."""

MAX_TRIALS: Final = 8
NEARLY: Final = 1.01
"""Limits that are tried for the first steps of a plan whose mechanisms have own deltas, and how close is enough."""

ROUGHLY, CLOSELY = 1e-4, 1e-7
"""Relative tolerances of estimates without a lattice and with one; an answer's last digit is 1e-6 to 1e-5."""


@dataclass(frozen=True, eq=False)
class DeclaredPlan:
    """A plan as the `planned` events of an account.

    Args:
        total: curve of all of it.
    """

    items: tuple[StepEvent, ...]
    relation: NeighboringRelation
    total: RdpCurve
    workload: Workload

    @classmethod
    def of(cls, items: tuple[StepEvent, ...], relation: NeighboringRelation, known: Mapping[DpEvent, RdpCurve]) -> Self:
        """Declare events.

        Args:
            items: the events.
            relation: of the account.
            known: curves of some events; others are computed.

        Raises:
            UnsupportedEventError: a plan cannot hold one of them.
        """
        curves = {
            event: known[event] if event in known else event_curve(event, relation, GRID_VERSION)
            for event in counts_of(items)
        }
        if all(curve.is_exhausted for curve in curves.values()):
            raise UnsupportedEventError("A plan cannot hold only events that lose everything at every order.")
        use_effort(WORK_OF_ITEM * len(items) + _work_of_schedules(items))
        workload = Workload.of(items, relation)
        use_effort(WORK_OF_DOMINATION * workload.chains.size**2)
        return cls(items, relation, total_of(items, curves), workload)

    def fits(self, limit: Limit) -> bool:
        """Check whether the plan of an account with this limit holds all of it."""
        if self.total.is_zero:
            return True
        delta, room = self._parts_of_delta(limit, self.items, self.total)
        if self.total.delta > room:
            return False
        return self.workload.delta(self.workload.steps, limit.value, delta) <= delta

    def _parts_of_delta(self, limit: Limit, items: tuple[StepEvent, ...], total: RdpCurve) -> tuple[float, int]:
        """Compute the most that the delta of mechanisms may be, and their own deltas in units of 1e-18."""
        if not total.delta:
            return share_of_delta(limit, total) * exp(-SPARE), 0
        known = PlanBound(DECLARED_SHARE, limit.delta, self.workload.steps)
        weights = planned_weights(limit, items, self.relation, GRID_VERSION, DECLARED_SHARE, known)
        assert weights.plan is not None, "it was given"
        return weights.plan.delta * exp(-SPARE), weights.set_aside()

    def required_epsilon(self, delta: float, near: float) -> float:
        """Find the smallest epsilon of a limit that admits all of the plan, starting near an estimate.

        Returns:
            Six significant digits, rounded up; infinite if no limit with this delta suffices.
        """
        if self.total.is_zero:
            return 0.0
        close = self._near(lambda epsilon: Limit(epsilon, delta), near, EPSILONS)
        return smallest_limit(lambda epsilon: self.fits(Limit(epsilon, delta)), close, EPSILONS)

    def beginning_epsilon(
        self, count: int, total: RdpCurve, delta: float, near: float, fineness: Fineness = COARSE
    ) -> float:
        """Bound the epsilon of the smallest limit that admits the first steps, if an account declares them.

        Args:
            count: number of steps.
            total: curve of these steps.
            delta: of the limit.
            near: about the result, or above it; only own deltas make a difference.
            fineness: of the lattice.

        Returns:
            An upper bound, as of `Workload.epsilon`; six digits, rounded up. Infinite if no limit suffices.
        """
        if total.is_zero:
            return 0.0
        items, at, known, best = first_steps(self.items, count) if total.delta else self.items, near, 0.0, inf
        for _ in range(MAX_TRIALS):
            limit = Limit(min(max(at, EPSILONS[0]), EPSILONS[1]), delta)
            part, room = self._parts_of_delta(limit, items, total)
            if part == known or total.delta > room:
                break
            found, known = self.workload.epsilon(self.workload.steps_of(count), part, fineness), part
            # With own deltas the part falls with the limit: that of a larger limit is enough for a smaller one.
            if not total.delta or found <= limit.value:
                best = found
            if not total.delta or found <= limit.value <= found * NEARLY:
                break
            at = found * (1 + ROUGHLY)
        return _rounded_up(max(best, EPSILONS[0])) if best <= EPSILONS[1] else inf

    def required_delta(self, epsilon: float, near: float) -> float:
        """Find the smallest delta of a limit that admits all of the plan, as `required_epsilon`; 1 if none does."""
        if self.total.is_zero:
            return 0.0
        if self.total.delta:
            close = self._near(lambda delta: Limit(epsilon, delta), near, DELTAS)
        else:
            close = near
            for _ in range(2):  # it is precise near the result
                close = self.workload.delta(self.workload.steps, epsilon, min(max(close, DELTAS[0]), DELTAS[1]))
            close /= DECLARED_SHARE * exp(-SPARE)
        return min(smallest_limit(lambda delta: self.fits(Limit(epsilon, delta)), close, DELTAS), 1.0)

    def _near(self, limit_at: Callable[[float], Limit], near: float, bounds: tuple[float, float]) -> float:
        """Estimate the smallest parameter of a limit that admits all of the plan."""
        low, high = bounds
        excess = Excess(lambda at: (self, limit_at(min(max(exp(at), low), high))))
        return exp(excess.root(log(min(max(near, low), high)), (log(low), log(high))))

    def excess(self, limit: Limit, *, removal: bool, roughly: bool) -> float:
        """Estimate how far the plan is from what a limit admits; positive beyond it.

        Args:
            limit: of the account.
            removal: the direction of neighbours.
            roughly: whether to guess, without a lattice.

        Returns:
            The logarithm of the quotient of the logarithms of the deltas, which falls about as the square of the noise.
        """
        delta, room = self._parts_of_delta(limit, self.items, self.total)
        by_own_delta = log(self.total.delta / max(room, 1)) if self.total.delta else -MAX_LOG_EXCESS
        if by_own_delta > 0:
            return by_own_delta
        found = self._log_delta(limit.value, delta, removal=removal, roughly=roughly)
        if not -inf < found < 0:
            return by_own_delta if found < 0 else MAX_LOG_EXCESS
        return min(max(log(log(delta) / found), by_own_delta), MAX_LOG_EXCESS)

    def _log_delta(self, epsilon: float, near: float, *, removal: bool, roughly: bool) -> float:
        """Compute the logarithm of a delta of the plan in one direction, precise near a delta."""
        pure = pure_delta(sum(part.count * part.worst_loss for _, part in self.workload.parts), epsilon)
        pairs = self._pairs[0 if removal else 1]
        if not pure or not pairs:
            return -inf
        return min(log(pure), (approximate_plan_log_delta if roughly else plan_log_delta)(pairs, epsilon, near))

    @cached_property
    def _pairs(self) -> tuple[dict[Pair, int], dict[Pair, int]]:
        """Pairs of the plan, if a record is removed and if it is added."""
        both = Counter[Pair](), Counter[Pair]()
        for _, part in self.workload.parts:
            for total, pairs in zip(both, (part.directions.removal, part.directions.addition), strict=True):
                total.update({pair: count * part.count for pair, count in pairs.items()})
        removal, addition = (dict(merged(pairs)) for pairs in both)
        return removal, addition


def share_of_delta(limit: Limit, total: RdpCurve) -> float:
    """Compute the part of a limit's delta for a plan whose mechanisms have no deltas of their own."""
    return DECLARED_SHARE * spread_delta(limit, total, GRID_VERSION)


def _rounded_up(number: float) -> float:
    """Round up to the digits of an answer."""
    index = index_at_or_below(number, DIGITS)
    return decimal(index if decimal(index, DIGITS) >= number else index + 1, DIGITS)


@dataclass
class Excess:
    """The excess of what a parameter makes of a plan or a limit, in the direction that is the worse one.

    Args:
        made: the plan and the limit of the logarithm of the parameter.
    """

    made: Callable[[float], tuple[DeclaredPlan, Limit]]
    _removal: bool = True

    def root(self, start: float, bounds: tuple[float, float]) -> float:
        """Estimate from where on the limit admits the plan, first without a lattice."""
        near = root(lambda at: self._at(at, roughly=True), start, bounds, ROUGHLY)
        removal, addition = (self._of(near, removal=removal, roughly=True) for removal in (True, False))
        self._removal = removal >= addition
        return root(lambda at: self._at(at, roughly=False), near, bounds, CLOSELY)

    def _at(self, at: float, *, roughly: bool) -> float:
        return self._of(at, removal=self._removal, roughly=roughly)

    def _of(self, at: float, *, removal: bool, roughly: bool) -> float:
        """Compute the excess; a plan that cannot be is far from what a limit admits."""
        try:
            plan, limit = self.made(at)
            return plan.excess(limit, removal=removal, roughly=roughly)
        except OUT_OF_BOUNDS:
            return MAX_LOG_EXCESS


def _work_of_schedules(items: Iterable[StepEvent]) -> int:
    """Estimate the work of taking all schedules apart, and of comparing the steps of different ones."""
    events = [step.event for step in items]
    different = sum(map(_steps_of, set(events)))
    return WORK_OF_STEP * sum(map(_steps_of, events)) + different**2 // STEPS_COMPARED


def _steps_of(event: DpEvent) -> int:
    """Count the steps of the schedules in an event."""
    if isinstance(event, Composed):
        return sum(map(_steps_of, event.events))
    return event.steps if isinstance(event, Decay) else 0


def smallest_limit(fits: Callable[[float], bool], near: float, bounds: tuple[float, float]) -> float:
    """Find the smallest number of six digits that fits, starting near an estimate; infinite if none does."""
    low, high = bounds
    first, last = (index_at_or_below(bound, DIGITS) for bound in bounds)
    start = index_at_or_below(min(max(near, low), high), DIGITS)
    found = smallest_fitting(lambda index: fits(decimal(index, DIGITS)), start, first, last)
    return inf if found is None else decimal(found, DIGITS)
