"""The best adversary against a plan filter, by exact dynamic programming over small games.

Every mechanism exchanges two outputs of ratio e^epsilon, and with probability `own` shows which of two neighbours it
saw. The adversary chooses the next mechanism after each output, among those that the rule admits, or stops. The value
of a game is the largest hockey-stick divergence, at the limit's epsilon, of all that it can see.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import exp, fsum, log

import numpy as np

from app.accounting.pld.domination import Mechanism
from app.accounting.pld.pairs import FinitePair
from app.ledger.plan_filter import Chains, Coordinates, repetitions

ORDERS = (3.0, 12.0)
EPSILONS = (0.2, 0.4, 0.7, 1.1, 1.6)


@dataclass(frozen=True)
class Kind:
    """A mechanism that the adversary may choose."""

    epsilon: float
    own: float = 0.0

    @cached_property
    def mechanism(self) -> Mechanism:
        """Its dominating pair, without its own delta."""
        pair = FinitePair.exchanged(self.epsilon)
        return Mechanism(pair, pair)

    def divergence(self, order: float) -> float:
        """Its Renyi divergence, without its own delta."""
        likely = 1 / (1 + exp(-self.epsilon))
        moment = likely * exp((order - 1) * self.epsilon) + (1 - likely) * exp(-(order - 1) * self.epsilon)
        return log(moment) / (order - 1)


@dataclass(frozen=True)
class Variants:
    """What a wrong rule does; none of it: the right one."""

    full_delta_everywhere: bool = False
    forgets_uncovered: bool = False
    own_deltas_of_covered_are_free: bool = False
    reserve_is_not_subtracted: bool = False
    counts_without_levels: bool = False
    covers_stronger: bool = False


@dataclass(frozen=True)
class Game:
    """A limit's epsilon, a plan with the delta that it takes, and what the rest of delta is for.

    Args:
        kinds: that the adversary may choose.
        plan: number of each kind in the plan.
        order_deltas: delta of each of ORDERS.
        reserve: delta for mechanisms' own deltas.
        rounds: the most that are played.
    """

    epsilon: float
    kinds: tuple[Kind, ...]
    plan: tuple[int, ...]
    order_deltas: tuple[float, float]
    reserve: float
    rounds: int
    variants: Variants = Variants()
    _values: dict[tuple[tuple[int, ...], float], float] = field(default_factory=dict, repr=False)
    _admitted: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def plan_delta(self) -> float:
        """The exact delta of the plan at the limit's epsilon."""
        losses = [kind.epsilon for kind, count in zip(self.kinds, self.plan, strict=True) for _ in range(count)]
        terms = []
        for signs in product((1, -1), repeat=len(losses)):
            loss = fsum(sign * each for sign, each in zip(signs, losses, strict=True))
            chance = np.prod([1 / (1 + exp(-sign * each)) for sign, each in zip(signs, losses, strict=True)])
            terms.append(float(chance) * max(0.0, -np.expm1(self.epsilon - loss)))
        return fsum(terms)

    @property
    def delta(self) -> float:
        """The limit's delta."""
        if self.variants.full_delta_everywhere:
            return self.plan_delta
        parts = fsum([self.plan_delta, *self.order_deltas])
        return parts if self.variants.reserve_is_not_subtracted else parts + self.reserve

    @cached_property
    def chains(self) -> Chains:
        """The plan's mechanisms."""
        return Chains.of(kind.mechanism for kind, count in zip(self.kinds, self.plan, strict=True) if count)

    @cached_property
    def capacity(self) -> Coordinates:
        """What the plan holds."""
        held = Counter[Mechanism]()
        for kind, count in zip(self.kinds, self.plan, strict=True):
            held[kind.mechanism] += count
        return self.chains.cost(+held)

    @cached_property
    def costs(self) -> tuple[Coordinates, ...]:
        """What each kind uses up."""
        found = []
        for kind in self.kinds:
            cost = self.chains.cost({kind.mechanism: 1})
            if cost[0] and self.variants.forgets_uncovered:
                cost = (0,) * len(cost)
            if cost[0] and self.variants.covers_stronger:
                cost = tuple(int(place >= 2) for place in range(len(cost)))
            if self.variants.counts_without_levels:
                cost = tuple(each if place <= 2 else 0 for place, each in enumerate(cost))
            found.append(cost)
        return tuple(found)

    @cached_property
    def divergences(self) -> tuple[tuple[float, ...], ...]:
        """The divergence of each kind at both orders."""
        return tuple(tuple(kind.divergence(order) for order in ORDERS) for kind in self.kinds)

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """The largest divergence at each order, by the conversion of Canonne, Kamath and Steinke."""
        full = self.variants.full_delta_everywhere
        return tuple(
            self.epsilon - log(1 - 1 / order) + log((self.delta if full else delta) * order) / (order - 1)
            for order, delta in zip(ORDERS, self.order_deltas, strict=True)
        )

    def admits(self, used: tuple[int, ...], new: int) -> bool:
        """Apply the rule: own deltas fit the reserve, and the plan or an order has room."""
        after = [count + (kind == new) for kind, count in enumerate(used)]
        covered = not self.costs[new][0] or self.variants.covers_stronger
        own = fsum(
            count * each.own
            for kind, (count, each) in enumerate(zip(after, self.kinds, strict=True))
            if not (self.variants.own_deltas_of_covered_are_free and not self.costs[kind][0])
        )
        if own > self.reserve:
            return False
        taken = self.used(used)
        if covered and self._is_admitted_by_plan(taken, new):
            return True
        return any(
            fsum(count * each[order] for count, each in zip(after, self.divergences, strict=True)) <= bound
            for order, bound in enumerate(self.bounds)
        )

    def used(self, used: Iterable[int]) -> Coordinates:
        """Count what was used of the plan."""
        total = [0] * len(self.capacity)
        for count, cost in zip(used, self.costs, strict=True):
            total = [taken + count * each for taken, each in zip(total, cost, strict=True)]
        return tuple(total)

    def _is_admitted_by_plan(self, taken: Coordinates, new: int) -> bool:
        if self.variants.forgets_uncovered and not any(self.costs[new]):
            return False  # it is for the orders to admit
        return repetitions(self.capacity, taken, self.costs[new]) >= 1

    def value(self) -> float:
        """Compute the largest divergence that an adversary reaches."""
        return self._value((0,) * len(self.kinds), 1.0)

    def _value(self, used: tuple[int, ...], ratio: float) -> float:
        """Compute the value per probability under P, where Q has `ratio` times as much."""
        key = (used, round(ratio, 12))
        known = self._values.get(key)
        if known is not None:
            return known
        best = max(0.0, 1 - exp(self.epsilon) * ratio)
        if ratio and sum(used) < self.rounds:
            for new in self._admitted_after(used):
                best = max(best, self._after(used, ratio, new))
        self._values[key] = best
        return best

    def _admitted_after(self, used: tuple[int, ...]) -> tuple[int, ...]:
        if used not in self._admitted:
            self._admitted[used] = tuple(kind for kind in range(len(self.kinds)) if self.admits(used, kind))
        return self._admitted[used]

    def _after(self, used: tuple[int, ...], ratio: float, new: int) -> float:
        """Average over the outputs of a mechanism; what it shows with its own delta is worth 1."""
        kind = self.kinds[new]
        following = tuple(count + (place == new) for place, count in enumerate(used))
        likely = 1 / (1 + exp(-kind.epsilon))
        shown = likely * self._value(following, ratio * exp(-kind.epsilon))
        shown += (1 - likely) * self._value(following, ratio * exp(kind.epsilon))
        return kind.own + (1 - kind.own) * shown


def draw(random: np.random.Generator, variants: Variants = Variants()) -> Game:
    """Draw a game whose plan, orders and reserve all matter."""
    chosen = sorted(float(each) for each in random.choice(EPSILONS, size=int(random.integers(2, 4)), replace=False))
    while True:
        plan = tuple(int(each) for each in random.integers(0, 3, size=len(chosen)))
        if sum(plan):
            break
    epsilon = float(random.uniform(0.4, 0.9)) * sum(count * each for count, each in zip(plan, chosen, strict=True))
    owns = [float(random.choice([0.0, 0.0, 0.3, 0.5])) for _ in chosen]
    plain = Game(epsilon, tuple(map(Kind, chosen)), plan, (1.0, 1.0), 0.0, 1)
    deltas = [plain.plan_delta * float(each) for each in 10 ** random.uniform(-1.5, 0.7, size=2)]
    reserve = plain.plan_delta * float(10 ** random.uniform(-2, 0.3))
    kinds = tuple(Kind(each, min(own * reserve, 0.3)) for each, own in zip(chosen, owns, strict=True))
    return Game(epsilon, kinds, plan, (deltas[0], deltas[1]), reserve, int(random.integers(4, 7)), variants)
