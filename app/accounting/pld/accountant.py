"""Epsilon and delta of events that were fixed in advance, by their privacy loss distributions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import expm1, fsum, inf, log1p
from typing import Final

import numpy as np

from app.accounting.events import DpEvent, EpsilonDelta, NeighboringRelation, SampledWithReplacement, child_events
from app.accounting.pld.events import Directions, composed, leaves
from app.accounting.pld.pairs import Pair
from app.accounting.pld.plans import FINE, FINEST, Fineness, plan_delta, plan_epsilon
from app.accounting.pld.prefixes import FEW, ROUNDING, pure_delta, pure_epsilon
from app.accounting.pricing_effort import MOST_KNOWN
from app.accounting.pure_losses import worst_loss
from app.accounting.rdp import curve_over

FAILING: Final = (EpsilonDelta, SampledWithReplacement)
"""Events with a delta of their own that a pair may dominate."""

ANY_ORDER: Final = np.array([2.0])
"""An event's own delta does not depend on the order."""


@dataclass(frozen=True, slots=True)
class EventLosses:
    """What is known of the privacy loss of one event.

    Args:
        directions: pairs that dominate it, unless it fails.
        log_kept: logarithm of the probability that it does not fail.
        worst_loss: the largest, in nats; infinite where no bound is known.
    """

    directions: Directions
    log_kept: float
    worst_loss: float


@lru_cache(maxsize=MOST_KNOWN)
def event_losses(event: DpEvent, relation: NeighboringRelation) -> EventLosses:
    """Find the losses of an event; raises as `pld_epsilon` does."""
    return EventLosses(composed({event: 1}, relation), _log_kept(event, relation), worst_loss(event, relation))


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
    left = left_of_delta(delta, own_delta(events, relation))
    if left <= 0:
        return inf
    found = _worst(events, relation, lambda pairs: plan_epsilon(pairs, left, fineness_of(pairs)))
    return min(found, pure_epsilon(_pure(events, relation), left))


def left_of_delta(delta: float, own: float) -> float:
    """Compute what events that fail with probability `own` leave of delta, rounded down."""
    return (delta - own) / (1 - own) * (1 - ROUNDING) if own else delta


def pld_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation, epsilon: float) -> float:
    """Compute a delta of events with counts at epsilon; raises as `pld_epsilon` does."""
    own, pure = own_delta(events, relation), _pure(events, relation)
    found = 0.0
    if pure > epsilon:
        found = min(
            _worst(events, relation, lambda pairs: plan_delta(pairs, epsilon, fineness_of(pairs))),
            pure_delta(pure, epsilon),
        )
    return min(1.0, (own + (1 - own) * found) * (1 + ROUNDING)) if own else found


def own_delta(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> float:
    """Compute the probability that any of several events fails, rounded up.

    A mechanism with a delta of its own is dominated by one that fails with this probability, and else has the rest of
    its guarantee (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776). Each draws whether it fails by itself.
    """
    return failure_of((_log_kept(event, relation), count) for event, count in events.items())


def failure_of(logs: Iterable[tuple[float, int]]) -> float:
    """Compute the probability that any of some events fails, rounded up, from `EventLosses.log_kept` and counts."""
    total = fsum(count * log_kept for log_kept, count in logs)
    return min(-expm1(total) * (1 + ROUNDING), 1.0) if total else 0.0


def _log_kept(event: DpEvent, relation: NeighboringRelation) -> float:
    """Compute the logarithm of the probability that an event does not fail."""
    if not _may_fail(event):
        return 0.0
    logs = []
    for leaf, count in leaves({event: 1}, relation).items():
        if _may_fail(leaf):
            failure = curve_over(leaf, ANY_ORDER, relation).delta_value()
            logs.append(count * log1p(-failure) if failure < 1 else -inf)
    return fsum(logs)


def _may_fail(event: DpEvent) -> bool:
    return isinstance(event, FAILING) or any(map(_may_fail, child_events(event)))


def _pure(events: Mapping[DpEvent, int], relation: NeighboringRelation) -> float:
    """Sum the largest privacy losses, rounded up; infinite where one is."""
    return sum_of_losses((worst_loss(event, relation), count) for event, count in events.items())


def sum_of_losses(losses: Iterable[tuple[float, int]]) -> float:
    """Sum losses with counts, rounded up; infinite where one is."""
    return fsum(count * loss for loss, count in losses) * (1 + ROUNDING)


def _worst(
    events: Mapping[DpEvent, int], relation: NeighboringRelation, found: Callable[[Mapping[Pair, int]], float]
) -> float:
    """Take the larger of what is found in both directions; 0 where nothing is lost."""
    return max((found(pairs) for pairs in composed(events, relation) if pairs), default=0.0)


def fineness_of(pairs: Mapping[Pair, int]) -> Fineness:
    """Choose the lattice on which the longest part of a plan that a limit admits is found, too."""
    return FINEST if sum(pairs.values()) <= FEW else FINE
