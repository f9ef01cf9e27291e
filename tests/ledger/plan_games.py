"""The best adversary against a filter, by exact dynamic programming over small games.

Every mechanism has two outputs, and with probability `own` shows which of two neighbours it saw. The adversary chooses
the next move after each output, among those that a rule admits, or stops. The value of a game is the largest
hockey-stick divergence, at epsilon, of all that it can see.

What was seen matters only by the number of first outputs of each kind of mechanism: they give the likelihood ratio. So
each state of a rule has an array of values with one axis for each kind, and a release is an average along its axis.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.accounting.pld.domination import Mechanism
from app.accounting.pld.pairs import FinitePair

Floats: TypeAlias = NDArray[np.float64]
State = TypeVar("State", bound=Hashable)

SILENT = -1
"""The axis of moves that show nothing: another limit, a hold, or a release about others' data."""

Moves: TypeAlias = Callable[[State], Iterable[tuple[int, State]]]
"""What a rule admits in a state: axes and following states. No state follows itself, however indirectly."""


@dataclass(frozen=True)
class Kind:
    """A mechanism with two outputs.

    Args:
        first: probabilities of the first output on both neighbours, in (0, 1).
        own: probability of showing which one it saw.
        epsilon: if its outputs are exchanged, with this largest privacy loss.
    """

    first: tuple[float, float]
    own: float = 0.0
    epsilon: float | None = None

    @classmethod
    def exchanged(cls, epsilon: float, own: float = 0.0) -> "Kind":
        """Exchange two outputs of ratio e^epsilon."""
        likely = 1 / (1 + exp(-epsilon))
        return cls((likely, exp(-epsilon) * likely), own, epsilon)

    @property
    def turned(self) -> "Kind":
        """The same with the neighbours exchanged."""
        return Kind(self.first[::-1], self.own)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Its dominating pairs, without its own delta."""
        if self.epsilon is not None:
            pair = FinitePair.exchanged(self.epsilon)
            return Mechanism(pair, pair)
        p, q = self.first
        outputs = sorted([(p, q), (1 - p, 1 - q)], key=lambda each: each[0] / each[1])
        (low_p, low_q), (high_p, high_q) = outputs
        return Mechanism(FinitePair((low_p, high_p), (low_q, high_q)), FinitePair((high_q, low_q), (high_p, low_p)))

    def divergence(self, order: float) -> float:
        """Its Renyi divergence in the worse direction, without its own delta."""
        p, q = self.first
        return max(_divergence(order, p, q), _divergence(order, q, p))


def _divergence(order: float, p: float, q: float) -> float:
    return log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)


@dataclass(frozen=True)
class Board:
    """What the adversary sees of mechanisms of some kinds, at an epsilon."""

    kinds: tuple[Kind, ...]
    _ratios: dict[tuple[int, ...], Floats] = field(default_factory=dict, repr=False)
    _stops: dict[tuple[float, tuple[int, ...]], Floats] = field(default_factory=dict, repr=False)

    def ratios(self, counts: tuple[int, ...]) -> Floats:
        """Compute Q / P by the number of first outputs of each kind; (counts + 1, ...)."""
        found = self._ratios.get(counts)
        if found is None:
            found = np.ones(())
            for count, kind in zip(counts, self.kinds, strict=True):
                p, q = kind.first
                first = np.arange(count + 1)
                found = np.multiply.outer(found, (q / p) ** first * ((1 - q) / (1 - p)) ** (count - first))
            self._ratios[counts] = found
        return found

    def stops(self, epsilon: float, counts: tuple[int, ...]) -> Floats:
        """Compute what stopping is worth, per probability under P."""
        key = (epsilon, counts)
        found = self._stops.get(key)
        if found is None:
            found = self._stops[key] = np.maximum(0.0, 1 - exp(epsilon) * self.ratios(counts))
        return found

    def delta(self, epsilon: float, counts: tuple[int, ...]) -> float:
        """Compute the exact delta of mechanisms that were fixed in advance, without their own deltas."""
        value = self.stops(epsilon, counts)
        for axis, (count, kind) in enumerate(zip(counts, self.kinds, strict=True)):
            for _ in range(count):
                value = _average(value, axis, kind.first[0])
        return float(value.reshape(()))


def _average(values: Floats, axis: int, chance: float) -> Floats:
    """Average over the outputs of one mechanism, of which the first has a chance."""
    if axis:
        values = values.swapaxes(0, axis)
    mixed: Floats = chance * values[1:] + (1 - chance) * values[:-1]
    return mixed.swapaxes(0, axis) if axis else mixed


def solve(board: Board, epsilon: float, start: State, moves: Moves[State]) -> float:
    """Compute the largest divergence that an adversary reaches, from the first neighbour to the second."""
    known: dict[tuple[State, tuple[int, ...]], Floats] = {}
    kinds = board.kinds

    def values(state: State, counts: tuple[int, ...]) -> Floats:
        key = (state, counts)
        best = known.get(key)
        if best is not None:
            return best
        best = board.stops(epsilon, counts)
        for axis, following in moves(state):
            if axis == SILENT:
                best = np.maximum(best, values(following, counts))
            else:
                after = values(following, (*counts[:axis], counts[axis] + 1, *counts[axis + 1 :]))
                own, seen = kinds[axis].own, _average(after, axis, kinds[axis].first[0])
                best = np.maximum(best, own + (1 - own) * seen if own else seen)
        known[key] = best
        return best

    return float(values(start, (0,) * len(kinds)).reshape(()))


def swapped(board: Board) -> Board:
    """Exchange the neighbours."""
    return Board(tuple(kind.turned for kind in board.kinds))


def delta_both_ways(kinds: Sequence[Kind], epsilon: float, counts: tuple[int, ...]) -> float:
    """Compute the exact delta of mechanisms that were fixed in advance, in the worse direction."""
    board = Board(tuple(kinds))
    return max(board.delta(epsilon, counts), swapped(board).delta(epsilon, counts))
