"""Costs of a plan: epsilon for a delta, delta for an epsilon, the limit that it needs, and Laplace noise.

A plan is fixed in advance and has at least one event. UnsupportedEventError: an event has no sound bound under the
relation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.accounting.composed_releases import compose_releases
from app.accounting.conversion import delta_of_curve, epsilon_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.errors import InvalidEventError
from app.accounting.events import DpEvent, Laplace
from app.accounting.formulas.mechanisms import bound_of_tail, epsilon_of_laplace, laplace_rdp, scale_of_tail
from app.accounting.zcdp import ZcdpBound, total_zcdp_bound
from app.ledger.step_events import StepEvent, counts_of
from app.planning.assumptions import ByPlan, PlanAssumptions, about_size, if_planned, total_of
from app.planning.declared_plans import DeclaredPlan
from app.planning.renyi_limits import required_delta, required_epsilon
from app.planning.tightest import tightest_delta, tightest_epsilon

RDP = "The best Rényi order (Canonne, Kamath, Steinke 2020): Opacus' and dp_accounting's RDP accountants."
PLD = (
    "Privacy loss distributions, rounded up (Doroshenko et al. 2022): dp_accounting's PLD accountant, and Opacus' PRV."
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
class Comparison:
    """Epsilon or delta of a plan as another accountant computes it, and formula and source."""

    name: str
    value: float
    note: str


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Cost of a plan, in nats; epsilon is infinite without a bound.

    Args:
        epsilon: the smallest that is proven for a plan fixed in advance.
        delta: of this epsilon.
        limit_needed: the smallest epsilon at this delta, or delta at this epsilon, of a limit under which an account
            admits all of it. None for the delta at epsilon 0, which no limit has.
        warnings: about the plan and the result.
        comparisons: epsilons at this delta, or deltas at this epsilon, as other accountants compute them.
    """

    epsilon: float
    delta: float
    limit_needed: ByPlan[float] | None
    warnings: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True)
class LaplaceCost:
    """Laplace noise and the cost of its releases.

    Args:
        scale: b of the noise, in the data's unit.
        bound: of the absolute noise, kept with `probability`.
        noise_multiplier: scale over sensitivity, as in a `laplace` event.
        epsilon: of all releases, at delta if there is one.
        epsilon_per_release: of one release, pure.
    """

    scale: float
    bound: float
    probability: float
    noise_multiplier: float
    epsilon: float
    epsilon_per_release: float
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
    """Compute the epsilon of a plan at delta in [1e-30, 0.5), and the limit that it needs."""
    curves = setting.curves(steps)
    total = total_of(steps, curves)
    found = tightest_epsilon(counts_of(steps), total, delta, setting)
    near = found.rdp.epsilon
    without = required_epsilon(total, delta, near)
    limit, unplanned = _limit_needed(steps, setting, curves, without, lambda plan: plan.required_epsilon(delta, near))
    classic = epsilon_of_curve(orders(GRID_VERSION), total, delta, "classic")
    comparisons = (
        Comparison("rdp", found.rdp.epsilon, RDP),
        *_pld(found.pld),
        Comparison("rdp_classic", classic.epsilon, CLASSIC),
        *_unsampled(steps, setting, lambda plan: plan.epsilon(delta), lambda plan: plan.exact_epsilon(delta)),
        *_by_composition(steps, setting, delta),
    )
    warnings = (*setting.warnings(steps, delta), *found.warnings(total, delta), *unplanned)
    return PlanCost(found.value, delta, limit, warnings, comparisons)


