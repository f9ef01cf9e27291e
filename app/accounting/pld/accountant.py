"""Epsilon and delta of events that were fixed in advance, by their privacy loss distributions."""

from collections.abc import Callable, Mapping
from math import fsum, inf, log

from app.accounting.base_rdp import worst_loss
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.events import composed
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import FINEST, plan_delta, plan_epsilon, plan_log_delta
from app.accounting.pld.prefixes import ROUNDING, pure_delta, pure_epsilon


def pld_epsilon(events: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> float:
    """Compute an epsilon of events with counts at delta.

    Args:
        events: fixed in advance, with their counts.
        relation: of neighbouring data.
        delta: positive; the events' own deltas are subtracted already.

    Raises:
        UnsupportedEventError: no pair of distributions is proven to dominate an event.
        PlanTooExpensiveError: it would take more work than the request may take.
    """
    found = _worst(events, relation, lambda pairs: plan_epsilon(pairs, delta))
    pure = _pure(events, relation)
    return min(found, pure_epsilon(pure, delta))


def pld_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation, epsilon: float) -> float:
    """Compute a delta of events with counts at epsilon, without their own deltas; raises as `pld_epsilon` does."""
    pure = _pure(events, relation)
    if pure <= epsilon:
        return 0.0
    found = _worst(events, relation, lambda pairs: plan_delta(pairs, epsilon))
    return min(found, pure_delta(pure, epsilon))


def pld_log_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation, epsilon: float, delta: float) -> float:
    """Compute ln delta of events with counts at epsilon, most precise near `delta`; raises as `pld_epsilon` does."""
    pure = _pure(events, relation)
    if pure <= epsilon:
        return -inf
    found = _worst(events, relation, lambda pairs: plan_log_delta(pairs, epsilon, delta, FINEST), -inf)
    return min(found, log(pure_delta(pure, epsilon)))


def _pure(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> float:
    """Sum the largest privacy losses, rounded up; infinite where one is."""
    return fsum(count * worst_loss(event, relation) for event, count in events.items()) * (1 + ROUNDING)


def _worst(
    events: Mapping[DpEvent, int],
    relation: NeighboringRelation,
    found: Callable[[Mapping[Pair, int]], float],
    nothing: float = 0.0,
) -> float:
    """Take the larger of what is found in both directions; `nothing` where nothing is lost."""
    return max((found(pairs) for pairs in composed(events, relation) if pairs), default=nothing)
