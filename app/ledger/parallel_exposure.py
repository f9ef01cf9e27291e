"""How what an account has lost grows with a charge beneath it, where some of its parts are disjoint.

Order by order, and for the curves' own delta as for one more order, it is the largest of some straight lines:
max over t of (base_t + t * charge). A part that the charge does not reach may be the largest one (t = 0); it may reach
several of those that count (t > 1). ADR 0017 says why these are all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from app.accounting.curves import EXHAUSTED, RdpCurve

Lines = Mapping[int, RdpCurve]
"""Bases by their slopes."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class ParallelExposure:
    """How an account grows with a charge from one place beneath it.

    Args:
        spent: what is spent, as a function of the charge.
        total: what is spent and held together, over the same slopes.
    """

    spent: Lines
    total: Lines

    @classmethod
    def sequential(cls, spent: RdpCurve, held: RdpCurve) -> "ParallelExposure":
        """That of an account which grows by the charge itself."""
        return cls({1: spent}, {1: spent + held})

    def charged(self, cost: RdpCurve) -> "ParallelExposure":
        """The same after a charge."""
        return ParallelExposure(_moved(self.spent, cost), _moved(self.total, cost))

    def holding(self, cost: RdpCurve) -> "ParallelExposure":
        """The same after a charge was set aside."""
        return ParallelExposure(self.spent, _moved(self.total, cost))

    def beside(self, spent: RdpCurve, total: RdpCurve) -> "ParallelExposure":
        """The same with something added that the charge does not move."""
        return ParallelExposure(
            {slope: base + spent for slope, base in self.spent.items()},
            {slope: base + total for slope, base in self.total.items()},
        )


def value(lines: Lines) -> RdpCurve:
    """What the lines give without a further charge: the largest base at every order."""
    return largest(list(lines.values()), 1)


def largest(curves: Sequence[RdpCurve], most: int) -> RdpCurve:
    """The sum of the largest values at every order.

    Args:
        curves: over one grid, at least one.
        most: how many of them count.

    Returns:
        The sum, exact; an order at which it does not fit is EXHAUSTED.
    """
    return _sums(curves, most)[-1]


def of_parts(
    reached: Sequence[ParallelExposure], others: Sequence[tuple[RdpCurve, RdpCurve]], most: int
) -> ParallelExposure:
    """That of an account of which the parts that have lost most count.

    Args:
        reached: the parts that the charge reaches, at least one.
        others: what each other part has spent, and has spent and holds.
        most: how many parts count.

    Returns:
        The exposure of all of them together.
    """
    return ParallelExposure(
        _together([part.spent for part in reached], [spent for spent, _ in others], most),
        _together([part.total for part in reached], [total for _, total in others], most),
    )


def without(whole: RdpCurve, part: RdpCurve) -> RdpCurve:
    """What is left of a sum without one of its terms; an order that is exhausted stays so, whatever is taken away."""
    rest = whole.values - part.values
    rest[whole.values == EXHAUSTED] = EXHAUSTED
    return RdpCurve(rest, EXHAUSTED if whole.delta == EXHAUSTED else whole.delta - part.delta)


def held_of(spent: RdpCurve, total: RdpCurve) -> RdpCurve:
    """What is held, if so much is spent and so much is spent and held together; nothing where all is spent."""
    held = without(total, spent).values.copy()
    held[spent.values == EXHAUSTED] = 0
    return RdpCurve(held, 0 if spent.delta == EXHAUSTED else without(total, spent).delta)


def _moved(lines: Lines, cost: RdpCurve) -> Lines:
    return {slope: base + cost.times(slope) if slope else base for slope, base in lines.items()}


def _together(reached: Sequence[Lines], others: Sequence[RdpCurve], most: int) -> Lines:
    """Every way to choose the parts that count: so many that are reached, at so many slopes, and the largest others."""
    zero = RdpCurve.zero(next(iter(reached[0].values())).values.size)
    chosen: dict[tuple[int, int], RdpCurve] = {(0, 0): zero}
    for part in reached:
        for (number, slope), base in list(chosen.items()):
            if number < most:
                for steeper, curve in part.items():
                    _raise(chosen, (number + 1, slope + steeper), base + curve)
    sums = _sums([zero, *others], most)
    found: dict[int, RdpCurve] = {}
    for (number, slope), base in chosen.items():
        _raise(found, slope, base + sums[min(most - number, len(sums) - 1)])
    return found


def _raise(curves: dict[Key, RdpCurve], key: Key, curve: RdpCurve) -> None:
    """Put a curve in its place, or the larger of it and what is there, order by order."""
    before = curves.get(key)
    if before is not None:
        curve = RdpCurve(np.maximum(before.values, curve.values), max(before.delta, curve.delta))
    curves[key] = curve


def _sums(curves: Sequence[RdpCurve], most: int) -> list[RdpCurve]:
    """The sums of the 0, 1, 2, ... largest values at every order, at the most of all of them."""
    deltas = sorted((curve.delta for curve in curves), reverse=True)
    many = min(most, len(curves))
    ranked = [np.zeros_like(curves[0].values)] * many
    for curve in curves:  # insertion, order by order: of many parts few count
        pushed = curve.values
        for place in range(many):
            ranked[place], pushed = np.maximum(ranked[place], pushed), np.minimum(ranked[place], pushed)
    sums = [RdpCurve.zero(curves[0].values.size)]
    for place in range(many):
        sums.append(sums[-1] + RdpCurve(ranked[place], deltas[place]))
    return sums
