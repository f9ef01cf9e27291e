"""Epsilon and delta of events that were fixed in advance, by their privacy loss distributions."""

from collections.abc import Mapping

from app.accounting.base_rdp import worst_loss
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.events import composed
from app.accounting.pld.plans import plan_delta, plan_epsilon


def pld_epsilon(events: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> float:
    """Compute an epsilon of events with counts at delta.

    Args:
        events: fixed in advance, with their counts.
        relation: of neighbouring data.
        delta: positive; the events' own deltas are subtracted already.

    Raises:
        UnsupportedEventError: no pair of distributions is proven to dominate an event.
    """
    pure = sum(count * worst_loss(event, relation) for event, count in events.items())
    found = max((plan_epsilon(pairs, delta) if pairs else 0.0 for pairs in composed(events, relation)), default=0.0)
    return min(found, pure)


def pld_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation, epsilon: float) -> float:
    """Compute a delta of events with counts at epsilon, without their own deltas; raises as `pld_epsilon` does."""
    pure = sum(count * worst_loss(event, relation) for event, count in events.items())
    if pure <= epsilon:
        return 0.0
    return max((plan_delta(pairs, epsilon) if pairs else 0.0 for pairs in composed(events, relation)), default=0.0)
