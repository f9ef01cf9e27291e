"""What a plan costs: epsilon for a delta, delta for an epsilon, and the way there."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from app.accounting.calibration.trajectory import TrajectoryPoint, epsilon_trajectory
from app.accounting.conversion import delta_of_curve, epsilon_of_curve
from app.accounting.orders import GRID_VERSION, orders
from app.accounting.rdp import event_curve
from app.accounting.work import spend
from app.accounting.zcdp import ZcdpBound, total_concentration
from app.ledger.accounts import StepEvent, zero_curve
from app.service.planning.assumptions import PlanAssumptions, about_epsilon, about_order, about_size
from app.service.planning.calibration import smallest_adaptive_limit

POINT: Final = 120
"""Microseconds that a point of a trajectory takes at most."""

RDP = "The best of all orders by the improved conversion (Canonne, Kamath, Steinke 2020): what a ledger counts."
CLASSIC = "The best of all orders by the conversion of 2017 (Mironov), ln(1/delta) / (order - 1): older tools."
ZCDP = "xi + rho + 2 sqrt(rho ln(1/delta)) (Bun, Steinke 2016), for plans without sampling: zCDP monitors."
ADAPTIVE = "The smallest limit of an account with an adaptive filter that admits all of this as planned."
GAUSSIAN = "Exact for Gaussian noise without sampling (Balle, Wang 2018): no bound is smaller."


@dataclass(frozen=True, slots=True)
class AccountantReading:
    """What one way of accounting says.

    Args:
        name: rdp, adaptive, rdp_classic, zcdp or analytic_gaussian.
        value: the epsilon, or the delta, that it proves.
        optimal_order: where it is smallest; None for a way without orders, or where nothing is proven.
        note: which formula it is.
    """

    name: str
    value: float
    optimal_order: float | None
    note: str


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan costs if it is fixed in advance.

    Args:
        epsilon: in nats; infinite if every order is exhausted.
        delta: in [0, 1].
        optimal_order: where the bound is smallest; None where every order is exhausted.
        warnings: what a careful reader would want to know.
        accountants: several ways to account for the same plan, those that apply.
    """

    epsilon: float
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]
    accountants: tuple[AccountantReading, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What a plan has cost on its way.

    Args:
        points: the first step, the last, and some between them.
        steps: how many there are in all.
        delta: as asked.
        warnings: of the whole plan.
    """

    points: tuple[TrajectoryPoint, ...]
    steps: int
    delta: float
    warnings: tuple[str, ...]


def plan_epsilon(steps: tuple[StepEvent, ...], delta: float, setting: PlanAssumptions) -> PlanCost:
    """The epsilon of a plan.

    Args:
        steps: the plan, at least one event.
        delta: in [1e-30, 0.5).
        setting: what holds for all of it.

    Returns:
        Epsilon at the full delta of the best order, and what other ways of accounting say: valid for a plan that is
        fixed in advance.

    Raises:
        UnsupportedEventError: an event has no sound bound under the relation.
    """
    total = setting.curve(steps)
    found = epsilon_of_curve(orders(GRID_VERSION), total, delta)
    classic = epsilon_of_curve(orders(GRID_VERSION), total, delta, "classic")
    order = None if found.epsilon == inf else found.order
    accountants = (
        AccountantReading("rdp", found.epsilon, order, RDP),
        AccountantReading("adaptive", smallest_adaptive_limit(total, delta, found.epsilon), None, ADAPTIVE),
        AccountantReading("rdp_classic", classic.epsilon, None if classic.epsilon == inf else classic.order, CLASSIC),
        *_unsampled(steps, setting, lambda plan: plan.epsilon(delta), lambda plan: plan.exact_epsilon(delta)),
    )
    warnings = setting.warnings([step.event for step in steps], delta) + about_epsilon(found, total, delta)
    return PlanCost(found.epsilon, delta, order, tuple(warnings), accountants)


def plan_delta(steps: tuple[StepEvent, ...], epsilon: float, setting: PlanAssumptions) -> PlanCost:
    """The delta of a plan.

    Args:
        steps: the plan, at least one event.
        epsilon: in [0, 10000].
        setting: what holds for all of it.

    Returns:
        The smallest delta that any order proves, and what other ways of accounting say: valid for a plan that is
        fixed in advance.

    Raises:
        UnsupportedEventError: an event has no sound bound under the relation.
    """
    total = setting.curve(steps)
    found = delta_of_curve(orders(GRID_VERSION), total, epsilon)
    classic = delta_of_curve(orders(GRID_VERSION), total, epsilon, "classic")
    order = found.order if found.delta < 1 else None
    accountants = (
        AccountantReading("rdp", found.delta, order, RDP),
        AccountantReading("rdp_classic", classic.delta, classic.order if classic.delta < 1 else None, CLASSIC),
        *_unsampled(steps, setting, lambda plan: plan.delta(epsilon), lambda plan: plan.exact_delta(epsilon)),
    )
    warnings = setting.warnings([step.event for step in steps], found.delta) + about_size(epsilon)
    if found.delta >= 1:
        warnings.append(f"Nothing is proven at epsilon {epsilon:g}: a delta of 1 protects nobody.")
    else:
        warnings += about_order(found.order, something_lost=found.delta > 0)
    return PlanCost(epsilon, found.delta, order, tuple(warnings), accountants)


def plan_trajectory(
    steps: tuple[StepEvent, ...], delta: float, max_points: int, setting: PlanAssumptions
) -> Trajectory:
    """The epsilon of a plan after each of its steps, in the order of its events.

    Args:
        steps: the plan, at least one event.
        delta: in [1e-30, 0.5).
        max_points: at least 1.
        setting: what holds for all of it.

    Returns:
        At most so many points, the last one after the last step: valid for a plan that is fixed in advance.

    Raises:
        UnsupportedEventError: an event has no sound bound under the relation.
    """
    curves = {event: event_curve(event, setting.relation, GRID_VERSION) for event in {step.event for step in steps}}
    parts = [(curves[step.event], step.count) for step in steps]
    spend(POINT * min(max_points, sum(step.count for step in steps)))
    points = epsilon_trajectory(parts, delta, max_points)
    total = sum((curve.times(count) for curve, count in parts), zero_curve())
    last = epsilon_of_curve(orders(GRID_VERSION), total, delta)
    warnings = setting.warnings([step.event for step in steps], delta) + about_epsilon(last, total, delta)
    return Trajectory(tuple(points), points[-1].step, delta, tuple(warnings))


def _unsampled(
    steps: tuple[StepEvent, ...],
    setting: PlanAssumptions,
    zcdp: Callable[[ZcdpBound], float],
    exact: Callable[[ZcdpBound], float],
) -> list[AccountantReading]:
    """What may be said of a plan in which nothing is sampled."""
    plan = total_concentration(((step.event, step.count) for step in steps), setting.relation)
    if plan is None:
        return []
    found = [AccountantReading("zcdp", zcdp(plan), None, ZCDP)]
    if plan.is_gaussian:
        found.append(AccountantReading("analytic_gaussian", exact(plan), None, GAUSSIAN))
    return found
