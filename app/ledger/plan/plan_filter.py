"""The plan filter: a workload that was fixed in advance, used up in any order (ADR 0038).

A plan is a multiset of mechanisms whose composition has a delta of at most the plan's at the limit's epsilon. Every
charge uses up mechanisms of the plan that dominate its own. While each charge has found some, whatever was chosen
adaptively, all that was released is dominated by what was used, and with what is left by the whole plan.

Mechanisms that dominate each other in turn are a chain, weakest first. A charge may use the weakest that dominates it,
or any after it. So charges find what they need iff at each place of each chain, the number of charges from there on is
at most the number of the plan's mechanisms from there on (Hall's theorem; a charge's choices are a tail of the chain).
These numbers are the coordinates: integers that only grow, whose sums do not depend on any order.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil, fsum, inf, nextafter, sqrt
from operator import ge
from typing import Final, TypeVar

from app.accounting.errors import UnsupportedEventError
from app.accounting.events import Decay, DpEvent, NeighboringRelation
from app.accounting.pld.domination import Mechanism, dominates, mechanisms
from app.accounting.pld.events import Directions
from app.accounting.pld.margins import is_near, largest_loss, stand_ins
from app.accounting.pld.pairs import GaussianPair, Pair
from app.accounting.pld.plans import COARSE, Fineness
from app.accounting.pld.prefix_epsilons import PlanReadings
from app.accounting.pld.prefixes import ROUNDING, Part, longest_prefix, prefix_delta
from app.ledger.step_events import StepEvent

K = TypeVar("K", DpEvent, Mechanism)

UNITS: Final = 2**16 * 277_200**2
"""Units of 1 / z^2, of Gaussian noise z on all data: compositions of it are Gaussian noise of the sum of 1 / z^2 (Dong,
Roth, Su 2022, arXiv 1905.02383, Corollary 3.3), in any parts. 1 / z^2 is a whole number of them for z = 1, 2 ... 12,
20, 25, 30, 50 or 100, so that nine steps of noise 30 take no more than one of noise 10."""

MOST_KNOWN: Final = 4096
"""Costs that a plan remembers: whoever is refused may have tried any number of events."""

Coordinates = tuple[int, ...]
"""Numbers used, or there to use: first that of charges that the plan does not cover, which is to stay 0; then 1 / z^2
of Gaussian noise on all data; then, for each mechanism of each chain, that of it and those after it."""


@dataclass(frozen=True)
class Chains:
    """The different mechanisms of a plan, in chains in which each dominates those before it.

    Args:
        chains: weakest first, without Gaussian noise on all data.
        gaussians: Gaussian noise on all data.
        items: for each mechanism as planned the one that stands for it, where it is another.
    """

    chains: tuple[tuple[Mechanism, ...], ...]
    gaussians: tuple[Mechanism, ...] = ()
    items: Mapping[Mechanism, Mechanism] = field(default_factory=dict)
    _costs: dict[Mechanism, Coordinates] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Pickle without what is remembered, to which another thread may add meanwhile."""
        return {"chains": self.chains, "gaussians": self.gaussians, "items": self.items, "_costs": {}}

    @classmethod
    def of(cls, mechanisms: Iterable[Mechanism], items: Mapping[Mechanism, Mechanism] | None = None) -> "Chains":
        """Arrange mechanisms in few chains: each goes to the end of the first that it dominates."""
        every = tuple(dict.fromkeys(mechanisms))
        different = [each for each in every if not is_gaussian(each)]
        weaker = {each: sum(dominates(each, other) for other in different) for each in different}
        chains: list[list[Mechanism]] = []
        for each in sorted(different, key=weaker.__getitem__):  # which dominates another dominates more
            chain = next((one for one in chains if dominates(each, one[-1])), None)
            if chain is None:
                chains.append([each])
            else:
                chain.append(each)
        return cls(tuple(map(tuple, chains)), tuple(filter(is_gaussian, every)), items or {})

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return 2 + sum(map(len, self.chains))

    def cost(self, mechanisms: Mapping[Mechanism, int]) -> Coordinates:
        """Count what mechanisms with counts use up; (size,)."""
        total = [0] * self.size
        for mechanism, count in mechanisms.items():
            for place, each in enumerate(self._cost(mechanism)):
                total[place] += each * count
        return tuple(total)

    def _cost(self, mechanism: Mechanism) -> Coordinates:
        known = self._costs.get(mechanism)
        if known is None:
            known = self._counted(mechanism)
            _remember(self._costs, mechanism, known)
        return known

    def _counted(self, mechanism: Mechanism) -> Coordinates:
        total, own = [0] * self.size, self._own(mechanism)
        if is_gaussian(mechanism):
            total[1] = _units(own or mechanism)
            return tuple(total)
        begin = 2
        for chain in self.chains:
            weakest = next((place for place, each in enumerate(chain) if dominates(each, mechanism)), None)
            if weakest is not None and (own is None or own in chain):  # another chain might dominate it, too
                total[begin : begin + weakest + 1] = [1] * (weakest + 1)
                return tuple(total)
            begin += len(chain)
        total[0] = 1
        return tuple(total)

    def _own(self, mechanism: Mechanism) -> Mechanism | None:
        """Find the mechanism of the plan that another one is, or is near; None if there is none."""
        known = self.items.get(mechanism)
        if known is not None:
            return known
        every = [*self.gaussians, *(each for chain in self.chains for each in chain)]
        return mechanism if mechanism in every else next((each for each in every if is_near(each, mechanism)), None)


