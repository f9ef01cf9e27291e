"""The longest beginning of a sequence of mechanisms that a limit allows."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import exp, expm1, fsum, inf, log, log1p, sqrt
from operator import mul
from typing import Final

import numpy as np

from app.accounting.calibration.monotone_search import root, smallest_fitting
from app.accounting.curves import Floats
from app.accounting.pld.connect_the_dots import spread
from app.accounting.pld.events import Directions
from app.accounting.pld.merging import dominating_classes
from app.accounting.pld.pairs import GaussianPair, Pair
from app.accounting.pld.plans import (
    FINE,
    FINEST,
    LARGEST_LOG,
    OVERFLOWING,
    approximate_plan_log_delta,
    plan_epsilon,
    plan_log_delta,
    root_with_slope,
)

MAX_COUNT: Final = 10**9
"""Maximum repetitions in an answer."""

SPARE: Final = 1e-6
"""Share of delta that a found number leaves, so that it fits when delta is computed elsewhere."""

FEW: Final = 1_000
"""Up to this many repetitions, of which each counts, are computed on the finest lattice."""

SMALLEST_EPSILON: Final = 1e-3
"""Epsilon for which the number that fits is guessed, at least."""

ROUGHLY, CLOSELY = 1e-3, 1e-9
"""Relative tolerances for guesses of the number that fits, without and with a lattice."""

SLOPE_WIDTH: Final = 0.1
"""Change of the logarithm of a number over which ln delta is taken for a line."""

ROUNDING: Final = 2.0**-50
"""Relative error allowed for a sum, a quotient or a logarithm."""


@dataclass(frozen=True, slots=True)
class Part:
    """Repetitions of what one step releases.

    Args:
        directions: pairs that dominate one repetition.
        count: repetitions.
        worst_loss: largest privacy loss of one repetition, in nats; infinite where no bound is known.
    """

    directions: Directions
    count: int
    worst_loss: float = inf


def longest_prefix(parts: Sequence[Part], epsilon: float, delta: float) -> int:
    """Find the largest number of repetitions, in the order of the parts, whose delta at epsilon is below `delta`.

    Args:
        parts: at least one; a count of MAX_COUNT counts as no end.
        epsilon: nats.
        delta: the result has a delta below it by a share of at least SPARE both ways, and the next number has not.
    """
    most = sum(part.count for part in parts)
    for prefixes in both_directions(parts):
        most = _Search(prefixes, epsilon, log(delta) - SPARE).longest(most)
    return most


def prefix_delta(parts: Sequence[Part], count: int, epsilon: float, delta: float) -> float:
    """Compute a delta at epsilon of the first repetitions, precise near `delta`."""
    return min(exp(max(_Search(each, epsilon, log(delta)).log_delta(count) for each in both_directions(parts))), 1.0)


def prefix_epsilon(parts: Sequence[Part], count: int, delta: float) -> float:
    """Compute an epsilon of the first repetitions at delta."""
    if not count:
        return 0.0
    both = both_directions(parts)
    plans = [each.composition(count) for each in both]
    found = max((plan_epsilon(each, delta) for each in plans if each), default=0.0)
    return min(found, pure_epsilon(both[0].worst_loss(count), delta))


def pure_epsilon(pure: float, delta: float) -> float:
    """Compute the epsilon at delta of whatever is `pure`-DP.

    Randomized response of this epsilon dominates it (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776).
    """
    missing = delta * (1 + exp(-pure))
    return max(0.0, (pure + log1p(-missing)) * (1 + ROUNDING)) if missing < 1 else 0.0


def pure_delta(pure: float, epsilon: float) -> float:
    """Compute the delta at epsilon of whatever is `pure`-DP, as `pure_epsilon` does."""
    return 0.0 if pure <= epsilon else -expm1(epsilon - pure) / (1 + exp(-pure)) * (1 + ROUNDING)


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """The beginnings of a sequence of k parts in one direction of neighbours.

    Args:
        pairs: n different ones.
        each: (k, n) counts in one repetition of a part.
        before: (k, n) counts in all parts before it.
        ends: (k,) repetitions up to the end of a part.
        worst: (k,) largest loss of one repetition of a part.
        endless: whether the last part has no end.
    """

    pairs: tuple[Pair, ...]
    each: Floats
    before: Floats
    ends: tuple[int, ...]
    worst: tuple[float, ...]
    endless: bool

    @classmethod
    def of(cls, parts: Sequence[tuple[Mapping[Pair, int], Part]]) -> "Prefixes":
        """Count the pairs of one direction of each part."""
        pairs = {pair: place for place, pair in enumerate(dict.fromkeys(pair for found, _ in parts for pair in found))}
        each = np.zeros((len(parts), len(pairs)))
        for row, (found, _) in zip(each, parts, strict=True):
            for pair, number in found.items():
                row[pairs[pair]] = number
        totals = each * np.array([[part.count] for _, part in parts], dtype=np.float64)
        ends = tuple(accumulate(part.count for _, part in parts))
        worst = tuple(part.worst_loss for _, part in parts)
        return cls(tuple(pairs), each, totals.cumsum(axis=0) - totals, ends, worst, parts[-1][1].count >= MAX_COUNT)

    def counts(self, count: int) -> Floats:
        """Count the pairs in the first repetitions; (n,)."""
        place, over = self._place(count)
        found: Floats = self.before[place] + self.each[place] * over
        return found

    def composition(self, count: int) -> Mapping[Pair, int]:
        """Compose the first repetitions; all Gaussians are one (Dong, Roth, Su 2022, arXiv 1905.02383, section 3)."""
        plan = {pair: int(number) for pair, number in zip(self.pairs, self.counts(count), strict=True) if number}
        gaussians = {pair.noise_multiplier: plan[pair] for pair in plan if isinstance(pair, GaussianPair)}
        if len(gaussians) == len(plan):
            return plan
        others = {pair: number for pair, number in plan.items() if not isinstance(pair, GaussianPair)}
        squares = fsum(number / noise**2 for noise, number in gaussians.items())
        return others | ({GaussianPair(1 / sqrt(squares)): 1} if squares else {})

    def worst_loss(self, count: int) -> float:
        """Sum the largest losses of the first repetitions, rounded up."""
        place, over = self._place(count)
        numbers = [end - self._begin(part) for part, end in enumerate(self.ends[:place])]
        return fsum(map(mul, [*numbers, over], self.worst)) * (1 + ROUNDING)

    def _place(self, count: int) -> tuple[int, int]:
        """Find the part in which a number ends, and the number within it."""
        count = count if self.endless else min(count, self.ends[-1])
        place = min(bisect_left(self.ends, count), len(self.ends) - 1)
        return place, count - self._begin(place)

    def _begin(self, place: int) -> int:
        return self.ends[place - 1] if place else 0


def both_directions(parts: Sequence[Part]) -> list[Prefixes]:
    """Take a sequence apart by direction; one if both are equal.

    Many pairs become fewer that dominate them.
    """
    removals = [part.directions.removal for part in parts]
    additions = [part.directions.addition for part in parts]
    found = []
    for side in [removals] if removals == additions else [removals, additions]:
        counts = Counter[Pair]()
        for pairs, part in zip(side, parts, strict=True):
            counts.update({pair: number * part.count for pair, number in pairs.items()})
        fewer = dominating_classes(counts, planned=True)
        merged = list[tuple[Mapping[Pair, int], Part]]()
        for pairs, part in zip(side, parts, strict=True):
            counted = Counter[Pair]()
            for pair, number in pairs.items():
                counted[fewer.get(pair, pair)] += number
            if merged and merged[-1][0] == counted and merged[-1][1].worst_loss == part.worst_loss:
                merged[-1] = counted, replace(part, count=merged[-1][1].count + part.count)
            else:
                merged.append((counted, part))
        found.append(Prefixes.of(merged))
    return found


@dataclass
class _Search:
    """The search for the longest beginning in one direction.

    Args:
        goal: ln delta.
    """

    prefixes: Prefixes
    epsilon: float
    goal: float
    _seen: dict[int, float] = field(default_factory=lambda: {0: -inf})

    def longest(self, last: int) -> int:
        """Find the largest number up to `last` that fits."""
        endless = self.prefixes.endless and last == self.prefixes.ends[-1]
        if not last or (not endless and self._fits(last)):
            return last
        near = self._near(last)
        first_too_many = smallest_fitting(lambda count: not self._fits(count), near + 1, 1, last)
        return last if first_too_many is None else first_too_many - 1

    def log_delta(self, count: int) -> float:
        """Compute ln delta of the first repetitions."""
        if count not in self._seen:
            pure = pure_delta(self.prefixes.worst_loss(count), self.epsilon)
            found = log(pure) if pure else -inf
            if found > self.goal:
                pairs = self.prefixes.composition(count)
                fineness = FINEST if count <= FEW else FINE
                bound = plan_log_delta(pairs, self.epsilon, exp(self.goal), fineness) if pairs else -inf
                found = min(found, bound)
            self._seen[count] = found
        return self._seen[count]

    def _fits(self, count: int) -> bool:
        return self.log_delta(count) <= self.goal

    def _near(self, last: int) -> int:
        """Guess the largest number that fits: by the variance, then by the saddle point, then on a lattice."""
        goal = self.goal

        def guessed(at: float) -> float:
            return goal - max(self._approximate(int(exp(at))), -LARGEST_LOG)

        def computed(at: float) -> float:
            return goal - max(self.log_delta(int(exp(at))), -LARGEST_LOG)

        bounds = (0.0, log(last))
        start = min(max(log(self._by_variance(last)), 0.0), bounds[1])
        about = root(guessed, start, bounds, ROUGHLY)
        slope = (guessed(about - SLOPE_WIDTH) - guessed(about)) / SLOPE_WIDTH
        return int(exp(root_with_slope(computed, about, bounds, slope, CLOSELY)))

    def _by_variance(self, last: int) -> int:
        """Find the largest number whose losses vary by no more than a quarter of epsilon."""
        negligible = OVERFLOWING * exp(self.goal)
        variances = np.array([spread(pair, negligible).deviation ** 2 for pair in self.prefixes.pairs])
        room = (max(self.epsilon, SMALLEST_EPSILON) / 4) ** 2
        return bisect_left(range(last), room, lo=1, key=lambda count: self.prefixes.counts(count) @ variances)

    def _approximate(self, count: int) -> float:
        """Guess ln delta of the first repetitions."""
        pairs = self.prefixes.composition(count)
        pure = pure_delta(self.prefixes.worst_loss(count), self.epsilon)
        if not pairs or not pure:
            return -inf
        return min(log(pure), approximate_plan_log_delta(pairs, self.epsilon, exp(self.goal)))
