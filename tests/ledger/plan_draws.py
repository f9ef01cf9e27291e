"""Random small games for the plan filter, in which its plan, orders, reserve, parts, holds and limits all matter."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, fsum, log
from typing import NamedTuple

import numpy as np

from app.accounting.pld.domination import Mechanism
from app.ledger.plan_filter import Chains, Coordinates

from .plan_games import Board, Kind, delta_both_ways
from .plan_rules import RIGHT, Cost, Rule, Terms, Variants

ORDERS = (3.0, 12.0)
NOTHING = 1e-30
"""The delta of an order that admits nothing."""

CLOSE = 1e-12

EPSILONS = (0.2, 0.4, 0.7, 1.1, 1.6)


class Shape(NamedTuple):
    """The size of games.

    Args:
        parts: number of parts.
        counting: number of them that count.
        kinds: number of kinds of mechanisms.
        rounds: most charges and holds at once.
        holds: most reservations.
    """

    parts: int
    counting: int
    kinds: int
    rounds: int
    holds: int


ALONE = (Shape(1, 1, 2, 6, 0), Shape(1, 1, 3, 5, 0))
HELD = (Shape(1, 1, 2, 4, 2), Shape(1, 1, 2, 5, 1))
INTERLEAVED = (Shape(2, 2, 2, 5, 0), Shape(2, 2, 2, 3, 1))
PARALLEL = (Shape(2, 1, 2, 5, 0), Shape(3, 2, 2, 4, 0), Shape(3, 1, 2, 4, 0), Shape(2, 1, 2, 3, 1))
SHAPES = (*ALONE, *HELD, *INTERLEAVED, *PARALLEL)


@dataclass(frozen=True)
class Game:
    """An account with a plan, and how its limit may change.

    Args:
        epsilon: of the named limit.
        kinds: that the adversary may choose.
        plan: kinds in the order of the plan, of which the named limit allows the first `steps`.
        order_deltas: delta of each of ORDERS, under the named limit.
        reserve: delta for mechanisms' own deltas, likewise.
        others: other limits, as factors of the named one's epsilon and delta, at most 1.
    """

    epsilon: float
    kinds: tuple[Kind, ...]
    plan: tuple[int, ...]
    steps: int
    order_deltas: tuple[float, float]
    reserve: float
    others: tuple[tuple[float, float], ...]
    shape: Shape

    @cached_property
    def plan_delta(self) -> float:
        """The plan's part of the named limit's delta: the exact delta of what is allowed."""
        return self.delta_of_steps(self.steps, self.epsilon)

    def delta_of_steps(self, steps: int, epsilon: float) -> float:
        """Compute the exact delta of the first steps of the plan."""
        return delta_both_ways(self.kinds, epsilon, self.counts(steps))

    def without_own_deltas(self) -> "Game":
        """Copy the game with mechanisms that have no delta of their own."""
        return replace(self, kinds=tuple(replace(kind, own=0.0) for kind in self.kinds))

    def counts(self, steps: int) -> tuple[int, ...]:
        """Count each kind in the first steps of the plan."""
        return tuple(self.plan[:steps].count(kind) for kind in range(len(self.kinds)))

    def delta(self, variants: Variants = RIGHT) -> float:
        """The named limit's delta."""
        if variants.full_delta_everywhere:
            return self.plan_delta
        reserve = 0.0 if variants.reserve_is_not_subtracted else self.reserve
        return fsum([self.plan_delta, *self.order_deltas, reserve])

    def excess(self, variants: Variants = RIGHT, *, moved: bool = False) -> float:
        """Compute by how much of the limit's delta the best adversary passes it; negative if within it."""
        return self.value(variants, moved=moved) / self.delta(variants) - 1

    def value(self, variants: Variants = RIGHT, *, moved: bool = False) -> float:
        """Compute the largest divergence that an adversary reaches.

        Args:
            variants: of the rule.
            moved: whether the unit leaves a part, and its replacement enters another.
        """
        kinds = (*self.kinds, *(kind.turned for kind in self.kinds)) if moved else self.kinds
        return self.rule(variants, moved=moved).value(Board(kinds), self.epsilon)

    def rule(self, variants: Variants = RIGHT, *, moved: bool = False) -> Rule:
        """Get the rule that the adversary plays against."""
        everything = variants.chooses_plan_later
        planned = self.kinds if everything else [self.kinds[kind] for kind in dict.fromkeys(self.plan)]
        chains = Chains.of(kind.mechanism for kind in planned)
        costs = tuple(self._cost(chains, kind, variants) for kind in self.kinds)
        plain = self._terms(chains, variants, 1.0, 1.0, 1.0)
        if variants.chooses_plan_later:
            others = [self._capacity(chains, each) for each in self._other_plans()]
            plain = Terms((*plain.plans, *others), plain.bounds, plain.reserve)
        limits = [plain, *(self._terms(chains, variants, *each, 1.0) for each in self.others)]
        if variants.shares_grow:  # lowered, keeping its parts, and raised again, with the same shares
            limits += [self._terms(chains, variants, 1.0, 1.0, 1 / delta) for _, delta in self.others if delta < 1]
        shape = self.shape
        return Rule(costs, tuple(limits), shape.parts, shape.counting, shape.rounds, shape.holds, moved, variants)

    def _terms(self, chains: Chains, variants: Variants, epsilon: float, delta: float, growth: float) -> Terms:
        """Get what a limit allows, which is a multiple of the named one, as are the parts of its delta."""
        part = delta * growth
        steps = self.steps
        if (epsilon, part) != (1.0, 1.0):
            goal = self.plan_delta * part
            lengths = range(len(self.plan) + 1)
            steps = max(each for each in lengths if self.delta_of_steps(each, self.epsilon * epsilon) <= goal)
        orders = [self.delta(variants) if variants.full_delta_everywhere else each * part for each in self.order_deltas]
        with_plan = 1 + self.plan_delta / fsum(self.order_deltas)
        return Terms(
            (self._capacity(chains, self.counts(steps)),),
            bounds_at(self.epsilon * epsilon, orders),
            self.reserve * part,
            bounds_at(self.epsilon * epsilon, [each * with_plan for each in orders]),
        )

    def _other_plans(self) -> list[tuple[int, ...]]:
        """Find other plans within the plan's delta: as many of each kind as fit, with and without one of the others."""
        found = []
        size = range(len(self.kinds))
        for kind in size:
            for beside in (None, *size):
                counts = [int(each == beside) for each in size]
                while (
                    delta_both_ways(self.kinds, self.epsilon, _more(counts, kind)) <= self.plan_delta
                    and sum(counts) < self.shape.rounds
                ):
                    counts = [*_more(counts, kind)]
                if delta_both_ways(self.kinds, self.epsilon, tuple(counts)) <= self.plan_delta:
                    found.append(tuple(counts))
        return found

    def _capacity(self, chains: Chains, counts: Sequence[int]) -> Coordinates:
        held = Counter[Mechanism]()
        for kind, count in zip(self.kinds, counts, strict=True):
            held[kind.mechanism] += count
        return chains.cost(+held)

    def _cost(self, chains: Chains, kind: Kind, variants: Variants) -> Cost:
        plan = chains.cost({kind.mechanism: 1})
        if plan[0] and variants.forgets_uncovered:
            plan = (0,) * len(plan)
        if plan[0] and variants.covers_stronger:
            plan = tuple(int(place >= 2) for place in range(len(plan)))
        if variants.counts_without_levels:
            plan = tuple(each if place <= 2 else 0 for place, each in enumerate(plan))
        return Cost(plan, tuple(kind.divergence(order) for order in ORDERS), kind.own)


