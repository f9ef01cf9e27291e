"""Exact rho of zCDP and mu of Gaussian DP of an event, for what people write in decimals (ADR 0052).

Both are in integers, which add up exactly: rho, and the square of mu. Numbers of an event are read as the shortest
decimals of their floats; a loss that is no whole number of units is rounded up.
"""

from collections import Counter
from fractions import Fraction
from functools import singledispatch
from math import ceil
from typing import NamedTuple

from app.accounting.base_rdp import sensitivity
from app.accounting.curves import SAFETY
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DiscreteGaussian,
    DpEvent,
    Gaussian,
    GroupPrivacy,
    NeighboringRelation,
    NoOp,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    Zcdp,
    mechanisms_in,
    scheduled_events,
)
from app.accounting.exact_losses import PER_NAT, UNBOUNDED_LOSSES, exact
from app.accounting.formulas.noise_schedules import EXACT_STEPS
from app.accounting.pure_losses import pure_loss


class ConcentratedLosses(NamedTuple):
    """Losses in units of 1 / PER_NAT, at most those of `UNBOUNDED_LOSSES`, as an event without one has.

    Args:
        rho: the event is rho-zCDP, unless it fails with its own delta (Bun, Steinke 2016, arXiv 1605.02065).
        mu_squared: the event is mu-Gaussian DP (Dong, Roth, Su 2019, arXiv 1905.02383).
    """

    rho: int = UNBOUNDED_LOSSES.rho
    mu_squared: int = UNBOUNDED_LOSSES.mu_squared

    @classmethod
    def gaussian(cls, mu_squared: Fraction) -> "ConcentratedLosses":
        """Get those of Gaussian noise: rho is mu^2 / 2 (Bun, Steinke 2016, Proposition 1.6)."""
        return cls(ceil(mu_squared / 2 * PER_NAT), ceil(mu_squared * PER_NAT)).repeated(1)

    def repeated(self, count: int) -> "ConcentratedLosses":
        """Multiply both."""
        pairs = zip(self, _UNBOUNDED, strict=True)
        return ConcentratedLosses(*(min(each * count, most) for each, most in pairs))

    def plus(self, other: "ConcentratedLosses") -> "ConcentratedLosses":
        """Add both (Bun, Steinke 2016, Lemma 2.3; Dong, Roth, Su 2019, Corollary 3.3)."""
        triples = zip(self, other, _UNBOUNDED, strict=True)
        return ConcentratedLosses(*(min(each + one, most) for each, one, most in triples))


_UNBOUNDED = ConcentratedLosses()


@singledispatch
def concentrated_losses(event: DpEvent, relation: NeighboringRelation) -> ConcentratedLosses:
    """Compute rho and mu^2 of an event; unbounded where it has none that is exact."""
    return ConcentratedLosses(0, 0) if pure_loss(event, relation) == 0 else _UNBOUNDED


@concentrated_losses.register
def _(event: NoOp, relation: NeighboringRelation) -> ConcentratedLosses:
    del event, relation  # nothing is released
    return ConcentratedLosses(0, 0)


@concentrated_losses.register
def _(event: Gaussian, relation: NeighboringRelation) -> ConcentratedLosses:
    # One record can move a micro-batch's clipped mean between any two points of the ball, under every relation.
    moved = 2 if event.clipped == "microbatch" else Fraction(sensitivity(relation))
    return ConcentratedLosses.gaussian((moved / exact(event.noise_multiplier)) ** 2)


@concentrated_losses.register
def _(event: AdaptiveClipping, relation: NeighboringRelation) -> ConcentratedLosses:
    # As for `gaussian_noise`: sum and count are one Gaussian release of a longer vector.
    parts = [event.noise_multiplier, event.gradient_noise_multiplier]
    noises = [exact(each) for each in parts if each is not None]
    noises += [] if event.count_noise_stddev is None else [2 * exact(event.count_noise_stddev)]
    moved = Fraction(sensitivity(relation))
    return ConcentratedLosses.gaussian(sum(((moved / each) ** 2 for each in noises), Fraction(0)))


@concentrated_losses.register
def _(event: DiscreteGaussian, relation: NeighboringRelation) -> ConcentratedLosses:
    # Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), Theorem 14. It is not mu-Gaussian DP for the mu of the noise.
    rho = ConcentratedLosses.gaussian((Fraction(sensitivity(relation)) / exact(event.noise_multiplier)) ** 2).rho
    return ConcentratedLosses(rho=rho)


@concentrated_losses.register
def _(event: Zcdp, relation: NeighboringRelation) -> ConcentratedLosses:
    del relation  # stated by the caller for it
    if event.xi:
        return _UNBOUNDED
    return ConcentratedLosses(rho=ceil(exact(event.rho) * PER_NAT))


@concentrated_losses.register
def _(event: Composed, relation: NeighboringRelation) -> ConcentratedLosses:
    total = ConcentratedLosses(0, 0)
    for part, count in Counter(event.events).items():
        total = total.plus(concentrated_losses(part, relation).repeated(count))
    return total


@concentrated_losses.register
def _(event: SelfComposed, relation: NeighboringRelation) -> ConcentratedLosses:
    return concentrated_losses(event.event, relation).repeated(event.count)


@concentrated_losses.register
def _(event: PoissonSampled | SampledWithoutReplacement, relation: NeighboringRelation) -> ConcentratedLosses:
    return concentrated_losses(event.event, relation) if event.takes_all else _UNBOUNDED


@concentrated_losses.register
def _(event: Decay, relation: NeighboringRelation) -> ConcentratedLosses:
    # Knots of a long schedule have noises of their own, with the rounding errors of floats.
    halves, rounding = ConcentratedLosses(0, 0), Fraction(SAFETY if event.steps > EXACT_STEPS else 1)
    for step, count in scheduled_events(event):
        halves = halves.plus(concentrated_losses(step, relation).repeated(count))
    pairs = zip(halves, _UNBOUNDED, strict=True)
    return ConcentratedLosses(*(each if each == most else ceil(each * rounding / 2) for each, most in pairs))


@concentrated_losses.register
def _(event: GroupPrivacy, relation: NeighboringRelation) -> ConcentratedLosses:
    # Bun, Steinke 2016, Proposition 1.9: k^2 rho. Dong, Roth, Su 2019, Theorem 2.14: k mu.
    if event.group_size > 1 and any(isinstance(each, Zcdp) and each.delta for each in mechanisms_in(event)):
        return _UNBOUNDED
    return concentrated_losses(event.event, relation).repeated(event.group_size**2)
