"""Epsilon of releases that were fixed in advance, as the tightest accountant computes it, and knots ahead of steps."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.accountant import pld_epsilon

MOST_KINDS: Final = 64
"""Maximum different events whose distributions are composed; of more, the Rényi curves alone are."""

APART: Final = 0.004
"""Relative distance of knots, where a single step is not farther: a step's answer is at most that much above."""


class Knot(NamedTuple):
    """An epsilon that holds up to a number of repetitions of each event."""

    counts: tuple[int, ...]
    epsilon: float


def tightest_epsilon(
    counts: Mapping[DpEvent, int] | None, curve: RdpCurve, relation: NeighboringRelation, delta: float
) -> float:
    """Compute the smallest epsilon at delta that is proven for releases that were fixed in advance.

    It is the smaller of the Rényi conversion at the full delta and of the privacy loss distribution, where each event
    has a pair that dominates it. It is no bound under adaptive choices, which a filter needs.

    Args:
        counts: of the events; None: the curve alone decides.
        curve: of all of them.
        relation: of neighbouring data.
        delta: in (0, 1).
    """
    by_curve = epsilon_of_curve(orders(GRID_VERSION), curve, delta).epsilon
    return by_curve if counts is None else min(by_curve, epsilon_by_distributions(counts, relation, delta))


def epsilon_by_distributions(counts: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> float:
    """Compute the epsilon of events with counts by their privacy loss distributions.

    It is infinite where an event has no pair that dominates it, or where composing them would take too much work.
    """
    if len(counts) > MOST_KINDS:
        return inf
    try:
        return pld_epsilon(counts, relation, delta)
    except (UnsupportedEventError, PlanTooExpensiveError):
        return inf


def knots_ahead(
    curves: Mapping[DpEvent, RdpCurve],
    counts: Sequence[int],
    mix: Sequence[int],
    relation: NeighboringRelation,
    delta: float,
    number: int,
    *,
    distributions: bool = True,
) -> tuple[Knot, ...]:
    """Compute epsilons ahead of a run, for the answers to its next steps.

    Between two knots the value at the next one counts: epsilon rises with each step, but not along a line.

    Args:
        curves: of the events.
        counts: of each so far.
        mix: ratio in which they grow.
        relation: of neighbouring data.
        delta: in (0, 1).
        number: of knots, the first of which has the counts so far.
        distributions: whether to compose privacy loss distributions, too, which takes far longer.
    """
    places = list(_places(counts, mix, number))
    found = []
    for place in reversed(places):
        events = {event: each for event, each in zip(curves, place, strict=True) if each}
        found.append(tightest_epsilon(events if distributions else None, _composed(curves, place), relation, delta))
    rising = list(accumulate(found, min))  # more steps never have a smaller epsilon; each has errors of its own
    return tuple(Knot(place, each) for place, each in zip(places, reversed(rising), strict=True))


def _places(counts: Sequence[int], mix: Sequence[int], number: int) -> Iterator[tuple[int, ...]]:
    first, whole, further = tuple(counts), sum(mix), 0
    place: tuple[int, ...] = ()
    for _ in range(number):
        following = tuple(each + further * share // whole for each, share in zip(first, mix, strict=True))
        if following != place:
            yield following
        place = following
        further += max(int(APART * sum(place)), 1)


def _composed(curves: Mapping[DpEvent, RdpCurve], counts: Sequence[int]) -> RdpCurve:
    total = RdpCurve.zero(orders(GRID_VERSION).size)
    for curve, count in zip(curves.values(), counts, strict=True):
        total = total + curve.times(count)
    return total
