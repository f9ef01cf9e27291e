"""Calibration: noise, steps or sampling for a target (epsilon, delta).

UnsupportedEventError: the event has no sound bound under the relation, or not a single parameter of this kind.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, smallest_fitting
from app.accounting.calibration.solvers import (
    DIGITS,
    MIN_SAMPLING_PROBABILITY,
    Target,
    max_count,
    max_sampling_probability,
    min_noise_multiplier,
)
from app.accounting.conversion import Rule, epsilon_of_curve
from app.accounting.curves import RdpCurve, orders
from app.accounting.events import MAX_NOISE_MULTIPLIER, DpEvent, with_noise_multiplier, with_sampling_probability
from app.accounting.rdp import event_curve
from app.accounting.work import spend
from app.ledger.filters import Limit, filter_bounds, filter_weights
from app.ledger.step_events import StepEvent
from app.service.planning.assumptions import PlanAssumptions, about_epsilon

LIMITS: Final = (1e-9, 10_000.0)
"""Search range of an epsilon limit."""

USUAL_SURCHARGE: Final = 1.01
"""Typical factor between the adaptive and the declared limit, where the search starts."""

WEIGHING: Final = 1000
"""Maximum time of computing filter weights, in microseconds."""

CLOSED: Final = -1
"""Bound of an order that admits nothing."""


@dataclass(frozen=True, slots=True)
class AdaptiveRule(Rule):
    """Rule that an account with an adaptive filter and this plan as `planned` admits the plan."""

    depends_on_plan: ClassVar[bool] = True

    def bounds(self, total: RdpCurve) -> NDArray[np.int64]:
        """Compute the bound of each order for the whole plan's curve.

        Returns:
            (n_orders,) int64, units of 2^-44 nats; -1 at an unused order.
        """
        spend(WEIGHING)
        limit = Limit(self.epsilon, self.delta)
        weights = filter_weights(limit, total, self.grid_version)
        gate = filter_bounds(limit, weights, self.grid_version)
        bounds = np.full(total.values.shape, CLOSED, dtype=np.int64)
        if total.delta <= gate.room:
            bounds[gate.places] = gate.bounds
        return bounds


@dataclass(frozen=True, slots=True)
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

    def rule(self) -> Rule:
        """Return the rule that decides whether a plan meets the goal."""
        return AdaptiveRule(self.epsilon, self.delta)

    def target(self, count: int) -> Target:
        """Build the calibration target of an event repeated `count` times."""
        return Target(self.rule(), count, self.setting.curve(self.other_events), self.setting.relation)


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameter with which a plan meets its goal, and its epsilon as fixed in advance; None: no value suffices."""

    value: float | None
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
        steps: the maximum; 0 if not even one fits.
        epochs: whole epochs in these steps; None without a length of an epoch.
        epsilon: of these steps and the other planned events; None if the latter exceed the goal.
        epsilon_after_epochs: the same for the whole epochs.
        optimal_order: at which `epsilon` is smallest.
        warnings: about the result.
    """

    steps: int
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
    found = min_noise_multiplier(event, goal.target(count))
    if found is None:
        return _unreachable(
            goal, f"Not even a noise multiplier of {MAX_NOISE_MULTIPLIER:g} meets epsilon {goal.epsilon:g}"
        )
    return _solution(found, with_noise_multiplier(event, found), count, goal)


def largest_sampling(event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    """Find the maximum sampling with which a repeated event meets a goal.

    Returns:
        Six significant digits, rounded down; the next larger number does not meet the goal.
    """
    found = max_sampling_probability(event, goal.target(count))
    if found is None:
        return _unreachable(
            goal, f"Not even a sampling probability of {MIN_SAMPLING_PROBABILITY:g} meets epsilon {goal.epsilon:g}"
        )
    return _solution(found, with_sampling_probability(event, found), count, goal)


def most_steps(event: DpEvent, goal: CalibrationGoal, steps_per_epoch: int | None = None) -> Steps:
    """Find the maximum number of repetitions of an event that meets a goal."""
    rule, other_cost = goal.rule(), goal.setting.curve(goal.other_events)
    curve = event_curve(event, goal.setting.relation, rule.grid_version)
    steps = max_count(curve, other_cost, rule)
    warnings = goal.setting.warnings((StepEvent(event, 1), *goal.other_events), goal.delta)
    epochs = None if steps_per_epoch is None else steps // steps_per_epoch
    if steps == 0:
        warnings.append(_why(goal, "one step"))
        if not _fits(goal, other_cost):
            return Steps(0, epochs, None, None, goal.delta, None, tuple(warnings))
    grid, total = orders(rule.grid_version), other_cost + curve.times(steps)
    found = epsilon_of_curve(grid, total, goal.delta)
    warnings += about_epsilon(found, total, goal.delta)
    whole = None
    if steps_per_epoch is not None:
        in_epochs = curve.times(steps - steps % steps_per_epoch)
        whole = epsilon_of_curve(grid, other_cost + in_epochs, goal.delta).epsilon
    order = None if total.is_zero else found.order
    return Steps(steps, epochs, found.epsilon, whole, goal.delta, order, tuple(warnings))


def smallest_adaptive_limit(total: RdpCurve, delta: float, declared: float) -> float:
    """Find the minimum epsilon limit under which an adaptive account, with the plan as `planned`, admits the plan.

    Args:
        total: the whole plan's curve.
        delta: of the limit, in [1e-30, 0.5).
        declared: the plan's epsilon if fixed in advance, where the search starts.

    Returns:
        Six significant digits, rounded up; infinite if no limit suffices.
    """
    if total.is_zero:
        return 0.0
    first, last = (index_at_or_below(bound, DIGITS) for bound in LIMITS)
    near = min(max(declared * USUAL_SURCHARGE, LIMITS[0]), LIMITS[1])
    found = smallest_fitting(
        lambda index: AdaptiveRule(decimal(index, DIGITS), delta).fits(total),
        index_at_or_below(near, DIGITS),
        first,
        last,
    )
    return inf if found is None else decimal(found, DIGITS)


def _solution(value: float, event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    steps = (*goal.other_events, StepEvent(event, count))
    found, warnings = goal.setting.epsilon(steps, goal.setting.curve(steps), goal.delta)
    return Solution(value, event, found.epsilon, goal.delta, found.order, tuple(warnings))


def _unreachable(goal: CalibrationGoal, extreme: str) -> Solution:
    warnings = goal.setting.warnings(goal.other_events, goal.delta)
    return Solution(None, None, None, goal.delta, None, (*warnings, _why(goal, extreme)))


def _fits(goal: CalibrationGoal, other_cost: RdpCurve) -> bool:
    return other_cost.is_zero or goal.rule().fits(other_cost)


def _why(goal: CalibrationGoal, extreme: str) -> str:
    """Explain that not even an extreme value of the parameter meets a goal."""
    fits = _fits(goal, goal.setting.curve(goal.other_events))
    reason = f"Not even {extreme} meets" if fits else "The other planned events alone exceed"
    return f"{reason} epsilon {goal.epsilon:g} at delta {goal.delta:g}: nothing fits."
