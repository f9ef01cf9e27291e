"""Accounts: the common base of populations, budgets and runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from math import inf, isinf
from operator import attrgetter
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import EXHAUSTED, GRID_VERSION, RdpCurve, Usage, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.exact_losses import quotient
from app.accounting.rdp import event_curve
from app.ledger.filter.filters import (
    UNLIMITED,
    UNTUNED,
    FilterBounds,
    FilterWeights,
    exact_bounds,
    exact_repetitions,
    filter_bounds,
    filter_weights,
)
from app.ledger.filter.limits import Limit
from app.ledger.filter.parallel_exposure import ParallelExposure, held_of, value, without
from app.ledger.plan.plans import Plan, PlanStatus, plan_of
from app.ledger.settings.allocation import Allocation
from app.ledger.settings.policy_rules import Policy
from app.ledger.settings.windows import ALWAYS, Window
from app.ledger.step_events import PricedStep, StepEvent

MOST_USED: Final = 1e9
"""Used share of a capacity that bounds nothing of a loss."""

MAX_DEPTH = 8
"""Maximum depth of budgets between a population and a run."""

_ONE: Final = np.array(1)
"""A zero-dimensional array: Python ints take numpy twice as long."""


class AccountKind(StrEnum):
    """The three kinds of account."""

    POPULATION = "population"
    BUDGET = "budget"
    RUN = "run"


@dataclass(frozen=True)
class Account:
    """A limit, a spent and a held curve at a node of a tree.

    Args:
        limit: None only for a run without a limit of its own.
        planned: the events of its plan, in order; the last one is repeated without end if its count is MAX_COUNT. The
            filter's weights are chosen for them; without them for the steps of its registered runs, or else for the
            first event charged.
        weights: None before the first charge, if nothing is planned and nothing known of registered runs.
        spent: with usage of its own plan, and of plans above that it is a part of.
        held: loss that is reserved.
        version: number of changes of this account; the revisions count changes of its limit and policy.
        partitions_per_unit: number of its disjoint children that may hold data of one privacy unit; None: the children
            are not disjoint, and their losses add up.
        parts_lose_units: whether a replaced unit may leave its partition, and its replacement enter another.
        exposure: its loss as a function of a charge from the path's run; None: the loss grows by the charge.
        policy: the policy of this subtree, if any.
        organisation_policy: the organisation's policy, on populations, if any.
        allocation: how it shares out its budget among reservations; None: it admits other steps, too.
    """

    id: str
    kind: AccountKind
    parent_id: str | None
    population_id: str
    name: str
    path: str
    depth: int
    relation: NeighboringRelation
    limit: Limit | None
    planned: tuple[StepEvent, ...]
    weights: FilterWeights | None
    spent: RdpCurve
    held: RdpCurve
    grid_version: int = GRID_VERSION
    version: int = 0
    limit_revision: int = 0
    partitions_per_unit: int | None = None
    parts_lose_units: bool = False
    window: Window = ALWAYS
    exposure: ParallelExposure | None = field(default=None, compare=False)
    policy: Policy | None = None
    organisation_policy: Policy | None = None
    policy_revision: int = 0
    allocation: Allocation | None = None
    allocation_revision: int = 0

    def __getstate__(self) -> dict[str, object]:
        """Pickle a copy: another thread may add the cached plan meanwhile."""
        return self.__dict__.copy()

    @property
    def parts_that_count(self) -> int | None:
        """Number of partitions whose losses add up for one privacy unit; None without partitions.

        A replaced unit may leave its partitions, and its replacement enter others: twice as many (ADR 0017).
        """
        return parts_that_count(self.partitions_per_unit, self.relation)

    @property
    def weights_frozen(self) -> bool:
        """Whether the admission rule can no longer change, unless the first charge leaves a plan.

        Without a plan, registrations may tune it while nothing is spent or reserved. A limit of one exact loss has
        nothing to tune.
        """
        if self.limit is not None and self.limit.is_exact:
            return True
        return self.weights is not None and (bool(self.planned) or not self.is_untouched)

    @property
    def has_filter(self) -> bool:
        """Whether its rule is chosen, maybe until a registration tunes it again."""
        return self.weights is not None or (self.limit is not None and self.limit.is_exact)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was charged or is reserved, so that the filter may be chosen anew."""
        return self.spent.is_zero and self.held.is_zero

    @cached_property
    def plan(self) -> Plan | None:
        """The plan that its limit allows; None: nothing was planned, or the first charge was of another kind."""
        if self.weights is None or self.weights.plan is None:
            return None
        return plan_of(self.planned, self.relation, self.weights.plan)

    @property
    def plan_status(self) -> PlanStatus | None:
        """What is used of its plan, if it has one."""
        plan = self.plan
        if plan is None:
            return None
        nothing = (0,) * len(plan.capacity)
        used, held = (curve.used.get(self.id, nothing) for curve in (self.spent, self.held))
        return plan.status(self.planned, used, held)

    def price(self, step: StepEvent) -> PricedStep:
        """Price a step event now, under this account's relation and grid."""
        return PricedStep(step, event_curve(step.event, self.relation, self.grid_version))

    def prepared_for(self, steps: Sequence[PricedStep], *, held: bool = False) -> Self:
        """Copy the account with the weights that these steps would freeze.

        They fit the first step with a nonzero cost: without weights nothing is charged. A plan that does not cover
        these steps ends before anything was released, so that the orders get its share of delta; not if the steps are
        only `held`, since they may never be released.
        """
        if self.limit is None or self.limit.is_exact:
            return self
        if self.weights is not None and (held or not self._leaves_plan(steps)):
            return self
        first = next((step.curve for step in steps if not step.curve.is_zero), None)
        if first is None:
            return self
        others = [
            curve.using({owner: each for owner, each in curve.used.items() if owner != self.id})
            for curve in (self.spent, self.held)
        ]
        weights = filter_weights(self.limit, first, self.grid_version)
        return replace(self, weights=weights, spent=others[0], held=others[1])

    def _leaves_plan(self, steps: Sequence[PricedStep]) -> bool:
        """Check whether first steps are of another kind than those planned."""
        plan = self.plan
        if plan is None or not self.is_untouched:
            return False
        return not all(plan.workload.covers(step.step.event) for step in steps)

    def bounds(self) -> FilterBounds:
        """Get the orders of its filter."""
        assert self.limit is not None, "an account without a limit has no filter"
        if self.limit.is_exact:
            return exact_bounds(self.limit)
        return UNTUNED if self.weights is None else filter_bounds(self.limit, self.weights, self.grid_version)

    def fits(self, *new: RdpCurve) -> bool:
        """Check whether the account, with weights if it needs them, admits further curves."""
        if self.limit is None:
            return True
        gate = self.bounds()
        if self.own_delta(*new) > gate.room:
            return False
        return bool((self.headroom(gate, *new) >= 0).any()) or self.exact_left(gate, *new) >= 0 or self.is_planned(*new)

    def repetitions(self, pending: Sequence[RdpCurve], curve: RdpCurve) -> int:
        """Count the repetitions of `curve` that fit after `pending`; negative if `pending` does not."""
        gate = self.bounds()
        if self.own_delta(*pending) > gate.room:
            return -1
        by_orders = int((self.headroom(gate, *pending) // np.maximum(curve.values[gate.places], _ONE)).max())
        exactly = exact_repetitions(self.exact_left(gate, *pending), gate.exact_loss(curve))
        most = max(by_orders, exactly, self.planned_repetitions(pending, curve))
        return most if most <= 0 or not curve.delta else min(most, self.delta_left(gate, *pending) // curve.delta)

    def is_planned(self, *new: RdpCurve) -> bool:
        """Check whether its plan covers all that was charged and is held, and further curves."""
        return self.planned_repetitions(new, None) >= 0

    def planned_repetitions(self, pending: Sequence[RdpCurve], curve: RdpCurve | None) -> int:
        """Count the repetitions of `curve` that its plan covers after `pending`; negative if that is not covered."""
        plan, owner = self.plan, self.id
        if plan is None:
            return -1
        cost = (0,) * len(plan.capacity) if curve is None else plan.used_by(curve, owner)
        further = [plan.used_by(each, owner) for each in pending]
        if self.exposure is None:
            lines = [(1, [plan.used_by(self.spent, owner), plan.used_by(self.held, owner)])]
        else:
            lines = [(slope, [plan.used_by(base, owner)]) for slope, base in self.exposure.total.items()]
        most = inf
        for slope, taken in lines:
            charges = further if slope == 1 else [tuple([slope * count for count in each]) for each in further]
            used = tuple(map(sum, zip(*taken, *charges, strict=True)))
            fitting = plan.repetitions(used, cost if slope == 1 else tuple([slope * count for count in cost]))
            if fitting < 0:
                return -1
            most = min(most, fitting)
        return UNLIMITED if isinf(most) else int(most)

    def own_delta(self, *new: RdpCurve) -> int:
        """Sum the mechanisms' own deltas after further charges, in units of 1e-18."""
        if self.exposure is None:
            return self.spent.delta + self.held.delta + sum([cost.delta for cost in new])
        further = sum([cost.delta for cost in new])
        return max(base.delta + slope * further for slope, base in self.exposure.total.items())

    def headroom(self, gate: FilterBounds, *new: RdpCurve) -> NDArray[np.int64]:
        """Compute the largest further charge at each order of the filter after `new`; (n_places,).

        Negative where an order is exceeded.
        """
        if self.exposure is None:
            return gate.left(self.spent, self.held, *new)
        least: NDArray[np.int64] | None = None
        for slope, base in self.exposure.total.items():
            room = gate.left(base, *(cost.times(slope) for cost in new if slope))
            if not slope:  # lines that the charge does not move must fit by themselves
                room = np.where(room < 0, room, EXHAUSTED)
            elif slope > 1:
                room = room // slope
            least = room if least is None else np.minimum(least, room)
        assert least is not None, "an exposure has a line"
        return least

    def delta_left(self, gate: FilterBounds, *new: RdpCurve) -> int:
        """Compute the largest own delta of a further charge; negative if exceeded."""
        if self.exposure is None:
            return gate.room - self.own_delta(*new)
        further = sum([cost.delta for cost in new])
        return self.exposure.left(gate.room, further, attrgetter("delta"))

    def exact_left(self, gate: FilterBounds, *new: RdpCurve) -> int:
        """Compute the largest exact loss of a further charge; negative if exceeded."""
        loss = gate.exact_loss
        further = sum(map(loss, new))
        if self.exposure is None:
            return gate.most - loss(self.spent) - loss(self.held) - further
        return self.exposure.left(gate.most, further, loss)

    def grown_by(self, cost: RdpCurve) -> RdpCurve:
        """Compute the growth of the spent and held sum by a charge."""
        if self.exposure is None:
            return cost
        return without(value(self.exposure.holding(cost).total), self.spent + self.held)

    def charged(self, cost: RdpCurve) -> Self:
        """Copy the account after a charge."""
        if self.exposure is not None:
            return self._moved(self.exposure.charged(cost))
        return replace(self, spent=self.spent + self.counting(cost), version=self.version + 1)

    def settle_hold(self, cost: RdpCurve, held: RdpCurve) -> Self:
        """Copy the account after a charge from its holds, `held` remaining."""
        return replace(self, spent=self.spent + self.counting(cost), held=self.counting(held), version=self.version + 1)

    def with_hold(self, cost: RdpCurve) -> Self:
        """Copy the account with a further hold."""
        if self.exposure is None:
            return replace(self, held=self.held + self.counting(cost), version=self.version + 1)
        return self._moved(self.exposure.holding(cost))

    def composed(self, spent: RdpCurve, total: RdpCurve) -> Self:
        """Copy the account with balances composed from its partitions."""
        spent, total = self.counting(spent), self.counting(total)
        return replace(self, spent=spent, held=held_of(spent, total), version=self.version + 1)

    def counting(self, cost: RdpCurve) -> RdpCurve:
        """Leave out the usage of plans that the account does not count."""
        if cost.used.keys() <= self.spent.used.keys():
            return cost
        return cost.using({owner: each for owner, each in cost.used.items() if owner in self.spent.used})

    def _moved(self, exposure: ParallelExposure) -> Self:
        return replace(self.composed(value(exposure.spent), value(exposure.total)), exposure=exposure)

    def used(self, loss: RdpCurve | None = None) -> float:
        """Compute the share of its capacity that `spent`, or another loss, takes; above 1 if it is exceeded.

        It is the least of spent_j / B_j over the orders j of its filter, of the exact loss over its maximum, and
        of the used share of the plan. So after n of N equal steps it is at most n / N. What is set aside for mechanisms
        with a delta of their own may run out first: its share counts if it is larger, unless events are planned, for
        which it was measured out. MOST_USED if no coordinate bounds the loss; 0 without a limit.
        """
        curve = self.spent if loss is None else loss
        if self.limit is None or curve.is_zero:
            return 0.0
        gate, plan = self.bounds(), self.plan
        found = gate.used(curve)
        if plan is not None and self.id in curve.used:
            found = min(found, plan.share(curve.used[self.id]))
        of_own_delta = quotient(curve.delta, gate.room)
        if of_own_delta > 1 or not self.planned:
            found = max(found, of_own_delta)
        return min(found, MOST_USED)

    def rdp_epsilon(self, delta: float) -> float:
        """Compute the epsilon at delta of what was spent, as if it had been fixed in advance, by its Rényi curve."""
        return epsilon_of_curve(orders(self.grid_version), self.spent, delta).epsilon


def parts_that_count(partitions_per_unit: int | None, relation: NeighboringRelation) -> int | None:
    """Compute `Account.parts_that_count`."""
    if partitions_per_unit is None:
        return None
    return partitions_per_unit * (2 if relation is NeighboringRelation.REPLACE_ONE else 1)


def usage_of(accounts: Iterable[Account], event: DpEvent) -> Usage:
    """Count what an event uses up of the plans of accounts."""
    return {account.id: account.plan.workload.cost(event) for account in accounts if account.plan is not None}


def with_usage(path: Sequence[Account], steps: Sequence[PricedStep]) -> Sequence[PricedStep]:
    """Add to the costs of steps what they use up of the plans of a path."""
    planned = [account for account in path if account.plan is not None]
    if not planned:
        return steps
    curves: dict[int, RdpCurve] = {}
    found = []
    for priced in steps:
        curve = curves.get(id(priced.step.event))
        if curve is None:
            curve = curves[id(priced.step.event)] = priced.curve.using(usage_of(planned, priced.step.event))
        found.append(priced._replace(curve=curve))
    return found


@cache
def zero_curve(grid_version: int = GRID_VERSION) -> RdpCurve:
    """Get the zero curve of a grid."""
    return RdpCurve.zero(len(orders(grid_version)))
