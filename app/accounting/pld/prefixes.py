"""The longest beginning of a sequence of mechanisms that a limit allows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, expm1, inf, log, log1p
from typing import Final

from app.accounting.calibration.monotone_search import root, smallest_fitting
from app.accounting.pld.dots import spread
from app.accounting.pld.events import Directions, merged
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import CLOSE, LARGEST_LOG, OVERFLOWING, plan_epsilon, plan_log_delta

MAX_COUNT: Final = 10**9
"""Maximum repetitions in an answer."""

SPARE: Final = 1e-6
"""Share of delta that a found number leaves, so that it fits when delta is computed elsewhere."""

SMALLEST_EPSILON: Final = 1e-3
"""Epsilon for which the number that fits is guessed, at least."""

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
    for forward in (True, False):
        most = _Prefixes(parts, forward, epsilon, log(delta) - SPARE).longest(most)
    return most


def prefix_delta(parts: Sequence[Part], count: int, epsilon: float, delta: float) -> float:
    """Compute a delta at epsilon of the first repetitions, precise near `delta`."""
    goal = log(delta)
    return exp(max(_Prefixes(parts, forward, epsilon, goal).log_delta(count) for forward in (True, False)))


def prefix_epsilon(parts: Sequence[Part], count: int, delta: float) -> float:
    """Compute an epsilon of the first repetitions at delta."""
    if not count:
        return 0.0
    both = [_Prefixes(parts, forward, 0.0, log(delta)) for forward in (True, False)]
    pairs = [each.composition(count) for each in both]
    found = max((plan_epsilon(each, delta) for each in pairs if each), default=0.0)
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


@dataclass
class _Prefixes:
    """The beginnings of a sequence in one direction.

    Args:
        forward: whether the record is removed.
        goal: ln delta.
    """

    parts: Sequence[Part]
    forward: bool
    epsilon: float
    goal: float
    _seen: dict[int, float] = field(default_factory=lambda: {0: -inf})

    def longest(self, last: int) -> int:
        """Find the largest number up to `last` that fits."""
        ends = list(accumulate(part.count for part in self.parts))
        place, after = 0, next(place for place, end in enumerate(ends) if end >= last)
        endless = last == ends[-1] and self.parts[-1].count == MAX_COUNT
        if not endless and self._fits(last):
            return last
        while place < after:  # the part in which it ends
            middle = (place + after) // 2
            place, after = (middle + 1, after) if self._fits(ends[middle]) else (place, middle)
        before = ends[place - 1] if place else 0
        most = min(last, ends[place]) - before
        near = before + self._near(before, self.parts[place], most)
        first_too_many = smallest_fitting(lambda count: not self._fits(count), near + 1, before + 1, before + most)
        return before + most if first_too_many is None else first_too_many - 1

    def log_delta(self, count: int) -> float:
        """Compute ln delta of the first repetitions."""
        if count not in self._seen:
            pure = pure_delta(self.worst_loss(count), self.epsilon)
            found = log(pure) if pure else -inf
            if found > self.goal:
                pairs = self.composition(count)
                found = min(found, plan_log_delta(pairs, self.epsilon, exp(self.goal))) if pairs else -inf
            self._seen[count] = found
        return self._seen[count]

    def worst_loss(self, count: int) -> float:
        """Sum the largest losses of the first repetitions, rounded up."""
        return sum(number * part.worst_loss for number, part in self._first(count)) * (1 + ROUNDING)

    def composition(self, count: int) -> Mapping[Pair, int]:
        """Compose the first repetitions."""
        found = Counter[Pair]()
        for number, part in self._first(count):
            found.update({pair: each * number for pair, each in self._pairs(part).items()})
        return merged(found)

    def _pairs(self, part: Part) -> Mapping[Pair, int]:
        return part.directions.removal if self.forward else part.directions.addition

    def _first(self, count: int) -> list[tuple[int, Part]]:
        """Take the first repetitions of all parts."""
        found = []
        for part in self.parts:
            if count <= 0:
                break
            found.append((min(count, part.count), part))
            count -= part.count
        return found

    def _fits(self, count: int) -> bool:
        return self.log_delta(count) <= self.goal

    def _near(self, before: int, part: Part, most: int) -> int:
        """Guess how many repetitions of a part fit after those before it."""
        each, earlier = self._variance([(1, part)]), self._variance(self._first(before))
        room = (max(self.epsilon, SMALLEST_EPSILON) / 4) ** 2 - earlier
        if not each or most == 1:
            return most
        start = min(max(log(max(room, each) / each), 0.0), log(most))

        def falling(at: float) -> float:
            return self.goal - max(self.log_delta(before + int(exp(at))), -LARGEST_LOG)

        return int(exp(root(falling, start, (0.0, log(most)), CLOSE)))

    def _variance(self, parts: Sequence[tuple[int, Part]]) -> float:
        negligible = OVERFLOWING * exp(self.goal)
        return sum(
            number * each * spread(pair, negligible).deviation ** 2
            for number, part in parts
            for pair, each in self._pairs(part).items()
        )
