"""Largest privacy loss of an event, exact for what people write in decimals (ADR 0046).

A loss is a whole number of units of 1 / PER_NAT nats. Numbers of an event are read as the shortest decimals of their
floats, which people type; a loss that is no such fraction is rounded up.
"""

from collections import Counter
from fractions import Fraction
from functools import singledispatch
from math import log, log1p
from typing import Final

import numpy as np

from app.accounting.base_rdp import sensitivity
from app.accounting.curves import SAFETY
from app.accounting.events import (
    Composed,
    Decay,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    GroupPrivacy,
    Laplace,
    NeighboringRelation,
    NoOp,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    SelfComposed,
    child_events,
    mechanisms_in,
    scheduled_events,
)
from app.accounting.exact_losses import PER_NAT, UNBOUNDED, exact, pure_nats, pure_units
from app.accounting.formulas.numerics import TINY, log1p_u
from app.accounting.poisson_rdp import is_amplified

ELEMENTARY: Final = 1 + Fraction(1, 2**46)
"""Factor that rounds up a logarithm of a product and a sum: their relative error is below 2^-50."""


def worst_loss(event: DpEvent, relation: NeighboringRelation) -> float:
    """Compute the largest privacy loss of an event in nats, rounded up; infinite as `pure_loss` is unbounded."""
    return pure_nats(pure_loss(event, relation))


@singledispatch
def pure_loss(event: DpEvent, relation: NeighboringRelation) -> int:  # noqa: ARG001 - dispatch looks at it
    """Compute the largest privacy loss of an event, its divergence of order infinity, in units of 1 / PER_NAT nats.

    Of an event with a delta of its own it is that of what is released unless it fails (docs/adr/0007). It is UNBOUNDED
    for Gaussian noise and where no bound is known.
    """
    return UNBOUNDED


@pure_loss.register
def _(event: NoOp, relation: NeighboringRelation) -> int:
    del event, relation  # nothing is released
    return 0


@pure_loss.register
def _(event: Laplace, relation: NeighboringRelation) -> int:
    if event.epsilon is not None:
        return pure_units(event.epsilon)
    assert event.noise_multiplier is not None, "an event has one of its two forms"
    return pure_units(Fraction(sensitivity(relation)) / exact(event.noise_multiplier))


@pure_loss.register
def _(event: DiscreteLaplace, relation: NeighboringRelation) -> int:
    return pure_units(exact(event.noise_parameter) * event.sensitivity * Fraction(sensitivity(relation)))


@pure_loss.register
def _(event: Exponential | PermuteAndFlip | EpsilonDelta, relation: NeighboringRelation) -> int:
    del relation  # stated by the caller for it
    return pure_units(event.epsilon)


@pure_loss.register
def _(event: RandomizedResponse, relation: NeighboringRelation) -> int:
    # Probabilities times k: the true value has k - (k - 1) p, each other one p, each value of a special record 1.
    # Near 1 the float and what is written differ by a part of 1 - p: the smaller one loses more.
    k, p = event.num_buckets, min(exact(event.noise_parameter), Fraction(event.noise_parameter))
    kept, other = log1p((k - 1) * (1 - p)), log(p) if 2 * p < 1 else log1p(p - 1)
    loss = max(kept, -other) if relation is NeighboringRelation.REPLACE_SPECIAL else kept - other
    return pure_units(Fraction(loss) * ELEMENTARY)


@pure_loss.register
def _(event: Composed, relation: NeighboringRelation) -> int:
    return min(sum(count * pure_loss(part, relation) for part, count in Counter(event.events).items()), UNBOUNDED)


@pure_loss.register
def _(event: SelfComposed, relation: NeighboringRelation) -> int:
    return min(event.count * pure_loss(event.event, relation), UNBOUNDED)


@pure_loss.register
def _(event: Decay, relation: NeighboringRelation) -> int:
    halves = sum(count * pure_loss(step, relation) for step, count in scheduled_events(event))
    return pure_units(Fraction(halves, 2 * PER_NAT) * Fraction(SAFETY))


@pure_loss.register
def _(event: GroupPrivacy, relation: NeighboringRelation) -> int:
    # Records are exchanged one after the other; each changes no probability by more than the factor of one record.
    if event.group_size > 1 and _samples_what_may_fail(event):  # the group's delta is found for another loss
        return UNBOUNDED
    return min(event.group_size * pure_loss(event.event, relation), UNBOUNDED)


def _samples_what_may_fail(event: DpEvent) -> bool:
    if isinstance(event, PoissonSampled):
        return any(isinstance(each, EpsilonDelta) and each.delta for each in mechanisms_in(event))
    return any(map(_samples_what_may_fail, child_events(event)))


@pure_loss.register
def _(event: SampledWithoutReplacement, relation: NeighboringRelation) -> int:
    # Given the sample, one replaced record changes no probability by more than the factor of the event inside.
    return pure_loss(event.event, relation) if relation is NeighboringRelation.REPLACE_ONE else UNBOUNDED


@pure_loss.register
def _(event: PoissonSampled, relation: NeighboringRelation) -> int:
    # Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorem 8: adding a record has the larger loss.
    loss = pure_loss(event.event, relation) if event.sampling_probability else 0
    if loss in (0, UNBOUNDED) or event.takes_all or not is_amplified(event.event, relation):
        return loss
    q = max(event.sampling_probability, TINY)  # a smaller float has few digits: another number is written
    sampled = float(log1p_u(q, np.array([pure_nats(loss)]))[0])
    return min(pure_units(Fraction(max(sampled, TINY)) * ELEMENTARY), loss)  # a positive loss never rounds to zero
