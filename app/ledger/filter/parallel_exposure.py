"""Growth of an account with disjoint partitions by a charge under it.

At every order, and for own deltas and exact losses as for further orders, it is the maximum of straight lines: max
over t of (base_t + t * charge). A partition that the charge does not reach may be the maximum (t = 0); the charge may
reach several of those that count (t > 1). See ADR 0017.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from typing import TypeVar

import numpy as np

from app.accounting.curves import EXHAUSTED, RdpCurve, Usage
from app.accounting.exact_losses import ExactLosses

Lines = Mapping[int, RdpCurve]
"""Bases by slope."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class ParallelExposure:
    """The growth of an account by a charge, of its spent and its total loss."""

    spent: Lines
    total: Lines

    @classmethod
    def sequential(cls, spent: RdpCurve, held: RdpCurve) -> "ParallelExposure":
        """Create the exposure of an account that grows by the charge itself."""
        return cls({1: spent}, {1: spent + held})

    def charged(self, cost: RdpCurve) -> "ParallelExposure":
        """Copy the exposure after a charge."""
        return ParallelExposure(_moved(self.spent, cost), _moved(self.total, cost))

    def holding(self, cost: RdpCurve) -> "ParallelExposure":
        """Copy the exposure after a hold."""
        return ParallelExposure(self.spent, _moved(self.total, cost))

    def left(self, most: int, further: int, taken: Callable[[RdpCurve], int]) -> int:
        """Compute the largest own delta or exact loss of a charge after a further one; negative if exceeded.

        Args:
            most: that the account may have.
            further: of charges before it.
            taken: gets it from a curve.
        """
        room = {slope: most - taken(base) - slope * further for slope, base in self.total.items()}
        return -1 if room.pop(0, 0) < 0 else min(left // slope for slope, left in room.items())

    def beside(self, spent: RdpCurve, total: RdpCurve) -> "ParallelExposure":
        """Copy the exposure with a constant loss added."""
        return ParallelExposure(
            {slope: base + spent for slope, base in self.spent.items()},
            {slope: base + total for slope, base in self.total.items()},
        )


def value(lines: Lines) -> RdpCurve:
    """Evaluate the lines without a further charge: the largest base at every order."""
    return largest(list(lines.values()), 1)


def largest(curves: Sequence[RdpCurve], most: int) -> RdpCurve:
    """Sum the `most` largest values at every order, exactly."""
    return _top_sums(curves, most)[-1]


def compose_partitions(
    reached: Sequence[ParallelExposure], others: Sequence[tuple[RdpCurve, RdpCurve]], most: int
) -> ParallelExposure:
    """Compose an account of which the `most` partitions with the largest loss count.

    `others` has (spent, spent and held) of each partition that the charge does not reach.
    """
    return ParallelExposure(
        _compose_lines([part.spent for part in reached], [spent for spent, _ in others], most),
        _compose_lines([part.total for part in reached], [total for _, total in others], most),
    )


def without(whole: RdpCurve, part: RdpCurve) -> RdpCurve:
    """Subtract one term from a sum; an exhausted order stays exhausted, and an unbounded loss unbounded."""
    rest = whole.values - part.values
    rest[whole.values == EXHAUSTED] = EXHAUSTED
    used = {
        owner: tuple(map(sub, counts, part.used[owner])) if owner in part.used else counts
        for owner, counts in whole.used.items()
    }
    delta = EXHAUSTED if whole.delta == EXHAUSTED else whole.delta - part.delta
    return RdpCurve(rest, delta, used, whole.exact.less(part.exact))


def is_exact(held: RdpCurve, left: Iterable[RdpCurve]) -> bool:
    """Check whether subtracting a part from a hold leaves the exact sum of the remaining curves.

    True if one repetition of the remaining curves exhausts every order at which `held` is exhausted, as every Gaussian
    exhausts the order that represents infinity, and so for exact losses. `left` is consumed only as far as needed.
    """
    doubtful, unbounded = np.flatnonzero(held.values == EXHAUSTED), held.exact.unbounded()
    for curve in left:
        if not doubtful.size and not unbounded:
            break
        doubtful = doubtful[curve.values[doubtful] != EXHAUSTED]
        unbounded = unbounded - curve.exact.unbounded()
    return not doubtful.size and not unbounded and held.delta != EXHAUSTED


def held_of(spent: RdpCurve, total: RdpCurve) -> RdpCurve:
    """Compute the held loss; 0 where the spent loss is exhausted."""
    held = without(total, spent)
    values = held.values.copy()
    values[spent.values == EXHAUSTED] = 0
    exact = held.exact
    for at in spent.exact.unbounded():
        exact = exact.with_loss(at, 0)
    return RdpCurve(values, 0 if spent.delta == EXHAUSTED else held.delta, held.used, exact)


def _moved(lines: Lines, cost: RdpCurve) -> Lines:
    return {slope: base + cost.times(slope) if slope else base for slope, base in lines.items()}


def _compose_lines(reached: Sequence[Lines], others: Sequence[RdpCurve], most: int) -> Lines:
    """Enumerate the choices of partitions that count, by slope."""
    zero = RdpCurve.zero(next(iter(reached[0].values())).values.size)
    chosen: dict[tuple[int, int], RdpCurve] = {(0, 0): zero}
    for part in reached:
        for (number, slope), base in list(chosen.items()):
            if number < most:
                for steeper, curve in part.items():
                    _merge_max(chosen, (number + 1, slope + steeper), base + curve)
    sums = _top_sums([zero, *others], most)
    found: dict[int, RdpCurve] = {}
    for (number, slope), base in chosen.items():
        _merge_max(found, slope, base + sums[min(most - number, len(sums) - 1)])
    return found


def _merge_max(curves: dict[Key, RdpCurve], key: Key, curve: RdpCurve) -> None:
    """Store the maximum of a curve and the one stored, order by order."""
    before = curves.get(key)
    if before is not None:
        used = _ranked_usage([before, curve], 1)[0]
        delta, exact = max(before.delta, curve.delta), before.exact.join(curve.exact, max)
        curve = RdpCurve(np.maximum(before.values, curve.values), delta, used, exact)
    curves[key] = curve


def _top_sums(curves: Sequence[RdpCurve], most: int) -> list[RdpCurve]:
    """Sum the 0, 1, 2, ... `most` largest values at every order."""
    deltas, *losses = (
        sorted(each, reverse=True) for each in zip(*((one.delta, *one.exact) for one in curves), strict=True)
    )
    many = min(most, len(curves))
    ranked = [np.zeros_like(curves[0].values)] * many
    for curve in curves:  # insertion sort by order: few of many partitions count
        pushed = curve.values
        for place in range(many):
            ranked[place], pushed = np.maximum(ranked[place], pushed), np.minimum(ranked[place], pushed)
    usage = _ranked_usage(curves, many)
    sums = [RdpCurve.zero(curves[0].values.size)]
    for place in range(many):
        exact = ExactLosses(*(each[place] for each in losses))
        sums.append(sums[-1] + RdpCurve(ranked[place], deltas[place], usage[place], exact))
    return sums


def _ranked_usage(curves: Sequence[RdpCurve], many: int) -> list[Usage]:
    """Rank the counts of each mechanism of each plan, largest first; a curve without a plan's counts uses nothing."""
    owners = {owner: len(counts) for curve in curves for owner, counts in curve.used.items()}
    ranked: list[dict[str, tuple[int, ...]]] = [{} for _ in range(many)]
    for owner, size in owners.items():
        columns = zip(*(curve.used.get(owner, (0,) * size) for curve in curves), strict=True)
        rows = zip(*(sorted(column, reverse=True)[:many] for column in columns), strict=True)
        for found, row in zip(ranked, rows, strict=True):
            found[owner] = row
    return list(ranked)
