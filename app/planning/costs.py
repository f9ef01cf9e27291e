"""Costs of a plan: epsilon for a delta, delta for an epsilon, and Laplace noise.

A plan is fixed in advance and has at least one event. UnsupportedEventError: an event has no sound bound under the
relation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from app.accounting.composed_releases import compose_releases
from app.accounting.conversion import delta_of_curve, epsilon_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent
from app.accounting.formulas.mechanisms import bound_of_tail, epsilon_of_laplace, laplace_rdp, scale_of_tail
from app.accounting.pld.accountant import pld_delta, pld_epsilon
from app.accounting.pricing_effort import bounded_apart
from app.accounting.zcdp import ZcdpBound, total_zcdp_bound
from app.ledger.governance.filter_weights import DECLARED_SHARE
from app.ledger.step_events import StepEvent, counts_of
from app.planning.assumptions import PlanAssumptions, about_order, about_size, if_planned, total_of
from app.planning.declared_plans import DeclaredPlan
from app.planning.renyi_limits import first_curve, required_delta, required_epsilon

PLAN_FILTER = (
    "The smallest limit of an account that declares all of this as planned: privacy loss distributions with "
    f"{DECLARED_SHARE:g} of delta, valid if noise, order and stopping are chosen while looking at earlier outputs."
)
RENYI_FILTER = (
    "The smallest limit of an account that declares no plan: up to nine Rényi orders, chosen by the first event, share "
    "delta."
)
RDP = (
    "The best of all orders by the improved conversion (Canonne, Kamath, Steinke 2020): what in-process accountants "
    "print, for plans fixed in advance."
)
PLD = (
    "Privacy loss distributions, rounded up (Doroshenko et al. 2022): usually the smallest, for plans fixed in "
    "advance; own deltas d compose to 1 - (1 - d)^n."
)
CLASSIC = "The best of all orders by the conversion of 2017 (Mironov), ln(1/delta) / (order - 1): older tools."
ZCDP = "xi + rho + 2 sqrt(rho ln(1/delta)) (Bun, Steinke 2016), for plans without sampling: zCDP monitors."
TEXTBOOK = (
    "The textbook's noise of one step, sqrt(2 ln(1.25/delta)) / epsilon, and the sum of epsilons (Dwork, Roth 2014): "
    "proven only while a step without sampling has an epsilon below 1."
)
BASIC = "The sum of the steps' exact epsilons, delta shared equally (Dwork et al. 2006)."
ADVANCED = "Advanced composition of the steps' exact epsilons (Dwork, Rothblum, Vadhan 2010)."
OPTIMAL = "The most that epsilon and delta of each step prove (Kairouz, Oh, Viswanath 2015)."
GAUSSIAN = "Exact for Gaussian noise without sampling (Balle, Wang 2018): no bound is smaller."


@dataclass(frozen=True, slots=True)
class AccountantReading:
    """Epsilon or delta by one method, the order at which it is smallest, and formula and source."""

    name: str
    value: float
    optimal_order: float | None
    note: str


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Cost of a plan, in nats, by all applicable methods; epsilon is infinite without a bound.

    Args:
        epsilon: as in-process accountants print it, by Rényi curves, for a plan fixed in advance.
        delta: of this epsilon.
        required: the smallest epsilon at this delta, or delta at this epsilon, of a limit under which an account admits
            all of it: declared as planned, or else without a plan. None for the delta at epsilon 0, which no limit has.
        optimal_order: at which `epsilon` is smallest.
        warnings: about the plan and the result.
        accountants: epsilons at this delta, or deltas at this epsilon.
    """

    epsilon: float
    delta: float
    required: float | None
    optimal_order: float | None
    warnings: tuple[str, ...]
    accountants: tuple[AccountantReading, ...] = ()


