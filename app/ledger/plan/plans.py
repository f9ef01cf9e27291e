"""Plans of accounts: what a limit allows of their planned events, and how much of it is used (ADR 0038)."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil
from operator import add

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.exact_losses import quotient
from app.ledger.filter.filters import PlanBound
from app.ledger.plan.plan_filter import Coordinates, Workload, repetitions, workload_of
from app.ledger.step_events import MAX_COUNT, StepEvent


def bound_plan(workload: Workload, epsilon: float, share: float, delta: float, at_least: int = 0) -> PlanBound:
    """Find what a limit's epsilon, and a part of its delta, allow of a plan.

    Args:
        workload: the planned events.
        epsilon: of the limit, in nats.
        share: of the limit's delta, as it was chosen for the plan.
        delta: the plan's part.
        at_least: number of steps that are known to be allowed.
    """
    return PlanBound(share, delta, max(workload.longest(epsilon, delta), at_least))


class PlanState(StrEnum):
    """Whether a plan still admits charges: until it is used up, or an event that it does not cover was charged."""

    ACTIVE = "active"
    EXHAUSTED = "exhausted"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PlanItem:
    """Planned repetitions of an event: how many steps the limit allows, and how many of these are used.

    Args:
        count: as declared; None: without end. A schedule that is planned once has steps of its own.
    """

    event: DpEvent
    count: int | None
    steps: int
    steps_used: int


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """What is used of a plan: the fewest steps, from the first, that hold all charges.

    Args:
        steps: number that the limit allows.
        steps_used: by charges; all of them once the plan has ended.
        steps_reserved: by active reservations.
    """

    state: PlanState
    share: float
    delta: float
    steps: int
    steps_used: int
    steps_reserved: int
    items: tuple[PlanItem, ...]

    @property
    def steps_remaining(self) -> int:
        """Number of steps that are neither used nor reserved."""
        return self.steps - self.steps_used - self.steps_reserved


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan that was frozen before the first release, under the limit in force."""

    workload: Workload
    bound: PlanBound

    def __getstate__(self) -> dict[str, object]:
        """Pickle without what is computed once, which another thread may add meanwhile."""
        return {"workload": self.workload, "bound": self.bound}

    @cached_property
    def capacity(self) -> Coordinates:
        """What the limit allows to use."""
        return self.workload.capacity(self.bound.steps)

    def used_by(self, curve: RdpCurve, owner: str) -> Coordinates:
        """Get what a curve uses up of this plan of an account; a loss whose usage is not known is not covered."""
        return curve.used.get(owner) or (0 if curve.is_zero else 1, *(0 for _ in self.capacity[1:]))

    def repetitions(self, used: Coordinates, cost: Coordinates) -> float:
        """Count the repetitions of a charge that the plan covers after what is used; negative if that is not."""
        return repetitions(self.capacity, used, cost)

    def status(self, items: tuple[StepEvent, ...], spent: Coordinates, held: Coordinates) -> PlanStatus:
        """Describe what is used of the plan's items."""
        steps = self.bound.steps
        both = tuple(map(add, spent, held))
        used, taken = self._steps_used(spent), self._steps_used(both)
        state = PlanState.EXHAUSTED if taken == steps else PlanState.ACTIVE
        if self.workload.steps_for(both) is None:
            state = PlanState.ENDED
        found, begin = [], 0
        for item, number in zip(items, accumulate(each.count for each in items), strict=True):
            end = self.workload.steps_of(number)
            part = [max(0, min(each, end) - begin) for each in (steps, used)]
            found.append(PlanItem(item.event, None if item.count == MAX_COUNT else item.count, *part))
            begin = end
        return PlanStatus(state, self.bound.share, self.bound.delta, steps, used, taken - used, tuple(found))

    def _steps_used(self, used: Coordinates) -> int:
        needed = self.workload.steps_for(used)
        return self.bound.steps if needed is None else min(needed, self.bound.steps)

    def share(self, used: Coordinates) -> float:
        """Compute the used share of what the limit allows, the largest of its coordinates'; infinite without any."""
        return max(map(quotient, used, self.capacity))

    def usage_below(self, share: Fraction) -> Coordinates:
        """Find the largest usage of which less than a positive share is used."""
        return tuple([max(ceil(share * most) - 1, 0) for most in self.capacity])


@lru_cache(maxsize=1024)
def is_allowed(items: tuple[StepEvent, ...], relation: NeighboringRelation, epsilon: float, bound: PlanBound) -> bool:
    """Check that a limit's epsilon and a part of its delta allow what is stored of a plan."""
    if not bound.steps:
        return True
    workload = plan_of(items, relation, bound).workload
    return bound.steps <= workload.steps and workload.delta(bound.steps, epsilon, bound.delta) <= bound.delta


@lru_cache(maxsize=4096)
def plan_of(items: tuple[StepEvent, ...], relation: NeighboringRelation, bound: PlanBound) -> Plan:
    """Get the plan of an account with these items."""
    return Plan(workload_of(items, relation), bound)