def _more(counts: Sequence[int], kind: int) -> tuple[int, ...]:
    return tuple(count + (place == kind) for place, count in enumerate(counts))


def bounds_at(epsilon: float, deltas: Sequence[float]) -> tuple[float, ...]:
    """Compute the largest divergence at each order, by the conversion of Canonne, Kamath and Steinke."""
    return tuple(
        epsilon - log(1 - 1 / order) + log(delta * order) / (order - 1)
        for order, delta in zip(ORDERS, deltas, strict=True)
    )


def draw(random: np.random.Generator, shapes: Sequence[Shape] = SHAPES, *, limits: bool | None = None) -> Game:
    """Draw a game.

    Args:
        random: what is drawn from.
        shapes: of which it has one.
        limits: whether its limit may change; None: half of them.
    """
    shape = shapes[int(random.integers(len(shapes)))]
    chosen = sorted(float(each) for each in random.choice(EPSILONS, size=shape.kinds, replace=False))
    steps = int(random.integers(1, shape.kinds * 2 + 1))
    planned = random.choice(shape.kinds, size=int(random.integers(1, shape.kinds + 1)), replace=False)
    plan = tuple(int(each) for each in random.choice(planned, size=steps + 2))
    epsilon = float(random.uniform(0.4, 0.9)) * fsum(chosen[kind] for kind in plan[:steps])
    plain = Game(epsilon, tuple(map(Kind.exchanged, chosen)), plan, steps, (1.0, 1.0), 0.0, (), shape)
    deltas = [plain.plan_delta * float(each) for each in 10 ** random.uniform(-2, 0.7, size=2)]
    reserve = plain.plan_delta * float(10 ** random.uniform(-2, 0.3))
    owns = [min(float(random.choice([0.0, 0.0, 0.3, 0.5])) * reserve, 0.3) for _ in chosen]
    kinds = tuple(Kind.exchanged(each, own) for each, own in zip(chosen, owns, strict=True))
    changes = random.random() < 0.5 if limits is None else limits
    others = tuple(_lower(random) for _ in range(int(random.integers(1, 3)))) if changes else ()
    return Game(epsilon, kinds, plan, steps, (deltas[0], deltas[1]), reserve, others, shape)


