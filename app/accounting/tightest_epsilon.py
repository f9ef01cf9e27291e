"""Epsilon of releases that were fixed in advance, as the tightest accountant computes it.

It is the smaller of the Rényi conversion at the full delta and of the privacy loss distribution, where each event has a
pair that dominates it. It is no bound under adaptive choices, which a filter needs.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.epsilon_knots import Knot, knots_ahead
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.counted_epsilons import CountedEpsilons

MOST_KINDS: Final = 64
"""Maximum different events whose distributions are composed; of more, the Rényi curves alone are."""


def tightest_epsilon(
    counts: Mapping[DpEvent, int], curves: Mapping[DpEvent, RdpCurve], relation: NeighboringRelation, delta: float
) -> float:
    """Compute the smallest epsilon at delta that is proven for events with counts.

    Args:
        counts: of the events.
        curves: of one of each.
        relation: of neighbouring data.
        delta: in [0, 1); at 0 the pure losses decide.
    """
    return min(
        epsilon_by_curves(counts, curves, delta),
        epsilon_by_distributions({event: count for event, count in counts.items() if count}, relation, delta),
    )


def epsilon_by_curves(counts: Mapping[DpEvent, int], curves: Mapping[DpEvent, RdpCurve], delta: float) -> float:
    """Compute the epsilon at delta of events with counts by their Rényi curves."""
    total = RdpCurve.zero(orders(GRID_VERSION).size)
    for event, count in counts.items():
        total = total + curves[event].times(count)
    return epsilon_of_curve(orders(GRID_VERSION), total, delta).epsilon


def epsilon_by_distributions(counts: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> float:
    """Compute the epsilon at delta of events with counts by their privacy loss distributions.

    It is infinite at delta 0, where an event has no pair that dominates it, or where composing them would take too much
    work.
    """
    if not delta or len(counts) > MOST_KINDS:
        return inf
    try:
        return CountedEpsilons(relation, delta).epsilon(counts)
    except (UnsupportedEventError, PlanTooExpensiveError):
        return inf


def tightest_knots(
    counts: Mapping[DpEvent, int],
    cycle: Sequence[DpEvent],
    curves: Mapping[DpEvent, RdpCurve],
    relation: NeighboringRelation,
    delta: float,
    number: int,
) -> list[Knot]:
    """Compute tightest epsilons ahead of some counts, see `knots_ahead`."""
    return knots_ahead(lambda at: tightest_epsilon(at, curves, relation, delta), counts, cycle, number)
