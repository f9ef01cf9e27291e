"""Epsilons of counts ahead, for a table from which the answers to steps are read."""

from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

from app.accounting.events import DpEvent
from app.accounting.pld.counted_epsilons import CountedEpsilons

APART: Final = 4e-3
"""Largest rise of epsilon from one knot to the next, relative, unless a single round raises it by more."""

AIM: Final = 0.9
"""Share of APART that a knot is chosen for."""

MOST_ROUNDS: Final = 10**9
"""Maximum rounds ahead of the first counts."""

FARTHEST: Final = 64
"""Most rounds to a knot over those to the one before."""


class Knot(NamedTuple):
    """Counts of events, and an epsilon of them.

    Args:
        counts: by event.
        epsilon: nats; a bound for all smaller counts, too.
    """

    counts: Mapping[DpEvent, int]
    epsilon: float


def knots_ahead(
    epsilons: CountedEpsilons, counts: Mapping[DpEvent, int], growth: Mapping[DpEvent, int], number: int
) -> list[Knot]:
    """Compute epsilons ahead of some counts, while they grow by whole rounds.

    Counts between two knots have at most the epsilon of the second one: it is at most APART above that of the first,
    unless they are one round apart. A chord would be below the truth, since epsilon is not concave.

    Args:
        epsilons: of the events.
        counts: now.
        growth: counts of one round, at least one of them positive.
        number: how many knots to compute, at least one; fewer if MOST_ROUNDS or an infinite epsilon end them.

    Returns:
        Knots with rising epsilons, the first one at the counts now.

    Raises:
        UnsupportedEventError: no pair of distributions is proven to dominate an event.
    """
    return _Walk(epsilons, counts, growth).knots(number)


class _Walk:
    """The walk along a direction of growth."""

    def __init__(self, epsilons: CountedEpsilons, counts: Mapping[DpEvent, int], growth: Mapping[DpEvent, int]) -> None:
        self._epsilons = epsilons
        self._counts = counts
        self._growth = growth
        self._events = list(dict.fromkeys([*counts, *growth]))

    def knots(self, number: int) -> list[Knot]:
        """Compute so many knots."""
        rounds, values = [0], [self._epsilon(0)]
        step = 1
        while len(rounds) < number and values[-1] < inf and rounds[-1] < MOST_ROUNDS:
            step, value = self._step(rounds[-1], values[-1], step)
            rounds.append(rounds[-1] + step)
            values.append(value)
            rise = (value / values[-2] - 1) if values[-2] else 0.0
            step = min(max(int(step * AIM * APART / rise), 1), FARTHEST * step) if rise > 0 else FARTHEST * step
        least = inf
        for place in range(len(values) - 1, -1, -1):  # of larger counts no epsilon is smaller
            least = values[place] = min(values[place], least)
        return [Knot(self._at(each), value) for each, value in zip(rounds, values, strict=True)]

    def _step(self, start: int, epsilon: float, guess: int) -> tuple[int, float]:
        """Find about the most rounds after which epsilon is at most APART higher, at least one, and the epsilon."""
        most, step = epsilon * (1 + APART), min(guess, MOST_ROUNDS - start)
        found = self._epsilon(start + step)
        while found > most and step > 1:
            rise = found / epsilon - 1 if epsilon else inf
            step = max(min(int(step * AIM * APART / rise), step * 3 // 4), 1)
            found = self._epsilon(start + step)
        return step, found

    def _epsilon(self, rounds: int) -> float:
        return self._epsilons.epsilon(self._at(rounds))

    def _at(self, rounds: int) -> dict[DpEvent, int]:
        return {event: self._counts.get(event, 0) + rounds * self._growth.get(event, 0) for event in self._events}
