"""Accounts: what a population, a budget and a run have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.orders import GRID_VERSION, orders
from app.accounting.rdp import event_curve
from app.ledger.errors import DeltaTooLargeError, InvalidInputError, LimitTooSmallError
from app.ledger.filter_bounds import FilterBounds, bounds_of
from app.ledger.filters import (
    FilterKind,
    FilterWeights,
    Limit,
    adaptive_weights,
    smallest_useful_epsilon,
)
from app.ledger.parallel_exposure import ParallelExposure, held_of, value, without
from app.ledger.policies import Policy
from app.ledger.windows import ALWAYS, Window

MAX_DEPTH = 8
"""How many budgets may lie between a population and a run."""


class AccountKind(StrEnum):
    """The three kinds of account."""

    POPULATION = "population"
    BUDGET = "budget"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """`count` repetitions of one DpEvent.

    Args:
        event: what the mechanism does to the data, once.
        count: how often, in [1, 1e9].

    Raises:
        InvalidInputError: the count is outside its range.
    """

    event: DpEvent
    count: int

    def __post_init__(self) -> None:
        """Refuse a count that charges nothing or overflows."""
        if not 1 <= self.count <= 1_000_000_000:  # noqa: PLR2004 - the range is documented above
            raise InvalidInputError(f"count must be in [1, 1000000000], not {self.count}.")


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step event and what one repetition of it costs.

    A price is computed once and then kept with the event: floats may differ in their last bit between processors
    and library versions, and a ledger that recomputed its prices could no longer replay its balances (ADR 0004).

    Args:
        step: what is charged.
        curve: of one repetition, under the population's relation and the account's grid.
    """

    step: StepEvent
    curve: RdpCurve

    @property
    def cost(self) -> RdpCurve:
        """The curve of all repetitions, exact."""
        return self.curve.times(self.step.count)