def draw_plan_alone(random: np.random.Generator) -> Game:
    """Draw a game in which the plan has the whole delta."""
    game = draw(random, ALONE, limits=False).without_own_deltas()
    return replace(game, order_deltas=(NOTHING, NOTHING), reserve=0.0)


def draw_leaving(random: np.random.Generator) -> Game:
    """Draw a game with a plan of one kind, and another that uses up the best order, had it the plan's delta as well."""
    loss, steps = float(random.uniform(0.1, 1)), int(random.integers(1, 5))
    epsilon = loss * steps * float(random.uniform(0.3, 0.95))
    quiet = Kind.exchanged(loss)
    plan_delta = delta_both_ways([quiet], epsilon, (steps,))
    share = plan_delta * float(random.choice([0.03, 0.1, 0.3]))
    order = int(random.integers(2))
    deltas = (share, NOTHING) if order == 0 else (NOTHING, share)
    before = int(random.integers(1, steps + 1)) * quiet.divergence(ORDERS[order])
    left = bounds_at(epsilon, [plan_delta + share] * 2)[order] - before
    rare = epsilon + float(random.uniform(0.02, 1.5))

    def loud(chance: float) -> Kind:
        return Kind((exp(chance), exp(chance - rare)))

    low, high = -25.0, -1e-3
    while high - low > CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if loud(middle).divergence(ORDERS[order]) < left else (low, middle)
    return Game(epsilon, (quiet, loud(low)), (0,) * steps, steps, deltas, 0.0, (), Shape(1, 1, 2, steps + 1, 0))


def _lower(random: np.random.Generator) -> tuple[float, float]:
    """Draw a limit below the named one, in epsilon, in delta or in both."""
    epsilon, delta = float(random.uniform(0.3, 1)), float(10 ** random.uniform(-1, 0))
    return [(epsilon, 1.0), (1.0, delta), (epsilon, delta)][int(random.integers(3))]
