"""Convert record-level guarantees to privacy units that own several records."""

from collections import defaultdict
from dataclasses import astuple, replace
from functools import singledispatch
from itertools import product
from math import exp, expm1, fsum, inf, log, log1p
from typing import Final

import numpy as np
import scipy

from app.accounting.base_rdp import gaussian_noise
from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events import (
    MAX_SENSITIVITIES,
    MIN_NOISE_MULTIPLIER,
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
    MixtureOfGaussians,
    NeighboringRelation,
    NoOp,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SelfComposed,
    TreeAggregation,
    Zcdp,
    is_gaussian_sum,
    type_name,
)
from app.accounting.formulas.composition import TAIL_ERROR
from app.accounting.formulas.numerics import TINY

ADDED: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
_LIKELY: Final = 1e-20
_LEVELS: Final = 40
"""Probability of a number of draws from which on it is likely, and levels over such numbers."""

_TOO_MANY_SUMS: Final = f"it has more than {MAX_SENSITIVITIES} sensitivities."


def for_group(event: DpEvent, size: int) -> DpEvent:
    """Convert an event that protects a record to one that protects a group.

    Its parameters treat each record as a unit; the result's cost per record bounds the cost per unit of up to `size`
    records.

    Raises:
        UnsupportedEventError: no sound group bound is known, or it exceeds an event's bounds.
    """
    try:
        return event if size == 1 else _in_group(event, size)
    except InvalidEventError as error:
        raise UnsupportedEventError(
            f"A group of {size} records with a {type_name(event)} event is not supported: described as an event that "
            f"protects the whole group, {error}"
        ) from error


def strip_group(event: DpEvent) -> DpEvent:
    """Convert nested group-privacy events to the unit-level event."""
    while isinstance(event, GroupPrivacy):
        event = for_group(event.event, event.group_size)
    return event


def sampled_mixture(event: PoissonSampled) -> MixtureOfGaussians | None:
    """Describe a Gaussian sum on a Poisson sample by the distance that a record moves it; None for other events.

    A record that is not on the sample moves it by 0.

    Raises:
        UnsupportedEventError: its releases have too little noise together.
    """
    inner, q = strip_group(event.event), event.sampling_probability
    if isinstance(inner, MixtureOfGaussians):
        shares = tuple(q * share for share in inner.sampling_probs)
        return MixtureOfGaussians(inner.standard_deviation, (0.0, *inner.sensitivities), (1 - q, *shares))
    if not is_gaussian_sum(inner):
        return None
    z = gaussian_noise(inner, ADDED)
    if z < MIN_NOISE_MULTIPLIER:
        raise UnsupportedEventError(
            f"The releases of one sample have together a noise multiplier of {z:.3g}, but it must be at least "
            f"{MIN_NOISE_MULTIPLIER:g}."
        )
    return MixtureOfGaussians(z, (0.0, 1.0), (1 - q, q))


@singledispatch
def _in_group(event: DpEvent, size: int) -> DpEvent:
    raise UnsupportedEventError(
        f"There is no bound for groups of {size} records where a {type_name(event)} event protects one."
    )


@_in_group.register
def _(event: NoOp, size: int) -> DpEvent:
    del size  # none of the records is released
    return event


@_in_group.register
def _(event: Gaussian | TreeAggregation, size: int) -> DpEvent:
    # Contributions add up: the sum, or the vector of a tree's nodes, moves at most `size` times as far.
    return replace(event, noise_multiplier=event.noise_multiplier / size)


@_in_group.register
def _(event: Laplace, size: int) -> DpEvent:
    # As above.
    if event.noise_multiplier is None:
        assert event.epsilon is not None, "an event has one of its two forms"
        return Laplace(epsilon=event.epsilon * size)
    return Laplace(event.noise_multiplier / size)


@_in_group.register
def _(event: DiscreteGaussian, size: int) -> DpEvent:
    # As above, with the same sigma.
    moved = None if event.sensitivity is None else event.sensitivity * size
    return DiscreteGaussian(event.noise_multiplier / size, moved)


@_in_group.register
def _(event: AdaptiveClipping, size: int) -> DpEvent:
    # As above, for whichever noises are given.
    return AdaptiveClipping(*(None if noise is None else noise / size for noise in astuple(event)))


@_in_group.register
def _(event: RandomizedResponse, size: int) -> DpEvent:
    # Each record is randomized independently.
    return SelfComposed(event, size)


@_in_group.register
def _(event: DiscreteLaplace, size: int) -> DpEvent:
    # Contributions add up: the sum moves at most `size` times as far, with the same noise.
    return DiscreteLaplace(event.noise_parameter, event.sensitivity * size)