def is_gaussian(mechanism: Mechanism) -> bool:
    """Check for Gaussian noise on all data."""
    return isinstance(mechanism.removal, GaussianPair) and mechanism.removal == mechanism.addition


def _units(mechanism: Mechanism) -> int:
    """Count the units of Gaussian noise on all data, rounded up."""
    assert isinstance(mechanism.removal, GaussianPair), "it is Gaussian"
    return ceil(UNITS / Fraction(mechanism.removal.noise_multiplier) ** 2)


def _in_whole_units(mechanism: Mechanism) -> Mechanism:
    """Take less Gaussian noise on all data, so that 1 / z^2 is a whole number of units.

    A plan's delta is found for such pairs, since it holds this number of units: one loud release may use them all up.
    """
    if not is_gaussian(mechanism):
        return mechanism
    units = _units(mechanism)
    noise = sqrt(UNITS / units)
    while Fraction(noise) ** 2 * units > UNITS:  # its loss may not be less than its units'
        noise = nextafter(noise, 0.0)
    pair = GaussianPair(noise)
    return Mechanism(pair, pair)


def _remember(known: dict[K, Coordinates], key: K, cost: Coordinates) -> None:
    """Remember a cost; forget all if there are too many, which other threads may do at the same time."""
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[key] = cost


