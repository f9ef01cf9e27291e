"""The delta of a plan of events, and the largest number of repetitions that a limit allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from typing import Final

from app.accounting.calibration.monotone_search import root, smallest_fitting
from app.accounting.pld.composition import Repeated, log_delta, period, saddle
from app.accounting.pld.dots import connect_the_dots, lattice, spread
from app.accounting.pld.pairs import Pair

FINE: Final = 16.0
"""Places of the lattice in one standard deviation of a loss."""

WIDEST: Final = 0.1
"""Widest cell times tilt."""

MAX_SIZE: Final = 2**20
"""Places in a period; a lattice that needs more is made coarser."""

MAX_COUNT: Final = 10**9
"""Maximum repetitions in an answer."""

SPARE: Final = 1e-6
"""Share of delta that a found number leaves, so that it fits when delta is computed elsewhere."""

CLOSE: Final = 1e-5
"""Tolerance of the logarithm of delta, from where numbers are tried one after the other."""

LARGEST_LOG: Final = 700.0
"""Smaller deltas count as exp of minus this."""

OVERFLOWING: Final = 1e-9
"""Share of delta that losses above the lattice may have."""


def plan_log_delta(plan: Mapping[Pair, int], epsilon: float, delta: float) -> float:
    """Compute an upper bound on ln delta at epsilon of a plan of pairs with counts, precise near `delta`."""
    total = sum(plan.values())
    negligible = OVERFLOWING * delta / total
    around = {pair: spread(pair, negligible) for pair in plan}
    deviation = sqrt(sum(plan[pair] * around[pair].deviation ** 2 for pair in plan) / total)
    spacing, widest = min(deviation / FINE, epsilon / 100), epsilon / 10
    while True:
        parts = [
            Repeated(connect_the_dots(pair, lattice(spacing, around[pair], widest), spacing), count)
            for pair, count in plan.items()
        ]
        found = saddle(parts, epsilon)
        needed = period(found) / MAX_SIZE
        if spacing >= needed and widest * found.tilt <= 2 * WIDEST:
            return log_delta(parts, epsilon)
        spacing, widest = max(spacing, 1.1 * needed), min(widest, WIDEST / found.tilt)


def largest_count(directions: Sequence[Pair], epsilon: float, delta: float) -> int:
    """Find the largest number of repetitions, up to MAX_COUNT, whose delta at epsilon is below `delta` both ways.

    Args:
        directions: the pair of one repetition in each direction.
        epsilon: nats.
        delta: the result has a delta below it by a share of at least SPARE, and the next number has not.
    """
    first, *others = (_Fits(pair, epsilon, log(delta) - SPARE) for pair in directions)
    count = first.largest(MAX_COUNT)
    for fits in others:
        if not fits(count):
            count = fits.largest(count)
    return count


@dataclass
class _Fits:
    """Which numbers of repetitions of a pair fit."""

    pair: Pair
    epsilon: float
    goal: float
    _seen: dict[int, float] = field(default_factory=lambda: {0: -inf})

    def __call__(self, count: int) -> bool:
        return self._excess(count) <= 0

    def largest(self, last: int) -> int:
        """Find the largest number up to `last` that fits."""
        deviation = spread(self.pair, OVERFLOWING * exp(self.goal)).deviation
        start = min(max(2 * log(max(self.epsilon, 1e-3) / 4 / deviation), 0.0), log(last))
        near = exp(root(lambda at: -self._excess(int(exp(at))), start, (0.0, log(last)), CLOSE))
        first_too_many = smallest_fitting(lambda count: not self(count), int(near) + 1, 1, last)
        return last if first_too_many is None else first_too_many - 1

    def _excess(self, count: int) -> float:
        """Compute the logarithm of delta over what it may be; finite but for count 0."""
        if count not in self._seen:
            self._seen[count] = max(plan_log_delta({self.pair: count}, self.epsilon, exp(self.goal)), -LARGEST_LOG)
        return self._seen[count] - self.goal
