"""Epsilon and delta of events that were fixed in advance, by their privacy loss distributions."""

from collections.abc import Callable, Mapping
from math import expm1, fsum, inf, log1p
from typing import Final

import numpy as np

from app.accounting.events import DpEvent, EpsilonDelta, NeighboringRelation, SampledWithReplacement, child_events
from app.accounting.pld.events import composed, leaves
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import FINE, FINEST, Fineness, plan_delta, plan_epsilon
from app.accounting.pld.prefixes import FEW, ROUNDING, pure_delta, pure_epsilon
from app.accounting.pure_losses import worst_loss
from app.accounting.rdp import curve_over

FAILING: Final = (EpsilonDelta, SampledWithReplacement)
"""Events with a delta of their own that a pair may dominate."""

ANY_ORDER: Final = np.array([2.0])
"""An event's own delta does not depend on the order."""


def pld_epsilon(events: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> float:
    """Compute an epsilon of events with counts at delta; infinite if their own deltas leave nothing of it.

    Args:
        events: fixed in advance, with their counts.
        relation: of neighbouring data.
        delta: positive.

    Raises:
        UnsupportedEventError: no pair of distributions is proven to dominate an event.
        PlanTooExpensiveError: it would take more work than the request may take.
    """
    own = own_delta(events, relation)
    left = (delta - own) / (1 - own) * (1 - ROUNDING) if own else delta
    if left <= 0:
        return inf
    found = _worst(events, relation, lambda pairs: plan_epsilon(pairs, left, _fineness(pairs)))
    pure = _pure(events, relation)
    return min(found, pure_epsilon(pure, left))


def pld_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation, epsilon: float) -> float:
    """Compute a delta of events with counts at epsilon; raises as `pld_epsilon` does."""
    own, pure = own_delta(events, relation), _pure(events, relation)
    found = 0.0
    if pure > epsilon:
        found = min(
            _worst(events, relation, lambda pairs: plan_delta(pairs, epsilon, _fineness(pairs))),
            pure_delta(pure, epsilon),
        )
    return min(1.0, (own + (1 - own) * found) * (1 + ROUNDING)) if own else found


def own_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> float:
    """Compute the probability that any of several events fails, rounded up.

    A mechanism with a delta of its own is dominated by one that fails with this probability, and else has the rest of
    its guarantee (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776). Each draws whether it fails by itself.
    """
    if not any(_may_fail(event) for event in events):
        return 0.0
    logs = []
    for event, count in leaves(events, relation).items():
        if _may_fail(event):
            failure = curve_over(event, ANY_ORDER, relation).delta_value()
            if failure >= 1:
                return 1.0
            logs.append(count * log1p(-failure))
    return min(-expm1(fsum(logs)) * (1 + ROUNDING), 1.0)


def _may_fail(event: DpEvent) -> bool:
    return isinstance(event, FAILING) or any(map(_may_fail, child_events(event)))


def _pure(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> float:
    """Sum the largest privacy losses, rounded up; infinite where one is."""
    return fsum(count * worst_loss(event, relation) for event, count in events.items()) * (1 + ROUNDING)


def _worst(
    events: Mapping[DpEvent, int], relation: NeighboringRelation, found: Callable[[Mapping[Pair, int]], float]
) -> float:
    """Take the larger of what is found in both directions; 0 where nothing is lost."""
    return max((found(pairs) for pairs in composed(events, relation) if pairs), default=0.0)


def _fineness(pairs: Mapping[Pair, int]) -> Fineness:
    """Choose the lattice on which the longest part of a plan that a limit admits is found, too."""
    return FINEST if sum(pairs.values()) <= FEW else FINE
