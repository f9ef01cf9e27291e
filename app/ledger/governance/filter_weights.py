"""Choose the weights of a filter for planned events, and again when its limit changes (ADR 0020, ADR 0038)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from app.accounting.curves import RdpCurve, orders
from app.accounting.events import NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import (
    FilterBounds,
    FilterWeights,
    PlanBound,
    filter_bounds,
    filter_weights,
    spread_beside,
    spread_delta,
)
from app.ledger.filter.limits import Limit
from app.ledger.governance.limit_changes import is_lowered
from app.ledger.plan.plan_filter import workload_of
from app.ledger.plan.plans import bound_plan
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent, first_steps, total_cost

DECLARED_SHARE: Final = 0.975
"""Share of delta of a plan that was declared: the orders keep 1.5 %, mechanisms' own deltas 1 %. Of a hundred steps, at
most one is lost to that (benchmarks/plans.py)."""

DEFAULT_SHARE: Final = 0.55
"""Share of delta of the plan that a run's default event is: staying with it and leaving it each cost the median run 6 %
of the steps that one of them could have (benchmarks/plans.py)."""

SAMPLE: Final = 1000
"""Repetitions of an event without end, where only the ratio of its costs matters."""

SLACK: Final = 1.0 - 1e-12
"""Rounding margin, so that scaled parts and reserve sum to at most the new delta."""


def planned_weights(
    limit: Limit,
    items: tuple[StepEvent, ...],
    relation: NeighboringRelation,
    grid_version: int,
    share: float,
    bound: PlanBound | None = None,
) -> FilterWeights:
    """Choose the weights of a filter for planned events that lose something.

    Args:
        limit: of the account.
        items: the planned events; the last one may have no end.
        relation: of the account.
        grid_version: of the account.
        share: of the limit's delta, for the plan, if it then admits no fewer of these steps than the orders without it.
        bound: what was found before of the same; None: it is searched for.

    Raises:
        UnsupportedEventError: a plan cannot hold one of the events.
        PlanTooExpensiveError: it would take more work than a request may take.
    """
    spread = spread_delta(limit, _total(_sample(items), relation, grid_version), grid_version)
    found = bound or bound_plan(workload_of(items, relation), limit.value, share, share * spread)
    held = _total(first_steps(items, max(found.steps, 1)), relation, grid_version)
    beside = spread_beside(limit, held.delta)
    if 0 < beside < spread:  # what is allowed of the plan begins with more own delta than all of it has
        spread = beside
        found = bound or bound_plan(workload_of(items, relation), limit.value, share, share * spread)
        held = _total(first_steps(items, max(found.steps, 1)), relation, grid_version)
    weights = filter_weights(limit, held, grid_version, replace(found, delta=share * spread), spread)
    return weights if bound else _better(limit, weights, items, relation, grid_version)


def _better(
    limit: Limit, planned: FilterWeights, items: Sequence[StepEvent], relation: NeighboringRelation, grid_version: int
) -> FilterWeights:
    """Choose weights without a plan if they admit more of the planned steps: a pair may lose more than its curve."""
    assert planned.plan is not None, "it was found"
    steps = [PricedStep(each, event_curve(each.event, relation, grid_version)) for each in items]
    without = filter_weights(limit, _total(_sample(items), relation, grid_version), grid_version)
    steps_of = workload_of(tuple(items), relation).steps_of
    with_it, without_it = (
        steps_of(_admitted(filter_bounds(limit, weights, grid_version), steps, grid_version))
        for weights in (planned, without)
    )
    by_plan = max(with_it, planned.plan.steps)
    if without_it != by_plan or not planned.plan.steps:
        return without if without_it > by_plan else planned
    # All of it fits in both ways, so that what is left for more decides.
    by_orders = filter_bounds(limit, without, grid_version).limit_needed(total_cost(steps))
    return without if by_orders < workload_of(tuple(items), relation).epsilon(by_plan, planned.plan.delta) else planned


def _admitted(bounds: FilterBounds, steps: Sequence[PricedStep], grid_version: int) -> int:
    """Count the steps, from the first, that the orders of a filter admit."""
    spent, admitted = RdpCurve.zero(len(orders(grid_version))), 0
    for priced in steps:
        most = bounds.repetitions(spent, priced.curve)
        if most < priced.step.count:
            return admitted + max(most, 0)
        admitted += priced.step.count
        spent = spent + priced.cost
    return admitted


@dataclass(frozen=True, slots=True)
class Tuning:
    """What an account's weights under another limit depend on.

    Args:
        untouched: whether nothing was charged or is reserved.
    """

    weights: FilterWeights | None
    limit: Limit
    items: tuple[StepEvent, ...]
    relation: NeighboringRelation
    grid_version: int
    untouched: bool

    @classmethod
    def of(cls, account: Account) -> Self:
        """Take them from an account with a limit."""
        assert account.limit is not None, "only a limit can be changed"
        rule = (account.relation, account.grid_version)
        return cls(account.weights, account.limit, account.planned, *rule, account.is_untouched)


def weights_under(before: Tuning, limit: Limit, bound: PlanBound | None = None) -> FilterWeights | None:
    """Choose an account's weights under another limit: with the same orders and shares, or anew for an untouched plan.

    An untouched account without a plan is tuned to its registered runs instead, which may admit more. `bound` is what
    the limit is known to allow of the plan; None: it is searched for.

    Raises:
        PlanTooExpensiveError: it would take more work than a request may take.
    """
    weights = before.weights
    if limit.is_exact:
        return None
    if before.untouched and before.items:
        rule = (before.relation, before.grid_version)
        plan = None if weights is None else weights.plan
        share = _undeclared_share(before.items) if plan is None else plan.share
        return planned_weights(limit, before.items, *rule, share, bound)
    if weights is None:
        return None
    scaled = rescale_weights(weights, before.limit, limit)
    if scaled.plan is None:
        return scaled
    if bound is not None:
        return replace(scaled, plan=replace(bound, delta=scaled.plan.delta))
    known = 0 if is_lowered(before.limit, limit) else scaled.plan.steps
    workload = workload_of(before.items, before.relation)
    bound = bound_plan(workload, limit.value, scaled.plan.share, scaled.plan.delta, at_least=known)
    return replace(scaled, plan=bound)


def _undeclared_share(items: Sequence[StepEvent]) -> float:
    """Guess the share of a plan that was not taken: one event without end is mostly the default event of a run."""
    return DEFAULT_SHARE if [each.count for each in items] == [MAX_COUNT] else DECLARED_SHARE


def rescale_weights(weights: FilterWeights, before: Limit, after: Limit) -> FilterWeights:
    """Scale weights to another limit: same orders, same shares of delta; what it allows of a plan is left as it was.

    No share grows. If delta is raised, no part shrinks, so that the filter admits all that it admitted before.
    """
    if after.delta == before.delta:
        return weights
    factor = after.delta / before.delta
    parts = tuple(part * factor * SLACK for part in weights.parts)
    if after.delta > before.delta:
        parts = tuple(map(max, parts, weights.parts))
    orders = len(weights.deltas)
    plan = None if weights.plan is None else replace(weights.plan, delta=parts[orders + 1])
    changed = FilterWeights(weights.indices, parts[:orders], parts[orders], plan)
    assert changed.within(after.delta), "the parts of delta are within it"
    return changed


def _sample(items: Sequence[StepEvent]) -> list[StepEvent]:
    return [StepEvent(each.event, SAMPLE) if each.count == MAX_COUNT else each for each in items]


def _total(items: Sequence[StepEvent], relation: NeighboringRelation, grid_version: int) -> RdpCurve:
    return total_cost([PricedStep(each, event_curve(each.event, relation, grid_version)) for each in items])
