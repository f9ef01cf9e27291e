"""Accounts: the common base of populations, budgets and runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import EXHAUSTED, GRID_VERSION, RdpCurve, orders
from app.accounting.events import NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.filters import (
    FilterBounds,
    FilterKind,
    FilterWeights,
    Limit,
    adaptive_filter_bounds,
    adaptive_weights,
    declared_filter_bounds,
)
from app.ledger.parallel_exposure import ParallelExposure, held_of, value, without
from app.ledger.policies import Policy
from app.ledger.step_events import PricedStep, StepEvent, total_cost
from app.ledger.windows import ALWAYS, Window

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
        planned: the workload that adaptive weights are chosen for; empty: the first event charged.
        weights: frozen weights; None before the first charge, and for a declared filter.
        held: loss reserved by plans.
        version: number of changes of this account; the revisions count changes of its limit and policy.
        partitions_per_unit: number of its disjoint children that may hold data of one privacy unit; None: the children
            are not disjoint, and their losses add up.
        parts_lose_units: whether a replaced unit may leave its partition, and its replacement enter another.
        exposure: its loss as a function of a charge from the path's run; None: the loss grows by the charge.
        policy: the policy of this subtree, if any.
        organisation_policy: the organisation's policy, on populations, if any.
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
    filter: FilterKind
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

    @property
    def parts_that_count(self) -> int | None:
        """Number of partitions whose losses add up for one privacy unit; None without partitions.

        A replaced unit may leave its partitions, and its replacement enter others: twice as many (ADR 0017).
        """
        if self.partitions_per_unit is None:
            return None
        return self.partitions_per_unit * (2 if self.relation is NeighboringRelation.REPLACE_ONE else 1)

    @property
    def weights_frozen(self) -> bool:
        """Whether the admission rule can no longer change."""
        return self.filter is FilterKind.DECLARED or self.weights is not None

    def price(self, step: StepEvent) -> PricedStep:
        """Price a step event now, under this account's relation and grid."""
        return PricedStep(step, event_curve(step.event, self.relation, self.grid_version))

    def prepared_for(self, steps: Sequence[PricedStep]) -> Self:
        """Copy the account with the weights that these steps would freeze.

        The weights fit the planned workload, or else the first step with a nonzero cost: without weights nothing is
        charged.
        """
        if self.limit is None or self.weights is not None or self.filter is FilterKind.DECLARED:
            return self
        planned = total_cost([self.price(step) for step in self.planned]) if self.planned else None
        if planned is not None and not planned.is_zero:
            return self.with_workload(planned)
        first = next((step.curve for step in steps if not step.curve.is_zero), None)
        return self if first is None else self.with_workload(first)

    def with_workload(self, workload: RdpCurve) -> Self:
        """Copy the account with adaptive weights, unless it has or needs none."""
        if self.limit is None or self.weights_frozen:
            return self
        return replace(self, weights=adaptive_weights(self.limit, workload, self.grid_version))

    def bounds(self, own_delta: int) -> FilterBounds:
        """Get the filter bounds if mechanisms use `own_delta` (units of 2^-62) of delta.

        Without weights, the filter counts as declared.
        """
        assert self.limit is not None, "an account without a limit has no gate"
        if self.weights is None or self.filter is FilterKind.DECLARED:
            return declared_filter_bounds(self.limit, own_delta, self.grid_version)
        return adaptive_filter_bounds(self.limit, self.weights, self.grid_version)

    def fits(self, *new: RdpCurve) -> bool:
        """Check whether the account, with weights if it needs them, admits further curves."""
        if self.limit is None:
            return True
        own_delta = self.own_delta(*new)
        gate = self.bounds(own_delta)
        return own_delta <= gate.room and bool((self.headroom(gate, *new) >= 0).any())

    def repetitions(self, pending: Sequence[RdpCurve], curve: RdpCurve) -> int:
        """Count the repetitions of `curve` that fit after `pending`; negative if `pending` does not."""
        own_delta = self.own_delta(*pending)
        gate = self.bounds(own_delta)
        if own_delta > gate.room:
            return -1
        most = int((self.headroom(gate, *pending) // np.maximum(curve.values[gate.places], _ONE)).max())
        if most <= 0 or not curve.delta:
            return most
        # Own deltas of repetitions lower a declared filter's bounds for all of them: bisect for the largest count.
        fitting, most = 0, min(most, self.delta_left(gate, *pending) // curve.delta)
        while most > fitting:
            middle = (fitting + most + 1) // 2
            fitting, most = (middle, most) if self.fits(*pending, curve.times(middle)) else (fitting, middle - 1)
        return fitting

    def own_delta(self, *new: RdpCurve) -> int:
        """Sum the mechanisms' own deltas after further charges, in units of 2^-62."""
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
        room = {slope: gate.room - base.delta - slope * further for slope, base in self.exposure.total.items()}
        return -1 if room.pop(0, 0) < 0 else min(left // slope for slope, left in room.items())

    def grown_by(self, cost: RdpCurve) -> RdpCurve:
        """Compute the growth of the spent and held sum by a charge."""
        if self.exposure is None:
            return cost
        return without(value(self.exposure.holding(cost).total), self.spent + self.held)

    def charged(self, cost: RdpCurve) -> Self:
        """Copy the account after a charge."""
        # Hot path, once per account and step; dataclasses.replace takes five times as long.
        if self.exposure is not None:
            return self._moved(self.exposure.charged(cost))
        after = object.__new__(type(self))
        after.__dict__.update(self.__dict__, spent=self.spent + cost, version=self.version + 1)
        return after

    def settle_hold(self, cost: RdpCurve, held: RdpCurve) -> Self:
        """Copy the account after a charge from its holds, `held` remaining."""
        return replace(self, spent=self.spent + cost, held=held, version=self.version + 1)

    def with_hold(self, cost: RdpCurve) -> Self:
        """Copy the account with a further hold."""
        if self.exposure is None:
            return replace(self, held=self.held + cost, version=self.version + 1)
        return self._moved(self.exposure.holding(cost))

    def composed(self, spent: RdpCurve, total: RdpCurve) -> Self:
        """Copy the account with balances composed from its partitions."""
        return replace(self, spent=spent, held=held_of(spent, total), version=self.version + 1)

    def _moved(self, exposure: ParallelExposure) -> Self:
        return replace(self.composed(value(exposure.spent), value(exposure.total)), exposure=exposure)

    def epsilon(self, spent: RdpCurve | None = None) -> float:
        """Compute the filter's epsilon of `spent`, or of another curve, at the limit's delta."""
        curve = self.spent if spent is None else spent
        return 0.0 if curve.is_zero else self.bounds(curve.delta).epsilon(curve)

    def epsilon_declared(self, delta: float) -> float:
        """Compute epsilon like an in-process accountant, valid only for plans fixed in advance."""
        return epsilon_of_curve(orders(self.grid_version), self.spent, delta).epsilon


@cache
def zero_curve(grid_version: int = GRID_VERSION) -> RdpCurve:
    """Get the zero curve of a grid."""
    return RdpCurve.zero(len(orders(grid_version)))
