"""Calibration: noise, steps or sampling with which an account admits all of a plan under a limit.

An account that declares the plan as `planned` admits more than one that does not. So every answer has two numbers.
UnsupportedEventError: the event has no sound bound under the relation, or not a single parameter of this kind.
"""

from dataclasses import dataclass
from functools import cached_property

from app.accounting.calibration.solvers import (
    MIN_SAMPLING_PROBABILITY,
    Target,
    max_count,
    max_sampling_probability,
    min_noise_multiplier,
)
from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    DpEvent,
    noise_multiplier,
    sampling_probability,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.rdp import event_curve
from app.ledger.filter.filters import Limit
from app.ledger.step_events import StepEvent
from app.planning.assumptions import PlanAssumptions, about_epsilon, if_planned, total_of
from app.planning.costs import pld_reading
from app.planning.plan_search import DeclaredTarget, max_planned_sampling, max_planned_steps, min_planned_noise
from app.planning.renyi_limits import RenyiRule, first_curve


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
        """Return the rule of an account without a plan, whose first charge is the first of the other events."""
        return RenyiRule(self.epsilon, self.delta, first=first_curve(self.other_events, self.curves))

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
        value: for an account that declares the plan.
        value_without_plan: for an account that declares none.
        event: with this value.
        epsilon: of the whole plan with it, at most the goal's.
        optimal_order: at which that is smallest.
        warnings: about the result.
    """

    value: float | None
    value_without_plan: float | None
    event: DpEvent | None
    epsilon: float | None
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]

    @property
    def reachable(self) -> bool:
        """Whether any value suffices."""
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Steps:
    """Number of steps that meet a goal.

    Args:
        steps: the maximum of an account that declares the plan; 0 if not even one fits.
        steps_without_plan: the maximum of an account that declares none.
        epochs: whole epochs in `steps`; None without a length of an epoch.
        epsilon: of `steps` and the other planned events, at most the goal's. None if the other events exceed the goal.
        epsilon_after_epochs: the same for the whole epochs.
        optimal_order: at which `epsilon` is smallest.
        warnings: about the result.
    """

    steps: int
    steps_without_plan: int
    epochs: int | None
    epsilon: float | None
    epsilon_after_epochs: float | None
    delta: float
    optimal_order: float | None
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
    return _solution(found, without, StepEvent(with_noise_multiplier(event, found), count), goal, warnings)


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
    return _solution(found, without, StepEvent(with_sampling_probability(event, found), count), goal, warnings)


def most_steps(event: DpEvent, goal: CalibrationGoal, steps_per_epoch: int | None = None) -> Steps:
    """Find the maximum number of repetitions of an event that meets a goal."""
    rule, other_cost = goal.rule(), goal.other_cost
    curve = event_curve(event, goal.setting.relation, GRID_VERSION)
    without = max_count(curve, other_cost, rule)
    declared, unplanned = if_planned(lambda: max_planned_steps(event, goal.declared(), without))
    steps = max(declared or 0, without)
    warnings = [*goal.setting.warnings((StepEvent(event, 1), *goal.other_events), goal.delta), *unplanned]
    epochs = None if steps_per_epoch is None else steps // steps_per_epoch
    if steps == 0:
        warnings.append(_why(goal, "one step"))
        if not _others_fit(goal):
            return Steps(0, 0, epochs, None, None, goal.delta, None, tuple(warnings))
    grid, total = orders(GRID_VERSION), other_cost + curve.times(steps)
    found = epsilon_of_curve(grid, total, goal.delta)
    reached = _epsilon(found.epsilon, event, steps, goal)
    warnings += about_epsilon(found, total, goal.delta)
    whole = None
    if steps_per_epoch is not None:
        fewer = steps - steps % steps_per_epoch
        by_rdp = epsilon_of_curve(grid, other_cost + curve.times(fewer), goal.delta).epsilon
        whole = _epsilon(by_rdp, event, fewer, goal)
    order = None if total.is_zero else found.order
    return Steps(steps, without, epochs, reached, whole, goal.delta, order, tuple(warnings))


def _solution(
    value: float, without: float | None, step: StepEvent, goal: CalibrationGoal, unplanned: list[str]
) -> Solution:
    total = goal.other_cost + goal.setting.curve([step])
    found, warnings = goal.setting.epsilon((*goal.other_events, step), total, goal.delta)
    warnings += unplanned
    reached = _epsilon(found.epsilon, step.event, step.count, goal)
    return Solution(value, without, step.event, reached, goal.delta, found.order, tuple(warnings))


def _epsilon(by_rdp: float, event: DpEvent, count: int, goal: CalibrationGoal) -> float:
    """Compute the epsilon of what meets a goal: by Rényi divergence or, if that is above it, by loss distributions."""
    if by_rdp <= goal.epsilon:
        return by_rdp
    planned = (*goal.other_events, *([StepEvent(event, count)] if count else []))
    return min([goal.epsilon, *(each.value for each in pld_reading(planned, goal.setting, goal.delta))])


def _unreachable(goal: CalibrationGoal, extreme: str) -> Solution:
    warnings = goal.setting.warnings(goal.other_events, goal.delta)
    return Solution(None, None, None, None, goal.delta, None, (*warnings, _why(goal, extreme)))


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
