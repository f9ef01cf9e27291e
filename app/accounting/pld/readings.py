"""Epsilons of the beginnings of one plan, for a chart or a page that shows many."""

from collections.abc import Sequence
from functools import lru_cache
from math import log
from typing import Final

from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.pld.composition import saddle
from app.accounting.pld.dots import LARGEST_LOSS, Lattice
from app.accounting.pld.plans import COARSE, Composition, gaussian_distance
from app.accounting.pld.prefixes import Part, both_directions, prefix_epsilon, pure_epsilon

STEP: Final = 2
"""Ratio of the numbers of repetitions for which lattices are made."""


class PlanReadings:
    """The epsilons of the first n repetitions of a plan at one delta.

    Numbers share the lattice of the next larger `most` / STEP^k, so most of them take a new tilt only. A result
    depends on the plan, delta, `most` and n alone, not on what was asked before.

    Args:
        parts: of the plan, at least one.
        delta: of the results.
        most: the largest n that is asked for; larger ones each have a lattice of their own.
    """

    def __init__(self, parts: Sequence[Part], delta: float, most: int) -> None:
        self._parts, self._delta, self._most = parts, delta, most
        self._directions = both_directions(parts)
        self._lattice = lru_cache(maxsize=None)(self._new_lattice)

    def epsilon(self, count: int) -> float:
        """Compute an upper bound on the epsilon of the first `count` repetitions, in nats."""
        if count <= 0:
            return 0.0
        if count > self._most:
            return prefix_epsilon(self._parts, count, self._delta)
        found = max(self._in_direction(place, count) for place in range(len(self._directions)))
        return min(found, pure_epsilon(self._directions[0].worst_loss(count), self._delta))

    def _in_direction(self, place: int, count: int) -> float:
        pairs = self._directions[place].composition(count)
        if not pairs:
            return 0.0
        mu = gaussian_distance(pairs)
        if mu is not None:
            return gaussian_epsilon(mu, self._delta)
        level = self._level(count)
        # What comes later in the plan may be far louder; its lattice would be too coarse before.
        is_alike = pairs.keys() == self._directions[place].composition(level).keys()
        lattice = self._lattice(place, level) if is_alike else None
        return Composition.of(pairs, self._delta).epsilon(log(self._delta), lattice)

    def _level(self, count: int) -> int:
        level = self._most
        while level // STEP >= count:
            level //= STEP
        return level

    def _new_lattice(self, place: int, level: int) -> Lattice:
        """Choose a lattice that suits the level and the smallest number that shares it."""
        return self._lattice_of(place, level).finer(self._lattice_of(place, level // STEP + 1))

    def _lattice_of(self, place: int, count: int) -> Lattice:
        whole = Composition.of(self._directions[place].composition(count), self._delta)
        epsilon = min(whole.epsilon(log(self._delta)), LARGEST_LOSS)
        return whole.lattice(saddle(whole.rough, whole.counts, epsilon), epsilon, COARSE)
