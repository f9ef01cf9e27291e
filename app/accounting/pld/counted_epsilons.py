"""Epsilons of many counts of the same events, from frequencies that similar counts share."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from math import floor, inf, log
from threading import Lock
from typing import Final, TypeAlias

import numpy as np

from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.pld.accountant import (
    event_losses,
    failure_of,
    fineness_of,
    left_of_delta,
    pld_epsilon,
    sum_of_losses,
)
from app.accounting.pld.merging import merged
from app.accounting.pld.octaves import Octave, OctaveEpsilons
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import gaussian_distance, plan_epsilon
from app.accounting.pld.prefixes import pure_epsilon
from app.accounting.pricing_effort import measured, use_effort_once

MOST_SHARED: Final = 32
"""Maximum pairs that share frequencies; more are computed one by one."""

MOST_KEPT: Final = 2**22
"""Maximum numbers that are kept of all octaves: 32 MB."""

OTHERS: Final = 512
"""What an octave takes besides, in numbers."""

LOG_2: Final = log(2)
"""Deltas between two powers of two share what is prepared for the smaller one."""


class CountedEpsilons:
    """The epsilons at delta of events that were fixed in advance, for many counts.

    They may be asked for in several threads.

    Args:
        relation: of neighbouring data.
        delta: positive.
    """

    def __init__(self, relation: NeighboringRelation, delta: float) -> None:
        self._relation = relation
        self._delta = delta

    def epsilon(self, counts: Mapping[DpEvent, int]) -> float:
        """Compute an epsilon of events with counts, in nats, as `pld_epsilon` and raising as it does.

        It is an upper bound, and at most about 1e-4 above that on the finest lattice, relative.
        """
        known = [(event_losses(event, self._relation), count) for event, count in counts.items() if count]
        left = left_of_delta(self._delta, failure_of((each.log_kept, count) for each, count in known))
        if left <= 0:
            return inf
        both = [each.directions for each, _ in known]
        sides = [[each.removal for each in both], [each.addition for each in both]]
        if sides[0] == sides[1]:
            del sides[1]
        found = 0.0
        for side in sides:
            plan = Counter[Pair]()
            for pairs, (_, count) in zip(side, known, strict=True):
                for pair, number in pairs.items():
                    plan[pair] += number * count
            if len(plan) > MOST_SHARED:
                return pld_epsilon(counts, self._relation, self._delta)
            if plan:
                found = max(found, _plan_epsilon(plan, left, found))
        return min(found, pure_epsilon(sum_of_losses((each.worst_loss, count) for each, count in known), left))


def _plan_epsilon(plan: Mapping[Pair, int], delta: float, proven: float) -> float:
    """Compute the epsilon of a plan of pairs with counts at delta, or take one that is proven to be no smaller."""
    mu = gaussian_distance(plan)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    pairs = _in_order(frozenset(plan))
    counts, goal = tuple(plan[pair] for pair in pairs), log(delta)
    for octave in dict.fromkeys([Octave.of(counts), Octave.alone(counts)]):
        epsilons = _octaves.get(pairs, octave, floor(goal / LOG_2) * LOG_2)
        found = epsilons.epsilon(np.array(counts, dtype=np.float64), goal, proven) if epsilons is not None else inf
        if found < inf:
            return found
    return plan_epsilon(merged(plan), delta, fineness_of(plan))


@lru_cache(maxsize=1024)
def _in_order(pairs: frozenset[Pair]) -> tuple[Pair, ...]:
    """Put pairs in an order of their own."""
    return tuple(sorted(pairs, key=repr))


_Key: TypeAlias = tuple[tuple[Pair, ...], Octave, float]
_Kept: TypeAlias = tuple[OctaveEpsilons | None, int]


class Octaves:
    """The octaves that were used last.

    Attributes:
        size: numbers that they take, at most MOST_KEPT.
    """

    def __init__(self) -> None:
        self._kept = OrderedDict[_Key, _Kept]()
        self.size = 0
        self._lock = Lock()

    def get(self, pairs: tuple[Pair, ...], octave: Octave, goal: float) -> OctaveEpsilons | None:
        """Get an octave, computed if it is not kept; None if a plan is better computed alone.

        Its work counts once for a request, whether it is kept or not.
        """
        key = pairs, octave, goal
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
        if kept is None:
            kept = measured(lambda: OctaveEpsilons.of(pairs, octave, goal))
            self._keep(key, kept)
        found, work = kept
        use_effort_once(key, work)
        return found

    def _keep(self, key: _Key, kept: _Kept) -> None:
        with self._lock:
            before = self._kept.pop(key, None)  # another thread computed it, too
            self._kept[key] = kept
            self.size += _size_of(kept) - (_size_of(before) if before else 0)
            while self.size > MOST_KEPT:
                _, dropped = self._kept.popitem(last=False)
                self.size -= _size_of(dropped)


def _size_of(kept: _Kept) -> int:
    """Count the numbers that are kept."""
    found, _ = kept
    return OTHERS + (found.frequencies.numbers_kept if found else 0)


_octaves = Octaves()