def repetitions(capacity: Sequence[int], used: Sequence[int], cost: Sequence[int]) -> float:
    """Count the repetitions of a charge that a plan covers after what is used; negative if that is not covered."""
    most = inf
    for there, taken, each in zip(capacity, used, cost, strict=True):
        if taken > there:
            return -1
        if each:
            most = min(most, (there - taken) // each)
    return most


def repeated(used: Coordinates, cost: Coordinates, count: int) -> Coordinates:
    """Add repetitions of a charge to what is used."""
    return tuple([before + each * count for before, each in zip(used, cost, strict=True)])


@dataclass(frozen=True, eq=False)
class Workload:
    """The mechanisms of a plan in the order of its events, of which a limit allows a beginning.

    Args:
        parts: what one step releases, and the same as pairs.
        events: for each event its count, and the number of its parts: one, but for a schedule that is taken apart.
    """

    relation: NeighboringRelation
    chains: Chains
    parts: tuple[tuple[Counter[Mechanism], Part], ...]
    events: tuple[tuple[int, int], ...]
    _costs: dict[DpEvent, Coordinates] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Pickle without what is remembered, to which another thread may add meanwhile."""
        fixed = {name: getattr(self, name) for name in ("relation", "chains", "parts", "events")}
        return fixed | {"_costs": {}}

    @classmethod
    def of(cls, items: Sequence[StepEvent], relation: NeighboringRelation) -> "Workload":
        """Take events apart; a schedule is taken step by step.

        Raises:
            UnsupportedEventError: no pair is proven to dominate an event, or there are too many different mechanisms.
        """
        steps = [(step, mechanisms(step.event, relation)) for step in items]
        items_of = stand_ins((found, step.count) for step, found in steps)
        parts: list[tuple[Counter[Mechanism], Part]] = []
        events = []
        for step, found in steps:
            before = len(parts)
            fewer = Counter[Mechanism]()
            for each, count in found.items():
                fewer[items_of[each]] += count
            if isinstance(step.event, Decay) and step.count == 1:
                parts += [(Counter({each: 1}), _part({each: 1}, count)) for each, count in fewer.items()]
            else:
                parts.append((fewer, _part(fewer, step.count)))
            events.append((step.count, len(parts) - before))
        chains = Chains.of((each for one, _ in parts for each in one), items_of)
        return cls(relation, chains, tuple(parts), tuple(events))

    @cached_property
    def _ends(self) -> tuple[list[int], list[Coordinates]]:
        """Number of steps up to each part, and what they hold; from the beginning to the end."""
        steps, held = [0], [(0,) * self.chains.size]
        for found, part in self.parts:
            steps.append(steps[-1] + part.count)
            held.append(repeated(held[-1], self.chains.cost(found), part.count))
        return steps, held

    def capacity(self, steps: int) -> Coordinates:
        """Count what the first steps hold."""
        ends, held = self._ends
        part = bisect_left(ends, steps)
        if not part or part == len(ends):
            return held[min(part, len(ends) - 1)]
        return repeated(held[part - 1], self.chains.cost(self.parts[part - 1][0]), steps - ends[part - 1])

    def steps_for(self, used: Coordinates) -> int | None:
        """Count the fewest steps, from the first, that hold what is used; None if the whole plan does not."""
        ends, held = self._ends
        part = bisect_left(held, True, key=lambda each: all(map(ge, each, used)))  # noqa: FBT003 - a bool is searched
        if not part:
            return 0
        if part == len(held):
            return None
        cost = self.chains.cost(self.parts[part - 1][0])
        columns = zip(used, held[part - 1], cost, strict=True)
        return ends[part - 1] + max(-((before - taken) // each) for taken, before, each in columns if each)

    def cost(self, event: DpEvent) -> Coordinates:
        """Count what an event uses up; one for which no pair is proven is not covered."""
        known = self._costs.get(event)
        if known is None:
            try:
                known = self.chains.cost(mechanisms(event, self.relation))
            except UnsupportedEventError:
                known = (1, *(0 for _ in range(self.chains.size - 1)))
            _remember(self._costs, event, known)
        return known

    def covers(self, event: DpEvent) -> bool:
        """Check whether the whole plan covers an event once."""
        return all(map(ge, self.capacity(self.steps), self.cost(event)))

    @property
    def steps(self) -> int:
        """Number of steps; at least MAX_COUNT if it has no end."""
        return self._ends[0][-1]

    def steps_of(self, count: int) -> int:
        """Count the steps of the first `count` repetitions of its events; a schedule that is taken apart has many."""
        counts = [0, *accumulate(each for each, _ in self.events)]
        parts = [0, *accumulate(each for _, each in self.events)]
        event = bisect_left(counts, count)
        steps = self._ends[0]
        if counts[event] == count:
            return steps[parts[event]]
        return steps[parts[event - 1]] + count - counts[event - 1]

    def longest(self, epsilon: float, delta: float) -> int:
        """Find how many steps of the plan a limit allows, from the first."""
        return longest_prefix([part for _, part in self.parts], epsilon, delta)

    def delta(self, steps: int, epsilon: float, near: float) -> float:
        """Compute a delta of the first steps at epsilon, precise where it is near a value."""
        return prefix_delta([part for _, part in self.parts], steps, epsilon, near)

    def epsilon(self, steps: int, delta: float, fineness: Fineness = COARSE) -> float:
        """Compute an upper bound on the epsilon at delta of the first steps, for a chart or a page."""
        return self._readings.epsilon(steps, delta, fineness)

    @cached_property
    def _readings(self) -> PlanReadings:
        return PlanReadings([part for _, part in self.parts])


@lru_cache(maxsize=512)
def workload_of(items: tuple[StepEvent, ...], relation: NeighboringRelation) -> Workload:
    """Get the workload of planned events; raises as `Workload.of`."""
    return Workload.of(items, relation)


def _part(found: Mapping[Mechanism, int], count: int) -> Part:
    removal, addition = Counter[Pair](), Counter[Pair]()
    for mechanism, number in found.items():
        each = _in_whole_units(mechanism)
        removal[each.removal] += number
        addition[each.addition] += number
    worst = fsum(number * largest_loss(mechanism) for mechanism, number in found.items()) * (1 + ROUNDING)
    return Part(Directions(removal, addition), count, worst)