def plan_delta(steps: tuple[StepEvent, ...], epsilon: float, setting: PlanAssumptions) -> PlanCost:
    """Compute the smallest proven delta of a plan at epsilon in [0, 10000], with the same beside it."""
    curves = setting.curves(steps)
    total = total_of(steps, curves)
    found = tightest_delta(counts_of(steps), total, epsilon, setting)
    limit: ByPlan[float] | None = None
    unplanned: list[str] = []
    if epsilon:  # no limit has an epsilon of 0
        near = found.rdp.delta
        without = required_delta(total, epsilon, near)
        limit, unplanned = _limit_needed(
            steps, setting, curves, without, lambda plan: plan.required_delta(epsilon, near)
        )
    comparisons = (
        Comparison("rdp", found.rdp.delta, RDP),
        *_pld(found.pld),
        Comparison("rdp_classic", delta_of_curve(orders(GRID_VERSION), total, epsilon, "classic").delta, CLASSIC),
        *_unsampled(steps, setting, lambda plan: plan.delta(epsilon), lambda plan: plan.exact_delta(epsilon)),
    )
    warnings = setting.warnings(steps, found.value) + about_size(epsilon) + found.warnings(epsilon)
    return PlanCost(epsilon, found.value, limit, (*warnings, *unplanned), comparisons)


def plan_laplace(noise: LaplaceNoise, releases: int, delta: float | None) -> LaplaceCost:
    """Compute the cost of releases about the same unit with Laplace noise in every coordinate."""
    if noise.scale is None:
        assert noise.bound is not None, "either the scale or the bound is given"
        scale, bound = scale_of_tail(noise.bound, noise.probability), noise.bound
    else:
        scale, bound = noise.scale, bound_of_tail(noise.scale, noise.probability)
    per_release = epsilon_of_laplace(scale, noise.l1_sensitivity)
    multiplier = scale / noise.l1_sensitivity
    pure = per_release * releases
    epsilon = pure if delta is None else min(pure, _laplace_epsilon(multiplier, releases, delta))
    return LaplaceCost(
        scale=scale,
        bound=bound,
        probability=noise.probability,
        noise_multiplier=multiplier,
        epsilon=epsilon,
        epsilon_per_release=per_release,
        warnings=tuple(about_size(epsilon)),
    )


def _laplace_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Compute the epsilon of Laplace noise at delta; of noise that no event may have, by its Rényi curve alone."""
    curve = RdpCurve.from_nats(laplace_rdp(noise_multiplier, orders(GRID_VERSION))).times(releases)
    try:
        counts: dict[DpEvent, int] = {Laplace(noise_multiplier): releases}
    except InvalidEventError:
        return epsilon_of_curve(orders(GRID_VERSION), curve, delta).epsilon
    return tightest_epsilon(counts, curve, delta, PlanAssumptions()).value


def _limit_needed(
    steps: tuple[StepEvent, ...],
    setting: PlanAssumptions,
    curves: Mapping[DpEvent, RdpCurve],
    without: float,
    required: Callable[[DeclaredPlan], float],
) -> tuple[ByPlan[float], list[str]]:
    """Find the limit of an account that declares the plan, beside that without; with a warning where it cannot."""
    found, warnings = if_planned(lambda: required(DeclaredPlan.of(steps, setting.relation, curves)))
    return ByPlan(without if found is None else min(found, without), without), warnings


def _pld(found: float | None) -> list[Comparison]:
    return [] if found is None else [Comparison("pld", found, PLD)]


def _by_composition(steps: tuple[StepEvent, ...], setting: PlanAssumptions, delta: float) -> list[Comparison]:
    """Compute the readings of textbooks, which are for equal steps."""
    counts = counts_of(steps)
    if len(counts) > 1:
        return []
    ((event, count),) = counts.items()
    found = compose_releases(event, count, delta, setting.relation)
    if found is None:
        return []
    return [
        Comparison("optimal_composition", found.optimal, OPTIMAL),
        Comparison("advanced_composition", found.advanced, ADVANCED),
        Comparison("basic_composition", found.basic, BASIC),
        Comparison("textbook", found.textbook, TEXTBOOK),
    ]


def _unsampled(
    steps: tuple[StepEvent, ...],
    setting: PlanAssumptions,
    zcdp: Callable[[ZcdpBound], float],
    exact: Callable[[ZcdpBound], float],
) -> list[Comparison]:
    """Compute the readings that require a plan without sampling."""
    plan = total_zcdp_bound(((step.event, step.count) for step in steps), setting.relation)
    if plan is None:
        return []
    found = [Comparison("zcdp", zcdp(plan), ZCDP)]
    if plan.is_gaussian:
        found.append(Comparison("analytic_gaussian", exact(plan), GAUSSIAN))
    return found
