"""Zero-concentrated differential privacy of plans without sampling.

Source: Bun & Steinke 2016 (arXiv 1605.02065), Definition 1.1 and Lemma 3.5 (Proposition 1.3 for xi = 0).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from math import exp, log, sqrt
from typing import Final

import numpy as np

from app.accounting.base_rdp import rdp
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DiscreteGaussian,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    GroupPrivacy,
    Laplace,
    NeighboringRelation,
    NoOp,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    SelfComposed,
    TreeAggregation,
    Zcdp,
    scheduled_events,
    without_no_ops,
)
from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.group_privacy import for_group
from app.accounting.pure_losses import worst_loss

ROUNDING: Final = 1e-12
"""Relative margin for rounding in a sum of thousands of terms; results are increased by it."""


@dataclass(frozen=True, slots=True)
class ZcdpBound:
    """A bound xi + rho a on the divergence at every order a.

    Args:
        rho: nats per order, at least 0.
        xi: nats, at least 0.
        is_gaussian: whether the divergence equals that of Gaussian noise with mu = sqrt(2 rho).
    """

    rho: float
    xi: float = 0.0
    is_gaussian: bool = False

    def __add__(self, other: "ZcdpBound") -> "ZcdpBound":
        """Compose two releases (Lemma 2.3 of the source)."""
        return ZcdpBound(self.rho + other.rho, self.xi + other.xi, self.is_gaussian and other.is_gaussian)

    def times(self, count: float) -> "ZcdpBound":
        """Compose repetitions; the count may be fractional for schedules."""
        return ZcdpBound(self.rho * count, self.xi * count, self.is_gaussian)

    def epsilon(self, delta: float) -> float:
        """Compute the epsilon of Lemma 3.5: xi + rho + 2 sqrt(rho ln(1 / delta)), rounded up."""
        return (self.xi + self.rho + 2 * sqrt(-self.rho * log(delta))) * (1 + ROUNDING)

    def delta(self, epsilon: float) -> float:
        """Compute the delta that zCDP proves at an epsilon (Lemma 3.5).

        exp(-(epsilon - xi - rho)^2 / (4 rho)), rounded up, or 1 if epsilon is below xi + rho.
        """
        left = epsilon - (self.xi + self.rho) * (1 + ROUNDING)
        if left <= 0:
            return 1.0
        # The square may be large, so its logarithm gets the same margin as above.
        return min(1.0, exp(-(left**2) / (4 * self.rho) * (1 - ROUNDING)) * (1 + ROUNDING)) if self.rho else 0.0

    def exact_epsilon(self, delta: float) -> float:
        """Compute the exact epsilon of Gaussian noise, rounded up; requires `is_gaussian`."""
        return gaussian_epsilon(sqrt(2 * self.rho) * (1 + ROUNDING), delta)

    def exact_delta(self, epsilon: float) -> float:
        """Compute the exact delta of Gaussian noise, rounded up; requires `is_gaussian`."""
        return gaussian_delta(sqrt(2 * self.rho) * (1 + ROUNDING), epsilon)


def total_zcdp_bound(steps: Iterable[tuple[DpEvent, float]], relation: NeighboringRelation) -> ZcdpBound | None:
    """Compute the exact zCDP bound of events with counts; None if an event has none."""
    counts: defaultdict[DpEvent, float] = defaultdict(int)
    for event, count in steps:
        counts[event] += count
    total = ZcdpBound(0.0, is_gaussian=True)
    for event, count in counts.items():
        one = zcdp_bound(without_no_ops(event), relation)
        if one is None:
            return None
        total = total + one.times(count)
    return total


@singledispatch
def zcdp_bound(event: DpEvent, relation: NeighboringRelation) -> ZcdpBound | None:
    """Compute the zCDP bound of one event; None if none is proven."""
    del event, relation
    return None


@zcdp_bound.register
def _(event: NoOp, relation: NeighboringRelation) -> ZcdpBound | None:
    del event, relation  # nothing is released
    return ZcdpBound(0.0, is_gaussian=True)


@zcdp_bound.register
def _(
    event: Gaussian | AdaptiveClipping | DiscreteGaussian | TreeAggregation, relation: NeighboringRelation
) -> ZcdpBound | None:
    # Bun & Steinke 2016, Proposition 1.6: the divergence of Gaussian noise is exactly rho a, so any order yields rho.
    order = np.array([2.0])
    rho = float(rdp(event, order, relation)[0]) / 2
    return ZcdpBound(rho, is_gaussian=not isinstance(event, DiscreteGaussian))


@zcdp_bound.register
def _(
    event: Laplace | DiscreteLaplace | RandomizedResponse | PermuteAndFlip | EpsilonDelta, relation: NeighboringRelation
) -> ZcdpBound | None:
    if isinstance(event, EpsilonDelta) and event.delta:
        return None
    # Bun & Steinke 2016, Proposition 1.4: pure epsilon-DP.
    return ZcdpBound(worst_loss(event, relation) ** 2 / 2)


@zcdp_bound.register
def _(event: Exponential, relation: NeighboringRelation) -> ZcdpBound | None:
    del relation  # the scores' sensitivity was taken under it
    # Cesar & Rogers 2021 (arXiv 2004.07223), for every mechanism of bounded range.
    return ZcdpBound(event.epsilon**2 / 8)


@zcdp_bound.register
def _(event: Zcdp, relation: NeighboringRelation) -> ZcdpBound | None:
    del relation  # stated by the caller for it
    return None if event.delta else ZcdpBound(event.rho, event.xi)


@zcdp_bound.register
def _(event: PoissonSampled | SampledWithoutReplacement, relation: NeighboringRelation) -> ZcdpBound | None:
    return zcdp_bound(event.event, relation) if event.takes_all else None


@zcdp_bound.register
def _(event: Composed | SelfComposed, relation: NeighboringRelation) -> ZcdpBound | None:
    parts = [(event.event, event.count)] if isinstance(event, SelfComposed) else [(part, 1) for part in event.events]
    return total_zcdp_bound(parts, relation)


@zcdp_bound.register
def _(event: Decay, relation: NeighboringRelation) -> ZcdpBound | None:
    return total_zcdp_bound([(step, halves / 2) for step, halves in scheduled_events(event)], relation)


@zcdp_bound.register
def _(event: GroupPrivacy, relation: NeighboringRelation) -> ZcdpBound | None:
    return zcdp_bound(for_group(event.event, event.group_size), relation)