@dataclass(frozen=True)
class Account:
    """A limit, a spent curve and a held curve, somewhere in the tree beneath a population.

    Args:
        id: with its type prefix.
        kind: population, budget or run.
        parent_id: the account above; None for a population.
        population_id: the root of the tree.
        name: as given by its owner.
        path: names from the population down, joined by "/".
        depth: 0 for a population.
        relation: the population's neighboring relation.
        limit: None only for a run that relies on its ancestors' limits.
        filter: how the limit is enforced.
        planned: the workload that adaptive weights are chosen for; empty: the first event charged.
        weights: frozen weights; None before the first charge, and always for a declared filter.
        spent: units of 2^-44 nats over the grid.
        held: as `spent`, set aside by reservations.
        grid_version: the grid of both curves.
        version: counts the changes of this account.
        limit_revision: counts the changes of its limit.
        partitions_per_unit: in how many of its children, which are disjoint parts, a privacy unit may lie; None: they
            are no parts, and what they spend adds up.
        parts_lose_units: whether a unit that is replaced may leave its part, and its replacement enter another.
        window: when something may be charged to it.
        exposure: how it grows with a charge from the place beneath it that is looked at; None: by the charge itself.
        policy: what was set for it and all beneath it; None: nothing.
        house_policy: the organisation's, which each of its populations has; None: nothing.
        policy_revision: counts the changes of its own policy.
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
    house_policy: Policy | None = None
    policy_revision: int = 0

    @property
    def parts_that_count(self) -> int | None:
        """How many of its parts may have lost something about one privacy unit; None: it has no parts.

        A unit that is replaced may leave its parts, and its replacement enter others: twice as many (ADR 0017).
        """
        if self.partitions_per_unit is None:
            return None
        return self.partitions_per_unit * (2 if self.relation is NeighboringRelation.REPLACE_ONE else 1)

    @property
    def weights_frozen(self) -> bool:
        """Whether the rule of admission can no longer change."""
        return self.filter is FilterKind.DECLARED or self.weights is not None

    def price(self, step: StepEvent) -> PricedStep:
        """A step event at the price that is computed now, under this account's relation and grid."""
        return PricedStep(step, event_curve(step.event, self.relation, self.grid_version))

    def prepared_for(self, steps: Sequence[PricedStep]) -> Self:
        """This account with the weights it will have if these steps become its first charge.

        They are those of what is planned, or else of the first step that costs anything: what costs nothing says
        nothing about what will be charged. An account that planned has them since it was opened, unless an early
        release opened it.
        """
        if self.limit is None or self.weights_frozen:
            return self
        planned = total_cost([self.price(step) for step in self.planned]) if self.planned else None
        if planned is not None and not planned.is_zero:
            return self.with_workload(planned)
        first = next((step.curve for step in steps if not step.curve.is_zero), None)
        return self if first is None else self.with_workload(first)

    def with_workload(self, workload: RdpCurve) -> Self:
        """This account with the weights of an adaptive filter for a workload, unless it has some or needs none."""
        if self.limit is None or self.weights_frozen:
            return self
        return replace(self, weights=adaptive_weights(self.limit, workload, self.grid_version))

    def bounds(self, own_delta: int) -> FilterBounds:
        """What this account lets through, if mechanisms take so much of delta (units of 2^-62) by their own."""
        assert self.limit is not None, "an account without a limit has no gate"
        return bounds_of(self.limit, self.filter, self.weights, self.grid_version, own_delta)

    def own_delta(self, *new: RdpCurve) -> int:
        """What mechanisms take of delta by a delta of their own, after some further charges: units of 2^-62."""
        if self.exposure is None:
            return self.spent.delta + self.held.delta + sum([cost.delta for cost in new])
        further = sum([cost.delta for cost in new])
        return max(base.delta + slope * further for slope, base in self.exposure.total.items())

    def headroom(self, gate: FilterBounds, *new: RdpCurve) -> NDArray[np.int64]:
        """How large a further charge may be at each place of the gate, after some others.

        Args:
            gate: of this account.
            new: what is charged before it.

        Returns:
            (n_places,) int64, units of 2^-44 nats; negative where the order can admit nothing more.
        """
        if self.exposure is None:
            return gate.left(self.spent, self.held, *new)
        least: NDArray[np.int64] | None = None
        for slope, base in self.exposure.total.items():
            room = gate.left(base, *(cost.times(slope) for cost in new if slope))
            if not slope:  # what the charge does not move must fit by itself
                room = np.where(room < 0, room, EXHAUSTED)
            elif slope > 1:
                room = room // slope
            least = room if least is None else np.minimum(least, room)
        assert least is not None, "an exposure has a line"
        return least

    def delta_left(self, gate: FilterBounds, *new: RdpCurve) -> int:
        """How large a further charge's own delta may be, after some others; negative: they take too much."""
        if self.exposure is None:
            return gate.room - self.own_delta(*new)
        further = sum([cost.delta for cost in new])
        room = {slope: gate.room - base.delta - slope * further for slope, base in self.exposure.total.items()}
        return -1 if room.pop(0, 0) < 0 else min(left // slope for slope, left in room.items())

    def grown_by(self, cost: RdpCurve) -> RdpCurve:
        """By how much a charge moves what is spent and held."""
        if self.exposure is None:
            return cost
        return without(value(self.exposure.holding(cost).total), self.spent + self.held)

    def charged(self, cost: RdpCurve) -> Self:
        """This account after a charge."""
        # This is on the hot path, once for every account of a path; dataclasses.replace takes five times as long.
        if self.exposure is not None:
            return self._moved(self.exposure.charged(cost))
        after = object.__new__(type(self))
        after.__dict__.update(self.__dict__, spent=self.spent + cost, version=self.version + 1)
        return after

    def settle_hold(self, cost: RdpCurve, held: RdpCurve) -> Self:
        """This account after a charge that was set aside for it; `held` is what is still set aside."""
        return replace(self, spent=self.spent + cost, held=held, version=self.version + 1)

    def with_hold(self, cost: RdpCurve) -> Self:
        """This account with so much more set aside."""
        if self.exposure is None:
            return replace(self, held=self.held + cost, version=self.version + 1)
        return self._moved(self.exposure.holding(cost))

    def composed(self, spent: RdpCurve, total: RdpCurve) -> Self:
        """This account with what its parts make of it."""
        return replace(self, spent=spent, held=held_of(spent, total), version=self.version + 1)

    def _moved(self, exposure: ParallelExposure) -> Self:
        return replace(self.composed(value(exposure.spent), value(exposure.total)), exposure=exposure)

    def epsilon(self, spent: RdpCurve | None = None) -> float:
        """Epsilon by this account's filter at its limit's delta, of what was spent or of another curve."""
        curve = self.spent if spent is None else spent
        return 0.0 if curve.is_zero else self.bounds(curve.delta).epsilon(curve)

    def epsilon_declared(self, delta: float) -> float:
        """Epsilon as in-process accountants compute it: valid only if all was fixed in advance."""
        return epsilon_of_curve(orders(self.grid_version), self.spent, delta).epsilon


def total_cost(steps: Sequence[PricedStep]) -> RdpCurve:
    """The sum of what step events cost.

    Args:
        steps: at least one, all over the same grid.

    Returns:
        The sum, exact.
    """
    # Equal events have one curve object: counts are added first, since sums of whole numbers may be taken in any order.
    counts: dict[int, int] = {}
    curves: dict[int, RdpCurve] = {}
    for priced in steps:
        place = id(priced.curve)
        counts[place] = counts.get(place, 0) + priced.step.count
        curves[place] = priced.curve
    costs = [curve.times(counts[place]) for place, curve in curves.items()]
    total = costs[0]
    for cost in costs[1:]:
        total = total + cost
    return total


@cache
def zero_curve(grid_version: int = GRID_VERSION) -> RdpCurve:
    """Nothing spent, over a grid."""
    return RdpCurve.zero(len(orders(grid_version)))


def check_limit(limit: Limit, kind: FilterKind, population_size: int | None, grid_version: int = GRID_VERSION) -> None:
    """Refuse a limit that protects nobody or admits nothing.

    Args:
        limit: of a new account.
        kind: its filter.
        population_size: number of privacy units, if known.
        grid_version: the grid of the account.

    Raises:
        DeltaTooLargeError: delta is 1/size or more.
        LimitTooSmallError: not even one step with the largest noise would fit.
    """
    if population_size is not None and limit.delta * population_size >= 1:
        raise DeltaTooLargeError(
            f"delta {limit.delta:g} is not below 1/{population_size} = {1 / population_size:.3g}: it would allow "
            f"one whole record of this population to be published. Choose a smaller delta.",
            delta=limit.delta,
            population_size=population_size,
        )
    smallest = smallest_useful_epsilon(limit.delta, kind, grid_version)
    if limit.epsilon <= smallest:
        raise LimitTooSmallError(
            f"With delta {limit.delta:g} no mechanism can be admitted below epsilon {smallest:.4g}; "
            f"the limit's epsilon is {limit.epsilon:g}. Choose a larger epsilon or a larger delta.",
            smallest_epsilon=smallest,
        )