@dataclass(frozen=True, slots=True)
class LaplaceCost:
    """Laplace noise and the cost of its releases.

    Args:
        scale: b of the noise, in the data's unit.
        bound: of the absolute noise, kept with `probability`.
        noise_multiplier: scale over sensitivity, as in a `laplace` event.
        epsilon: of one release, pure.
        epsilon_basic: of all releases, pure: their sum.
        epsilon_rdp: of all releases at delta; None without a delta.
        optimal_order: of the Rényi bound; None without a delta or a bound.
    """

    scale: float
    bound: float
    probability: float
    noise_multiplier: float
    epsilon: float
    epsilon_basic: float
    epsilon_rdp: float | None
    optimal_order: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Laplace noise, given by either its scale b or a bound of the absolute noise.

    Args:
        probability: that the absolute noise is below the bound, in (0, 1).
        l1_sensitivity: maximum L1 distance between the outputs of two inputs.
    """

    probability: float
    l1_sensitivity: float
    scale: float | None = None
    bound: float | None = None


def plan_epsilon(steps: tuple[StepEvent, ...], delta: float, setting: PlanAssumptions) -> PlanCost:
    """Compute the epsilon of a plan at delta in [1e-30, 0.5), by every method."""
    curves = setting.curves(steps)
    total = total_of(steps, curves)
    found, warnings = setting.epsilon(steps, total, delta)
    classic = epsilon_of_curve(orders(GRID_VERSION), total, delta, "classic")
    order = None if found.epsilon == inf else found.order
    by_orders = required_epsilon(total, first_curve(steps, curves), delta, found.epsilon)
    declared, unplanned = _declared(steps, setting, curves, lambda plan: plan.required_epsilon(delta, found.epsilon))
    accountants = (
        *declared,
        AccountantReading("renyi_filter", by_orders, None, RENYI_FILTER),
        AccountantReading("rdp", found.epsilon, order, RDP),
        *pld_reading(steps, setting, delta),
        AccountantReading("rdp_classic", classic.epsilon, None if classic.epsilon == inf else classic.order, CLASSIC),
        *_unsampled(steps, setting, lambda plan: plan.epsilon(delta), lambda plan: plan.exact_epsilon(delta)),
        *_by_composition(steps, setting, delta),
    )
    required = min([by_orders, *(each.value for each in declared)])
    return PlanCost(found.epsilon, delta, required, order, (*warnings, *unplanned), accountants)


def plan_delta(steps: tuple[StepEvent, ...], epsilon: float, setting: PlanAssumptions) -> PlanCost:
    """Compute the smallest proven delta of a plan at epsilon in [0, 10000], by every method."""
    curves = setting.curves(steps)
    total = total_of(steps, curves)
    found = delta_of_curve(orders(GRID_VERSION), total, epsilon)
    classic = delta_of_curve(orders(GRID_VERSION), total, epsilon, "classic")
    order = found.order if found.delta < 1 else None
    limits, unplanned = _delta_limits(steps, setting, curves, epsilon, found.delta)
    accountants = (
        *limits,
        AccountantReading("rdp", found.delta, order, RDP),
        *_by_loss_distributions(steps, lambda events: pld_delta(events, setting.relation, epsilon)),
        AccountantReading("rdp_classic", classic.delta, classic.order if classic.delta < 1 else None, CLASSIC),
        *_unsampled(steps, setting, lambda plan: plan.delta(epsilon), lambda plan: plan.exact_delta(epsilon)),
    )
    warnings = setting.warnings(steps, found.delta) + about_size(epsilon)
    if found.delta >= 1:
        warnings.append(f"Nothing is proven at epsilon {epsilon:g}: a delta of 1 gives no protection.")
    else:
        warnings += about_order(found.order, something_lost=found.delta > 0)
    required = min((each.value for each in limits), default=None)
    return PlanCost(epsilon, found.delta, required, order, (*warnings, *unplanned), accountants)


def plan_laplace(noise: LaplaceNoise, releases: int, delta: float | None) -> LaplaceCost:
    """Compute the cost of releases about the same unit with Laplace noise in every coordinate.

    Without a delta there is no Rényi bound, only the pure epsilon.
    """
    if noise.scale is None:
        assert noise.bound is not None, "either the scale or the bound is given"
        scale, bound = scale_of_tail(noise.bound, noise.probability), noise.bound
    else:
        scale, bound = noise.scale, bound_of_tail(noise.scale, noise.probability)
    epsilon = epsilon_of_laplace(scale, noise.l1_sensitivity)
    basic = epsilon * releases
    by_rdp = order = None
    if delta is not None:
        grid = orders(GRID_VERSION)
        curve = RdpCurve.from_nats(laplace_rdp(scale / noise.l1_sensitivity, grid)).times(releases)
        found = epsilon_of_curve(grid, curve, delta)
        by_rdp, order = (found.epsilon, found.order) if found.epsilon < inf else (inf, None)
    return LaplaceCost(
        scale=scale,
        bound=bound,
        probability=noise.probability,
        noise_multiplier=scale / noise.l1_sensitivity,
        epsilon=epsilon,
        epsilon_basic=basic,
        epsilon_rdp=by_rdp,
        optimal_order=order,
        warnings=tuple(about_size(min(basic, inf if by_rdp is None else by_rdp))),
    )


def _declared(
    steps: tuple[StepEvent, ...],
    setting: PlanAssumptions,
    curves: Mapping[DpEvent, RdpCurve],
    required: Callable[[DeclaredPlan], float],
) -> tuple[list[AccountantReading], list[str]]:
    """Find the limit of an account that declares the plan; none, with a warning, where it cannot be declared."""
    found, warnings = if_planned(lambda: required(DeclaredPlan.of(steps, setting.relation, curves)))
    return [] if found is None else [AccountantReading("plan_filter", found, None, PLAN_FILTER)], warnings


def _delta_limits(
    steps: tuple[StepEvent, ...],
    setting: PlanAssumptions,
    curves: Mapping[DpEvent, RdpCurve],
    epsilon: float,
    fixed: float,
) -> tuple[list[AccountantReading], list[str]]:
    """Find the smallest deltas of limits with this epsilon; none at epsilon 0, which no limit has."""
    if not epsilon:
        return [], []
    by_orders = required_delta(total_of(steps, curves), first_curve(steps, curves), epsilon, fixed)
    declared, unplanned = _declared(steps, setting, curves, lambda plan: plan.required_delta(epsilon, fixed))
    return [*declared, AccountantReading("renyi_filter", by_orders, None, RENYI_FILTER)], unplanned


def pld_reading(steps: tuple[StepEvent, ...], setting: PlanAssumptions, delta: float) -> list[AccountantReading]:
    """Compute the epsilon of a plan by loss distributions; none where they are unknown or take too long."""
    return _by_loss_distributions(steps, lambda events: pld_epsilon(events, setting.relation, delta))


def _by_loss_distributions(
    steps: tuple[StepEvent, ...], found: Callable[[Mapping[DpEvent, int]], float]
) -> list[AccountantReading]:
    """Compute the reading by privacy loss distributions; none where they are unknown or take too long."""
    try:
        with bounded_apart():
            return [AccountantReading("pld", found(counts_of(steps)), None, PLD)]
    except (UnsupportedEventError, PlanTooExpensiveError):
        return []


def _by_composition(steps: tuple[StepEvent, ...], setting: PlanAssumptions, delta: float) -> list[AccountantReading]:
    """Compute the readings of textbooks, which are for equal steps."""
    counts = counts_of(steps)
    if len(counts) > 1:
        return []
    ((event, count),) = counts.items()
    found = compose_releases(event, count, delta, setting.relation)
    if found is None:
        return []
    return [
        AccountantReading("optimal_composition", found.optimal, None, OPTIMAL),
        AccountantReading("advanced_composition", found.advanced, None, ADVANCED),
        AccountantReading("basic_composition", found.basic, None, BASIC),
        AccountantReading("textbook", found.textbook, None, TEXTBOOK),
    ]


def _unsampled(
    steps: tuple[StepEvent, ...],
    setting: PlanAssumptions,
    zcdp: Callable[[ZcdpBound], float],
    exact: Callable[[ZcdpBound], float],
) -> list[AccountantReading]:
    """Compute the readings that require a plan without sampling."""
    plan = total_zcdp_bound(((step.event, step.count) for step in steps), setting.relation)
    if plan is None:
        return []
    found = [AccountantReading("zcdp", zcdp(plan), None, ZCDP)]
    if plan.is_gaussian:
        found.append(AccountantReading("analytic_gaussian", exact(plan), None, GAUSSIAN))
    return found
