"""Calibration: noise, steps or sampling with which an account admits all of a plan under a limit.

An account that declares the plan as `planned` admits more than one that does not. So every answer has two numbers. The
epsilon of an answer is at most that of the limit.
UnsupportedEventError: the event has no sound bound under the relation, or not a single parameter of this kind.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from app.accounting.calibration.solvers import (
    MIN_SAMPLING_PROBABILITY,
    Target,
    max_count,
    max_sampling_probability,
    min_noise_multiplier,
)
from app.accounting.curves import GRID_VERSION, RdpCurve
from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    DpEvent,
    noise_multiplier,
    sampling_probability,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.rdp import event_curve
from app.ledger.filter.limits import Limit
from app.ledger.step_events import StepEvent, counts_of
from app.planning.assumptions import ByPlan, PlanAssumptions, if_planned, total_of
from app.planning.plan_search import DeclaredTarget, max_planned_sampling, max_planned_steps, min_planned_noise
from app.planning.renyi_limits import RenyiRule
from app.planning.tightest import tightest_epsilon


@dataclass(frozen=True)
class CalibrationGoal:
    """Target of a plan.

    Args:
        epsilon: in (0, 10000].
        delta: in [1e-30, 0.5).
    """

    epsilon: float
    delta: float
    other_events: tuple[StepEvent, ...]
    setting: PlanAssumptions

    @cached_property
    def curves(self) -> dict[DpEvent, RdpCurve]:
        """Curves of the other events."""
        return self.setting.curves(self.other_events)

    @cached_property
    def other_cost(self) -> RdpCurve:
        """Curve of all other events."""
        return total_of(self.other_events, self.curves)

    def rule(self) -> RenyiRule:
        """Return the rule of an account without a plan."""
        return RenyiRule(self.epsilon, self.delta)

    def target(self, count: int) -> Target:
        """Build the calibration target of an event repeated `count` times, for an account without a plan."""
        return Target(self.rule(), count, self.other_cost, self.setting.relation)

    def declared(self) -> DeclaredTarget:
        """Build the calibration target of an event, for an account that declares the plan."""
        return DeclaredTarget(Limit(self.epsilon, self.delta), self.other_events, self.setting.relation, self.curves)


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameter with which a plan meets its goal; None: no value suffices.

    Args:
        value: the parameter.
        event: with the value for an account that declares the plan.
        epsilon: of the whole plan with this event, at most the goal's.
        warnings: about the result.
    """

    value: ByPlan[float | None]
    event: DpEvent | None
    epsilon: float | None
    delta: float
    warnings: tuple[str, ...]

    @property
    def reachable(self) -> bool:
        """Whether any value suffices."""
        return self.value.with_plan is not None


@dataclass(frozen=True, slots=True)
class Steps:
    """Number of steps that meet a goal.

    Args:
        steps: the maximum; 0 if not even one fits.
        epochs: whole epochs in the steps of an account that declares the plan; None without a length of an epoch.
        epsilon: of these steps and the other planned events, at most the goal's. None if the other events exceed it.
        epsilon_after_epochs: the same for the whole epochs.
        warnings: about the result.
    """

    steps: ByPlan[int]
    epochs: int | None
    epsilon: float | None
    epsilon_after_epochs: float | None
    delta: float
    warnings: tuple[str, ...]