@_in_group.register
def _(event: MixtureOfGaussians, size: int) -> DpEvent:
    # Each record draws its distance by its own coins, and contributions add up: distances are sums of `size` draws.
    total = fsum(event.sampling_probs)
    drawn = defaultdict[float, float](float)
    for distance, share in zip(event.sensitivities, event.sampling_probs, strict=True):
        if share:
            drawn[distance] += share / total
    if len(drawn) == 1:
        return MixtureOfGaussians(event.standard_deviation, (size * event.largest,), (1.0,))
    if size >= MAX_SENSITIVITIES:  # two distances alone have size + 1 sums
        if len(drawn) > 2 or 0.0 not in drawn:  # noqa: PLR2004 - none, or one
            raise InvalidEventError(_TOO_MANY_SUMS)
        return _many_draws(event.standard_deviation, event.largest, drawn[event.largest], size)
    sums = {0.0: 1.0}
    for _ in range(size):
        longer = defaultdict[float, float](float)
        for (one, share), (other, further) in product(sums.items(), drawn.items()):
            longer[one + other] += share * further
        sums = longer
        if len(sums) > MAX_SENSITIVITIES:
            raise InvalidEventError(_TOO_MANY_SUMS)
    return MixtureOfGaussians(event.standard_deviation, tuple(sums), tuple(sums.values()))


@_in_group.register
def _(event: Exponential | PermuteAndFlip, size: int) -> DpEvent:
    # Scores, and so the range of the loss, grow by a factor of at most `size`.
    return replace(event, epsilon=size * event.epsilon)


@_in_group.register
def _(event: Zcdp, size: int) -> DpEvent:
    if event.delta:
        raise UnsupportedEventError(
            "group_privacy is not supported for a zcdp event with a delta: what a group loses outside of the event of "
            "probability delta is not known. State the guarantee for the group itself."
        )
    # Bun, Steinke 2016 (arXiv 1605.02065), on group privacy: rho k^2 and xi k (1 + 1/2 + ... + 1/k).
    harmonic = float(scipy.special.digamma(size + 1)) + np.euler_gamma
    return Zcdp(rho=event.rho * size * size, xi=event.xi * size * harmonic)


@_in_group.register
def _(event: EpsilonDelta, size: int) -> DpEvent:
    # Dwork, Roth 2014, section 2.3 with the sum kept: k epsilon, and delta (1 + e^eps + ... + e^((k-1) eps)).
    if event.delta == 0:
        return EpsilonDelta(size * event.epsilon)
    if event.epsilon == 0:
        return EpsilonDelta(0, size * event.delta)
    log_sum = (size - 1) * event.epsilon + log(expm1(-size * event.epsilon) / expm1(-event.epsilon))
    log_delta = log(event.delta) + log_sum
    return EpsilonDelta(size * event.epsilon, exp(log_delta) if log_delta < 0 else inf)


def _many_draws(standard_deviation: float, distance: float, probability: float, size: int) -> MixtureOfGaussians:
    """Describe the sum of `size` draws of a distance or 0 by few distances, to which others are raised.

    Moving farther dominates (`app.accounting.formulas.gaussian_mixture`). Levels are even over the likely numbers, and
    their distances grow beyond them.
    """
    counts = np.arange(1, size + 1)
    at_least = scipy.special.bdtrc(counts - 1, size, probability)
    low = int(np.argmax(scipy.special.bdtr(counts, size, probability) >= _LIKELY)) + 1
    high = max(low, int(np.count_nonzero(at_least >= _LIKELY)))
    even, growing = np.linspace(low, high, _LEVELS), np.geomspace(high, size, MAX_SENSITIVITIES - 1 - _LEVELS)
    levels = np.unique(np.rint(np.concatenate([even, growing])).astype(int))
    # Numbers above a level are raised to the next one. With errors in favor of larger distances: rounded up.
    above = at_least[np.append(0, levels[:-1])] * (1 + TAIL_ERROR)
    falling = TINY * np.arange(levels.size, 0, -1)
    reached = np.append(1.0, np.minimum(np.maximum(above, falling), 1.0))
    probabilities = reached - np.append(reached[1:], 0.0)
    return MixtureOfGaussians(standard_deviation, (0.0, *(distance * levels).tolist()), tuple(probabilities.tolist()))


@_in_group.register
def _(event: PoissonSampled, size: int) -> DpEvent:
    # Ganesh 2024 (arXiv 2401.10294): the sampled ones of a unit's records move a Gaussian sum by at most their number.
    mixture = None if event.takes_all else sampled_mixture(event)
    if mixture is not None:
        return for_group(mixture, size)
    # A sample includes at least one of the unit's records with probability 1 - (1 - q)^k. Given that, the output is a
    # mixture over the subset that was sampled. Both directions of the divergence are convex in that mixture, so the
    # worst subset of up to k records bounds them.
    q = event.sampling_probability
    taken = 1.0 if q == 1 else min(-expm1(size * log1p(-q)), 1 - 2**-53)  # rounding must not turn sampling off
    return PoissonSampled(taken, for_group(event.event, size))


@_in_group.register
def _(event: Composed, size: int) -> DpEvent:
    return Composed(tuple(for_group(part, size) for part in event.events))


@_in_group.register
def _(event: SelfComposed | RepeatAndSelect, size: int) -> DpEvent:
    # Selection accepts any bound on one run.
    return replace(event, event=for_group(event.event, size))


@_in_group.register
def _(event: Decay, size: int) -> DpEvent:
    # Each step is one of a group. On a sample it has another form, without the noise multiplier that decays.
    inner = event.event
    return replace(
        event, event=GroupPrivacy(size, inner) if isinstance(inner, PoissonSampled) else for_group(inner, size)
    )


@_in_group.register
def _(event: GroupPrivacy, size: int) -> DpEvent:
    return for_group(event.event, size * event.group_size)
