"""What would fit: noise, steps or sampling for a target (epsilon, delta)."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, least
from app.accounting.calibration.solvers import (
    DIGITS,
    MIN_SAMPLING_PROBABILITY,
    Target,
    count_that_fits,
    noise_multiplier_that_fits,
    sampling_probability_that_fits,
)
from app.accounting.calibration.targets import Rule
from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import RdpCurve
from app.accounting.events import (
    MAX_NOISE_MULTIPLIER,
    DpEvent,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.orders import orders
from app.accounting.rdp import event_curve
from app.accounting.work import spend
from app.ledger.accounts import StepEvent
from app.ledger.filter_bounds import bounds_of
from app.ledger.filters import FilterKind, Limit, adaptive_weights
from app.service.planning.assumptions import PlanAssumptions, about_epsilon

LIMITS: Final = (1e-9, 10_000.0)
"""Between which the epsilon of a limit is looked for."""

USUAL_SURCHARGE: Final = 1.01
"""What an adaptive filter takes more than a declared one: where the search begins."""

WEIGHING: Final = 1000
"""Microseconds that it takes at most to find the weights of a limit."""

CLOSED: Final = -1
"""The bound of an order at which nothing fits."""


@dataclass(frozen=True, slots=True)
class AdaptiveRule(Rule):
    """A plan fits if an account with an adaptive filter would admit all of it, having been told it as `planned`."""

    looks_at_the_plan: ClassVar[bool] = True

    def bounds(self, total: RdpCurve) -> NDArray[np.int64]:
        """What each order may hold.

        Args:
            total: the whole plan's curve, not zero.

        Returns:
            (n_orders,) int64, units of 2^-44 nats; -1 at an order that does not count.
        """
        spend(WEIGHING)
        limit = Limit(self.epsilon, self.delta)
        weights = adaptive_weights(limit, total, self.grid_version)
        gate = bounds_of(limit, FilterKind.ADAPTIVE, weights, self.grid_version, total.delta)
        bounds = np.full(total.values.shape, CLOSED, dtype=np.int64)
        if total.delta <= gate.room:
            bounds[gate.places] = gate.bounds
        return bounds


@dataclass(frozen=True, slots=True)
class CalibrationGoal:
    """What a plan must meet.

    Args:
        epsilon: in (0, 10000].
        delta: in [1e-30, 0.5).
        filter: declared: the plan is fixed in advance; adaptive: a ledger's adaptive account must admit it.
        other_events: what else is planned.
        setting: what holds for all of it.
    """

    epsilon: float
    delta: float
    filter: FilterKind
    other_events: tuple[StepEvent, ...]
    setting: PlanAssumptions

    def rule(self) -> Rule:
        """The rule that says whether a plan meets the goal."""
        kind = AdaptiveRule if self.filter is FilterKind.ADAPTIVE else Rule
        return kind(self.epsilon, self.delta)

    def target(self, count: int) -> Target:
        """What an event that is repeated so often must fit into."""
        return Target(self.rule(), count, self.setting.curve(self.other_events), self.setting.relation)


@dataclass(frozen=True, slots=True)
class Solution:
    """A parameter with which a plan meets its goal.

    Args:
        value: the parameter; None if no value is enough.
        event: with that parameter.
        epsilon: what the whole plan then costs if it is fixed in advance.
        optimal_order: where the bound is smallest.
        warnings: what a careful reader would want to know.
    """

    value: float | None
    event: DpEvent | None
    epsilon: float | None
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """How many steps meet a goal.

    Args:
        steps: the most that do not break it; 0 if not even one fits.
        epochs: whole epochs in these steps; None if nobody said how long an epoch is.
        epsilon: of that many steps and of what is planned besides; None if that alone breaks the goal.
        epsilon_after_epochs: of the steps of the whole epochs, likewise.
        optimal_order: where the bound on `epsilon` is smallest.
        warnings: what a careful reader would want to know.
    """

    steps: int
    epochs: int | None
    epsilon: float | None
    epsilon_after_epochs: float | None
    optimal_order: float | None
    warnings: tuple[str, ...]


def smallest_noise(event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    """The least noise with which a repeated event meets a goal.

    Args:
        event: what is repeated; its own noise multiplier does not matter.
        count: how often.
        goal: what it must meet.

    Returns:
        Six significant digits, rounded up; the event with the next smaller number does not meet the goal.

    Raises:
        UnsupportedEventError: the event has no single noise multiplier, or no sound bound under the relation.
    """
    found = noise_multiplier_that_fits(event, goal.target(count))
    if found is None:
        return _unreachable(
            goal, f"Not even a noise multiplier of {MAX_NOISE_MULTIPLIER:g} meets epsilon {goal.epsilon:g}"
        )
    return _solution(found, with_noise_multiplier(event, found), count, goal)


def largest_sampling(event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    """The most sampling with which a repeated event meets a goal.

    Args:
        event: what is repeated; its own sampling probability does not matter.
        count: how often.
        goal: what it must meet.

    Returns:
        Six significant digits, rounded down; the event with the next larger number does not meet the goal.

    Raises:
        UnsupportedEventError: the event has no single sampling probability, or no sound bound under the relation.
    """
    found = sampling_probability_that_fits(event, goal.target(count))
    if found is None:
        return _unreachable(
            goal, f"Not even a sampling probability of {MIN_SAMPLING_PROBABILITY:g} meets epsilon {goal.epsilon:g}"
        )
    return _solution(found, with_sampling_probability(event, found), count, goal)


def most_steps(event: DpEvent, goal: CalibrationGoal, steps_per_epoch: int | None = None) -> Steps:
    """How often an event may be repeated without breaking a goal.

    Args:
        event: what is repeated.
        goal: what it must not break.
        steps_per_epoch: of the trainer, at least 1.

    Returns:
        The largest count, and the whole epochs in it.

    Raises:
        UnsupportedEventError: the event has no sound bound under the relation.
    """
    rule, besides = goal.rule(), goal.setting.curve(goal.other_events)
    curve = event_curve(event, goal.setting.relation, rule.grid_version)
    steps = count_that_fits(curve, besides, rule)
    events = [event, *(step.event for step in goal.other_events)]
    warnings = goal.setting.warnings(events, goal.delta)
    if steps == 0:
        warnings.append(_why(goal, f"Not even one step meets epsilon {goal.epsilon:g}"))
        if not _fits(goal, besides):
            epochs = None if steps_per_epoch is None else 0
            return Steps(0, epochs, None, None, None, tuple(warnings))
    grid, total = orders(rule.grid_version), besides + curve.times(steps)
    found = epsilon_of_curve(grid, total, goal.delta)
    order = None if total.is_zero else found.order
    warnings += about_epsilon(found, total, goal.delta)
    if steps_per_epoch is None:
        return Steps(steps, None, found.epsilon, None, order, tuple(warnings))
    epochs = steps // steps_per_epoch
    whole = epsilon_of_curve(grid, besides + curve.times(epochs * steps_per_epoch), goal.delta)
    return Steps(steps, epochs, found.epsilon, whole.epsilon, order, tuple(warnings))


def smallest_adaptive_limit(total: RdpCurve, delta: float, declared: float) -> float:
    """The smallest limit under which an account with an adaptive filter would admit a plan, told as `planned`.

    Args:
        total: the whole plan's curve.
        delta: of the limit, in [1e-30, 0.5).
        declared: the plan's epsilon if it is fixed in advance, which is near.

    Returns:
        Epsilon, six significant digits, rounded up; infinite if no limit is large enough.
    """
    if total.is_zero:
        return 0.0
    first, last = (index_at_or_below(bound, DIGITS) for bound in LIMITS)
    near = min(max(declared * USUAL_SURCHARGE, LIMITS[0]), LIMITS[1])
    found = least(
        lambda index: AdaptiveRule(decimal(index, DIGITS), delta).fits(total),
        index_at_or_below(near, DIGITS),
        first,
        last,
    )
    return inf if found is None else decimal(found, DIGITS)


def _solution(value: float, event: DpEvent, count: int, goal: CalibrationGoal) -> Solution:
    steps = (*goal.other_events, StepEvent(event, count))
    total = goal.setting.curve(steps)
    found = epsilon_of_curve(orders(goal.rule().grid_version), total, goal.delta)
    warnings = goal.setting.warnings([step.event for step in steps], goal.delta)
    warnings += about_epsilon(found, total, goal.delta)
    return Solution(value, event, found.epsilon, found.order, tuple(warnings))


def _unreachable(goal: CalibrationGoal, what: str) -> Solution:
    warnings = goal.setting.warnings([step.event for step in goal.other_events], goal.delta)
    return Solution(None, None, None, None, (*warnings, _why(goal, what)))


def _fits(goal: CalibrationGoal, besides: RdpCurve) -> bool:
    return besides.is_zero or goal.rule().fits(besides)


def _why(goal: CalibrationGoal, what: str) -> str:
    if not _fits(goal, goal.setting.curve(goal.other_events)):
        what = f"What is planned besides breaks epsilon {goal.epsilon:g} by itself"
    held = " with an adaptive filter" if goal.filter is FilterKind.ADAPTIVE else ""
    return f"{what} at delta {goal.delta:g}{held}: nothing fits."