def smallest_noise(event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    """Find the minimum noise with which a repeated event meets a goal.

    Returns:
        Six significant digits, rounded up; the next smaller number does not meet the goal.
    """
    without = min_noise_multiplier(event, goal.target(count))
    near = noise_multiplier(event) if without is None else without
    declared, warnings = if_planned(lambda: min_planned_noise(event, count, goal.declared(), near))
    found = min((each for each in (declared, without) if each is not None), default=None)
    if found is None:
        return _unreachable(goal, f"a noise multiplier of {MAX_NOISE_MULTIPLIER:g}")
    return _solution(ByPlan(found, without), with_noise_multiplier(event, found), count, goal, warnings)


def largest_sampling(event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    """Find the maximum sampling with which a repeated event meets a goal.

    Returns:
        Six significant digits, rounded down; the next larger number does not meet the goal.
    """
    without = max_sampling_probability(event, goal.target(count))
    near = sampling_probability(event) if without is None else without
    declared, warnings = if_planned(lambda: max_planned_sampling(event, count, goal.declared(), near))
    found = max((each for each in (declared, without) if each is not None), default=None)
    if found is None:
        return _unreachable(goal, f"a sampling probability of {MIN_SAMPLING_PROBABILITY:g}")
    return _solution(ByPlan(found, without), with_sampling_probability(event, found), count, goal, warnings)


def most_steps(event: DpEvent, goal: CalibrationGoal, steps_per_epoch: int | None = None) -> Steps:
    """Find the maximum number of repetitions of an event that meets a goal."""
    rule, other_cost = goal.rule(), goal.other_cost
    curve = event_curve(event, goal.setting.relation, GRID_VERSION)
    without = max_count(curve, other_cost, rule)
    declared, unplanned = if_planned(lambda: max_planned_steps(event, goal.declared(), without))
    steps = ByPlan(max(declared or 0, without), without)
    warnings = [*goal.setting.warnings((StepEvent(event, 1), *goal.other_events), goal.delta), *unplanned]
    epochs = None if steps_per_epoch is None else steps.with_plan // steps_per_epoch
    if not steps.with_plan:
        warnings.append(_why(goal, "one step"))
        if not _others_fit(goal):
            return Steps(steps, epochs, None, None, goal.delta, tuple(warnings))
    reached, about = _reached(event, steps.with_plan, goal)
    whole = None
    if steps_per_epoch is not None:
        whole, _ = _reached(event, steps.with_plan - steps.with_plan % steps_per_epoch, goal)
    return Steps(steps, epochs, reached, whole, goal.delta, (*warnings, *about))


def _solution(
    value: ByPlan[float | None], event: DpEvent, count: int, goal: CalibrationGoal, unplanned: list[str]
) -> Solution:
    reached, about = _reached(event, count, goal)
    warnings = goal.setting.warnings((*goal.other_events, StepEvent(event, count)), goal.delta)
    return Solution(value, event, reached, goal.delta, (*warnings, *about, *unplanned))


def _reached(event: DpEvent, count: int, goal: CalibrationGoal) -> tuple[float, list[str]]:
    """Compute the epsilon of what meets a goal, with warnings.

    A limit is proven to hold for it. So it is cut to the goal's where its own lattice shows more, by a digit of its
    rounding.
    """
    counts = Counter(counts_of(goal.other_events)) + Counter({event: count})
    total = goal.other_cost + event_curve(event, goal.setting.relation, GRID_VERSION).times(count)
    found = tightest_epsilon(counts, total, goal.delta, goal.setting)
    return min(found.value, goal.epsilon), found.warnings(total, goal.delta)


def _unreachable(goal: CalibrationGoal, extreme: str) -> Solution:
    warnings = goal.setting.warnings(goal.other_events, goal.delta)
    return Solution(ByPlan(None, None), None, None, goal.delta, (*warnings, _why(goal, extreme)))


def _others_fit(goal: CalibrationGoal) -> bool:
    """Check whether a limit admits the other events, with or without a plan."""
    if goal.other_cost.is_zero or goal.rule().fits(goal.other_cost):
        return True
    fits, _ = if_planned(lambda: goal.declared().fits_alone())
    return bool(fits)


def _why(goal: CalibrationGoal, extreme: str) -> str:
    """Explain that not even an extreme value of the parameter meets a goal."""
    reason = f"Not even {extreme} meets" if _others_fit(goal) else "The other planned events alone exceed"
    return f"{reason} epsilon {goal.epsilon:g} at delta {goal.delta:g}: nothing fits."
