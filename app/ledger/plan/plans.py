"""Plans of accounts: what a limit allows of their planned events, and how much of it is used (ADR 0038)."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import accumulate
from math import inf
from operator import add
from typing import Final

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.filter.filters import PlanBound
from app.ledger.plan.plan_filter import Coordinates, Workload, repeated, repetitions, workload_of
from app.ledger.step_events import MAX_COUNT, StepEvent

KNOTS: Final = 32
"""Numbers of steps at which a plan's epsilon is computed: it rises about as their root, by 3 % of the limit each."""


def bound_plan(workload: Workload, epsilon: float, share: float, delta: float, at_least: int = 0) -> PlanBound:
    """Find what a limit's epsilon, and a part of its delta, allow of a plan.

    Args:
        workload: the planned events.
        epsilon: of the limit, in nats.
        share: of the limit's delta, as it was chosen for the plan.
        delta: the plan's part.
        at_least: number of steps that are known to be allowed.
    """
    steps = max(workload.longest(epsilon, delta), at_least)
    places = _known_steps(steps) if steps else []
    # More steps never have a smaller epsilon, and all of them are within the limit; each number has errors of its own.
    found = [min(workload.epsilon(each, delta), epsilon) for each in reversed(places)]
    return PlanBound(share, delta, steps, tuple(accumulate(found, min))[::-1])


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

    def epsilon(self, used: Coordinates) -> float:
        """Compute an epsilon, at the plan's delta, of what is used; infinite if the limit does not allow it."""
        steps = self.workload.steps_for(used)
        if steps is None or steps > self.bound.steps:
            return inf
        return self.bound.epsilons[self._place(steps)] if steps else 0.0

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
        """Compute the used share of the steps that the limit allows; infinite if the plan does not cover it."""
        steps = self.workload.steps_for(used)
        return inf if steps is None else steps / self.bound.steps if self.bound.steps else inf if steps else 0.0

    def epsilons(self, used: Coordinates, cost: Coordinates) -> Callable[[int], float]:
        """Prepare to compute epsilon after repetitions of a charge."""
        known = (0, -1, 0.0)  # from one number of repetitions to another it is this; replaced whole, for other threads

        def epsilon(count: int) -> float:
            nonlocal known
            first, last, value = known
            if not first <= count <= last:
                now = repeated(used, cost, count)
                value = self.epsilon(now)
                known = (count, count + self._unchanged(now, cost), value)
            return value

        return epsilon

    def _unchanged(self, used: Coordinates, cost: Coordinates) -> int:
        """Count the repetitions of a charge that do not change epsilon."""
        steps = self.workload.steps_for(used)
        if steps is None or steps > self.bound.steps:
            return MAX_COUNT
        reached = self.workload.capacity(self.known_steps[self._place(steps)]) if steps else used
        return int(min(repetitions(reached, used, cost), MAX_COUNT))

    def usage_below(self, epsilon: float) -> Coordinates | None:
        """Find a usage up to which the plan's epsilon is below a value; None if there is none."""
        place = bisect_left(self.bound.epsilons, epsilon)
        return self.workload.capacity(self.known_steps[place - 1]) if place else None

    def _place(self, steps: int) -> int:
        """Find the place of the first number of steps with a known epsilon that is not smaller."""
        return bisect_left(self.known_steps, steps)

    @cached_property
    def known_steps(self) -> list[int]:
        """Numbers of steps with a known epsilon."""
        return _known_steps(self.bound.steps)


def _known_steps(steps: int) -> list[int]:
    """List the numbers of steps at which epsilon is known: (place / KNOTS)^2 of all, rounded up."""
    return sorted({-(-steps * place * place // KNOTS**2) for place in range(1, KNOTS + 1)})


CHECKED: Final = 4
"""Epsilons that are recomputed of every so many."""

ALIKE: Final = 1e-4
"""Relative difference of epsilons that were computed elsewhere."""


@lru_cache(maxsize=1024)
def is_allowed(items: tuple[StepEvent, ...], relation: NeighboringRelation, epsilon: float, bound: PlanBound) -> bool:
    """Check that a limit's epsilon and a part of its delta allow what is stored of a plan, and some of its epsilons."""
    plan, epsilons = plan_of(items, relation, bound), bound.epsilons
    if not bound.steps:
        return True
    if len(plan.known_steps) != len(epsilons) or list(epsilons) != sorted(epsilons) or epsilons[-1] > epsilon:
        return False
    if plan.workload.delta(bound.steps, epsilon, bound.delta) > bound.delta:
        return False
    return all(
        value == epsilon or abs(plan.workload.epsilon(steps, bound.delta) - value) <= ALIKE * value
        for steps, value in list(zip(plan.known_steps, epsilons, strict=True))[::CHECKED]
    )


@lru_cache(maxsize=4096)
def plan_of(items: tuple[StepEvent, ...], relation: NeighboringRelation, bound: PlanBound) -> Plan:
    """Get the plan of an account with these items."""
    return Plan(workload_of(items, relation), bound)
