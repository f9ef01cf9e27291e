"""Epsilons of counts ahead, for a table from which the answers to steps are read."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple, TypeAlias

from app.accounting.events import DpEvent

APART: Final = 4e-3
"""Usual distance of knots."""

AIM: Final = 0.9
"""Share of the distance that a knot is chosen for."""

MOST_STEPS: Final = 10**9
"""Maximum steps ahead of the first counts."""

FARTHEST: Final = 64
"""Most steps to a knot over those to the one before."""


Epsilons: TypeAlias = Callable[[Mapping[DpEvent, int]], float]
"""Epsilon of events with counts, that were fixed in advance."""


class Knot(NamedTuple):
    """Counts of events, and an epsilon of them.

    Args:
        counts: by event.
        epsilon: nats; a bound for all smaller counts, too.
    """

    counts: Mapping[DpEvent, int]
    epsilon: float


def knots_ahead(epsilon: Epsilons, counts: Mapping[DpEvent, int], cycle: Sequence[DpEvent], number: int) -> list[Knot]:
    """Compute epsilons ahead of some counts, while a cycle of events goes on.

    Counts between two knots have at most the epsilon of the second one: it is at most APART above that of the first,
    unless they are one event apart. A chord would be below the truth, since epsilon is not concave.

    Args:
        epsilon: of the events.
        counts: now.
        cycle: the events that come next, one after the other and again from the first.
        number: how many knots to compute, at least one; fewer if MOST_STEPS or an infinite epsilon end them.

    Returns:
        Knots with rising epsilons, the first one at the counts now.
    """
    walk = _Walk(epsilon, counts, cycle)
    steps, values = [0], [walk.epsilon(0)]
    step = 1
    while len(steps) < number and values[-1] < inf and steps[-1] < MOST_STEPS:
        step, value = walk.step(steps[-1], values[-1], step)
        steps.append(steps[-1] + step)
        values.append(value)
        rise = (value / values[-2] - 1) if values[-2] else 0.0
        step = min(max(int(step * AIM * APART / rise), 1), FARTHEST * step) if rise > 0 else FARTHEST * step
    rising = list(accumulate(reversed(values), min))  # of larger counts no epsilon is smaller
    return [Knot(walk.at(each), value) for each, value in zip(steps, reversed(rising), strict=True)]


class _Walk:
    """The walk along a cycle of events."""

    def __init__(self, epsilon: Epsilons, counts: Mapping[DpEvent, int], cycle: Sequence[DpEvent]) -> None:
        self._epsilon_of = epsilon
        self._counts = counts
        self._cycle = cycle
        self._whole = Counter(cycle)

    def step(self, start: int, epsilon: float, guess: int) -> tuple[int, float]:
        """Find about the most steps, at least one, for which epsilon rises by the distance, and the epsilon."""
        most, step = epsilon * (1 + APART), min(guess, MOST_STEPS - start)
        found = self.epsilon(start + step)
        while found > most and step > 1:
            rise = found / epsilon - 1 if epsilon else inf
            step = max(min(int(step * AIM * APART / rise), step * 3 // 4), 1)
            found = self.epsilon(start + step)
        return step, found

    def epsilon(self, steps: int) -> float:
        """Compute the epsilon after a number of steps."""
        return self._epsilon_of(self.at(steps))

    def at(self, steps: int) -> dict[DpEvent, int]:
        """Count the events after a number of steps."""
        rounds, rest = divmod(steps, len(self._cycle))
        counts = dict(self._counts)
        for event, count in self._whole.items():
            counts[event] = counts.get(event, 0) + rounds * count
        for event in self._cycle[:rest]:
            counts[event] += 1
        return counts
