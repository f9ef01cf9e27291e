"""Rényi divergence of mechanisms that run on a Poisson sample."""

from functools import singledispatch

import numpy as np

from app.accounting.base_rdp import gaussian_noise, laplace_noise, mixture_of, rdp
from app.accounting.curves import Floats
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    MIN_NOISE_MULTIPLIER,
    AdaptiveClipping,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NeighboringRelation,
    PermuteAndFlip,
    PoissonSampled,
    SelfComposed,
    Zcdp,
    batch_in,
    is_noisy_sum,
    type_name,
)
from app.accounting.formulas.amplification import (
    sampled_discrete_gaussian_rdp,
    sampled_laplace_rdp,
    sampled_pure_dp_rdp,
)
from app.accounting.formulas.discrete_laplace import sampled_discrete_laplace_rdp
from app.accounting.formulas.gaussian_mixture import gaussian_mixture_rdp
from app.accounting.formulas.mechanisms import bounded_range_rdp, noise_of_pure_loss
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from app.accounting.group_privacy import strip_group


@rdp.register
def _(event: PoissonSampled, orders: Floats, relation: NeighboringRelation) -> Floats:
    if event.takes_all:
        return rdp(event.event, orders, relation)
    assert is_amplified(event.event, relation), "other samples are priced from the curve of what happens to them"
    return poisson_sampled_rdp(strip_group(event.event), event.sampling_probability, orders)


def is_amplified(event: DpEvent, relation: NeighboringRelation) -> bool:
    """Check whether the output hides which neighbour the Poisson sample was drawn from.

    Then the outputs are a mixture against one of its own parts, as `poisson_sampled_rdp` requires. True under
    add_or_remove_one: the other neighbour lacks the record in any case. Under replace_special it is true of a noisy
    sum, to which a special record contributes zero or is left out of its micro-batch. The output of other events may
    show who was sampled, for example clients that answer a server directly. Under replace_one each neighbour has a
    record of its own, so both are mixtures. See docs/adr/0025.

    Raises:
        UnsupportedEventError: the event holds a batch out of a known number of records.
    """
    batch = batch_in(event)
    if batch is not None:
        raise UnsupportedEventError(
            f"{type_name(batch)} on a Poisson sample is not supported under {relation}: it is drawn out of a known "
            "number of records, and a Poisson sample has a random number of them."
        )
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return True
    return relation is NeighboringRelation.REPLACE_SPECIAL and is_noisy_sum(event)


@singledispatch
def poisson_sampled_rdp(event: DpEvent, sampling_probability: float, orders: Floats) -> Floats:
    """Compute the Rényi divergence of an event on a Poisson sample under add_or_remove_one.

    It also holds under replace_special if `is_amplified`; arguments and errors are as for `rdp`.
    """
    raise UnsupportedEventError(
        f"There is no bound for Poisson sampling of {type_name(event)} with probability {sampling_probability:g} over "
        f"{orders.size} orders; a poisson_sampled event may hold a gaussian or adaptive_clipping event, several of "
        "these composed, a laplace, discrete_gaussian, discrete_laplace, mixture_of_gaussians, exponential, "
        "permute_and_flip or epsilon_delta event, or the group_privacy of one of these under add_or_remove_one, "
        "anything under replace_special and replace_one."
    )


@poisson_sampled_rdp.register
def _(
    event: Gaussian | AdaptiveClipping | Composed | SelfComposed, sampling_probability: float, orders: Floats
) -> Floats:
    z = gaussian_noise(event, NeighboringRelation.ADD_OR_REMOVE_ONE)
    if z < MIN_NOISE_MULTIPLIER / 2:  # the minimum of one mechanism with doubled sensitivity
        raise UnsupportedEventError(
            f"The releases of one sample have together a noise multiplier of {z:.3g}: less than the least that one "
            f"mechanism may have, {MIN_NOISE_MULTIPLIER:g}, with its sensitivity doubled."
        )
    return sampled_gaussian_rdp(sampling_probability, z, orders)


@poisson_sampled_rdp.register
def _(event: Laplace, sampling_probability: float, orders: Floats) -> Floats:
    return sampled_laplace_rdp(
        sampling_probability, laplace_noise(event, NeighboringRelation.ADD_OR_REMOVE_ONE), orders
    )


@poisson_sampled_rdp.register
def _(event: DiscreteGaussian, sampling_probability: float, orders: Floats) -> Floats:
    return sampled_discrete_gaussian_rdp(sampling_probability, event.noise_multiplier, orders)


@poisson_sampled_rdp.register
def _(event: DiscreteLaplace, sampling_probability: float, orders: Floats) -> Floats:
    return sampled_discrete_laplace_rdp(sampling_probability, event.noise_parameter, event.sensitivity, orders)


@poisson_sampled_rdp.register
def _(event: MixtureOfGaussians, sampling_probability: float, orders: Floats) -> Floats:
    return gaussian_mixture_rdp(mixture_of(event, sampling_probability), orders)


@poisson_sampled_rdp.register
def _(event: PermuteAndFlip, sampling_probability: float, orders: Floats) -> Floats:
    # A pair that dominates the mechanism dominates it on a sample too (Zhu, Dong, Wang 2022, Theorem 11).
    return sampled_laplace_rdp(sampling_probability, noise_of_pure_loss(event.epsilon), orders)


@poisson_sampled_rdp.register
def _(event: Exponential, sampling_probability: float, orders: Floats) -> Floats:
    # The sampled pair mixes the unsampled pair with a pair of equals: by quasi-convexity its divergence is no larger.
    sampled = sampled_pure_dp_rdp(sampling_probability, event.epsilon, orders)
    return np.minimum(sampled, bounded_range_rdp(event.epsilon, orders))


@poisson_sampled_rdp.register
def _(event: EpsilonDelta, sampling_probability: float, orders: Floats) -> Floats:
    assert event.delta == 0, "a delta of its own is amplified beside the curve"
    return sampled_pure_dp_rdp(sampling_probability, event.epsilon, orders)


@poisson_sampled_rdp.register
def _(event: Zcdp, sampling_probability: float, orders: Floats) -> Floats:
    raise UnsupportedEventError(
        f"zcdp does not amplify by sampling under add_or_remove_one: that the divergence is at most {event.rho:g} a at "
        f"all of {orders.size} orders a says too little about a mechanism for a sample of probability "
        f"{sampling_probability:g}. Name the mechanism itself: gaussian or discrete_gaussian, where it adds such noise."
    )
