"""What a guarantee means as a risk: the best attack on whether one unit's records are in the data.

An attack tests "with" against "without" the records of one unit. (epsilon, delta) bounds its true positive rate by its
false positive rate a: tpr(a) <= min(delta + e^epsilon a, 1 - e^-epsilon (1 - delta - a)). A mechanism with deltas at
several epsilons obeys the bounds of all of them, and those of its whole privacy profile are attained.

Source: Wasserman, Zhou 2010 (arXiv 0811.2501), Theorem 2.4; Dong, Roth, Su 2022 (arXiv 1905.02383), Propositions 2.4
and 2.12; Kulynych et al. 2024 (arXiv 2407.02191), Section 3, whose library riskcal computes the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, isfinite, nextafter
from typing import Final, NamedTuple

import numpy as np

from app.accounting.conversion import delta_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.accountant import pld_delta

FALSE_POSITIVE_RATE: Final = 0.01
"""One false alarm in a hundred."""

PEOPLE: Final = 1000
"""Of so many people it is said how many an attack singles out."""

PROFILE_POINTS: Final = 64
"""Epsilons above 0 at which the profile of a curve is computed."""

SEARCH_FACTORS: Final = (0.6, 0.77, 0.88)
"""Distances at which a better epsilon is looked for, one after the other."""

_NOBODY: Final = 1e-9
"""A part of a person that is the rounding's."""

_ROUNDING: Final = 1 + 2.0**-48
"""Covers the rounding of a bound, whose terms are positive."""


class Guarantee(NamedTuple):
    """An epsilon in nats, at least 0, and the delta that holds with it."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class AttackRisk:
    """Upper bounds on the success of every attack.

    Args:
        advantage: the largest difference of true and false positive rate, 0 to 1.
        true_positive_rate: at a false positive rate of `FALSE_POSITIVE_RATE`, 0 to 1; guessing has that rate itself.
    """

    advantage: float
    true_positive_rate: float

    @property
    def singled_out(self) -> int:
        """How many of `PEOPLE` the best attack finds at that false positive rate, rounded up from a billionth on."""
        return min(PEOPLE, ceil(self.true_positive_rate * PEOPLE - _NOBODY))


def attack_risk(guarantees: Iterable[Guarantee]) -> AttackRisk:
    """Bound every attack by guarantees that all hold: one limit, or points of a privacy profile."""
    least = AttackRisk(1.0, 1.0)
    for each in guarantees:
        least = AttackRisk(
            min(least.advantage, _advantage(each)),
            min(least.true_positive_rate, _true_positive_rate(each, FALSE_POSITIVE_RATE)),
        )
    return least


def privacy_profile(
    curve: RdpCurve, events: Mapping[DpEvent, int] | None, relation: NeighboringRelation, epsilon: float
) -> list[Guarantee]:
    """Compute guarantees of events that were fixed in advance, at epsilons from 0 up to about `epsilon`.

    Args:
        curve: their Rényi curve on the newest grid.
        events: with their counts; None: not all are known, so the curve alone decides.
        relation: of neighbouring data.
        epsilon: what they cost at a small delta, infinity allowed; larger ones tell an attack nothing more.
    """
    most = epsilon if 0 < epsilon < inf else 1.0
    grid = orders(GRID_VERSION)
    epsilons = [0.0, *map(float, np.geomspace(most / 128, most, PROFILE_POINTS))]
    found = [Guarantee(each, delta_of_curve(grid, curve, each).delta) for each in epsilons]
    if events:
        start = min(found[1:], key=lambda each: _true_positive_rate(each, FALSE_POSITIVE_RATE)).epsilon
        with suppress(UnsupportedEventError, PlanTooExpensiveError):
            found += _by_distributions(frozenset(events.items()), relation, start)
    return found


@lru_cache(maxsize=256)
def _by_distributions(
    events: frozenset[tuple[DpEvent, int]], relation: NeighboringRelation, start: float
) -> Sequence[Guarantee]:
    """Compute guarantees by privacy loss distributions where they bound an attack best.

    That is at epsilon 0 for the advantage, and for the true positive rate at one that is searched from `start` on. Each
    takes some milliseconds, and each holds, wherever the search ends.
    """
    counts = dict(events)
    found = [Guarantee(each, pld_delta(counts, relation, each)) for each in (0.0, start)]
    for factor in SEARCH_FACTORS:
        best = min(found[1:], key=lambda each: _true_positive_rate(each, FALSE_POSITIVE_RATE)).epsilon
        found += [Guarantee(each, pld_delta(counts, relation, each)) for each in (best * factor, best / factor)]
    return found


def _advantage(bound: Guarantee) -> float:
    """Bound tpr - fpr by (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), which both bounds reach where they cross."""
    shrunk = exp(-bound.epsilon)
    return _up((1 - shrunk + 2 * bound.delta * shrunk) / (1 + shrunk))


def _true_positive_rate(bound: Guarantee, false_positive_rate: float) -> float:
    """Bound the true positive rate at a false positive rate in [0, 1]."""
    shrunk = exp(-bound.epsilon)
    grown = bound.delta + false_positive_rate / shrunk if shrunk else inf
    return min(_up(grown), _up(1 - shrunk * (1 - bound.delta - false_positive_rate)))


def _up(rate: float) -> float:
    """Round up a computed rate; at most 1."""
    return min(1.0, nextafter(rate * _ROUNDING, inf)) if isfinite(rate) else 1.0
