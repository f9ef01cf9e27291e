"""Rényi divergence of mechanisms without sampling, one formula per event type."""

from functools import singledispatch
from math import fsum, sqrt

import numpy as np

from app.accounting.curves import Floats
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
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
    RandomizedResponse,
    SelfComposed,
    TreeAggregation,
    Zcdp,
    type_name,
)
from app.accounting.formulas.discrete_laplace import discrete_laplace_rdp
from app.accounting.formulas.gaussian_mixture import Mixture, gaussian_mixture_rdp, replaced_mixture_rdp
from app.accounting.formulas.mechanisms import (
    bounded_range_rdp,
    gaussian_rdp,
    laplace_rdp,
    permute_and_flip_rdp,
    pure_dp_rdp,
    randomized_response_rdp,
    tree_aggregation_rdp,
)


@singledispatch
def rdp(event: DpEvent, orders: Floats, relation: NeighboringRelation) -> Floats:
    """Compute the Rényi divergence of an event that a single formula covers.

    Composite events are priced in integer units instead: see `app.accounting.rdp.curve_over`.

    Returns:
        (n_orders,) nats at orders above 1: an upper bound with relative error at most 1e-10, possibly infinite.

    Raises:
        UnsupportedEventError: no proven formula covers this event under this relation.
    """
    raise UnsupportedEventError(
        f"There is no single formula for {type_name(event)} under {relation} over {orders.size} orders."
    )


@singledispatch
def gaussian_noise(event: DpEvent, relation: NeighboringRelation) -> float:
    """Compute the noise multiplier of the single Gaussian release equivalent to an event.

    Several Gaussian releases of the same records, each scaled to unit noise, are one release of a longer vector whose
    squared sensitivity is the sum of theirs: z = (sum of z_i^-2)^(-1/2). Adaptive queries change nothing: the pair of
    Gaussians at the largest distance dominates each release, and products of dominating pairs dominate adaptive
    compositions. Sources: McMahan et al. 2018 (arXiv 1812.06210), section 3; Zhu, Dong, Wang 2022 (arXiv 2106.08567),
    Theorem 10, for adaptive queries.

    Returns:
        Standard deviation of the noise divided by the L2 sensitivity under `relation`.

    Raises:
        UnsupportedEventError: some part of the event is not a Gaussian release.
    """
    raise UnsupportedEventError(
        f"{type_name(event)} is no Gaussian release under {relation}: there is no bound for it when it is composed "
        "with others on a sample, which may hold gaussian and adaptive_clipping events, composed or self_composed."
    )


def sensitivity(relation: NeighboringRelation) -> float:
    """Compute the maximum change of a clipped sum in clipping norms.

    Replacing a record removes one vector and adds another; a special record contributes zero.
    """
    return 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0


@gaussian_noise.register
def _(event: Gaussian, relation: NeighboringRelation) -> float:
    # One record can move a micro-batch's clipped mean between any two points of the ball, under every relation.
    return event.noise_multiplier / (2.0 if event.clipped == "microbatch" else sensitivity(relation))


@gaussian_noise.register
def _(event: AdaptiveClipping, relation: NeighboringRelation) -> float:
    # Andrew et al. 2021 (arXiv 1905.03871), Theorem 1: the count of b_i - 1/2 has half the sensitivity of a count.
    # Replacing a record doubles the sensitivity of both: from -1/2 to 1/2 is 1.
    z = event.noise_multiplier
    if z is None:
        assert event.gradient_noise_multiplier is not None, "an event has one of its two forms"
        assert event.count_noise_stddev is not None, "an event has one of its two forms"
        z = _combined_noise_multiplier([event.gradient_noise_multiplier, 2 * event.count_noise_stddev])
    return z / sensitivity(relation)


@gaussian_noise.register
def _(event: Composed, relation: NeighboringRelation) -> float:
    return _combined_noise_multiplier([gaussian_noise(part, relation) for part in event.events])


@gaussian_noise.register
def _(event: SelfComposed, relation: NeighboringRelation) -> float:
    return gaussian_noise(event.event, relation) / sqrt(event.count)


@gaussian_noise.register
def _(event: GroupPrivacy, relation: NeighboringRelation) -> float:
    # Contributions add up: the sum moves at most `group_size` times as far.
    return gaussian_noise(event.event, relation) / event.group_size


def _combined_noise_multiplier(noise_multipliers: list[float]) -> float:
    return 1 / sqrt(fsum(z**-2 for z in noise_multipliers))


@rdp.register
def _(event: NoOp, orders: Floats, relation: NeighboringRelation) -> Floats:
    del event, relation  # nothing is released
    return np.zeros_like(orders)


@rdp.register
def _(event: Gaussian | AdaptiveClipping, orders: Floats, relation: NeighboringRelation) -> Floats:
    return gaussian_rdp(gaussian_noise(event, relation), orders)


@rdp.register
def _(event: Laplace, orders: Floats, relation: NeighboringRelation) -> Floats:
    return laplace_rdp(laplace_noise(event, relation), orders)


def laplace_noise(event: Laplace, relation: NeighboringRelation) -> float:
    """Compute the scale of Laplace noise divided by the L1 sensitivity under a relation."""
    if event.epsilon is not None:
        return 1 / event.epsilon
    assert event.noise_multiplier is not None, "an event has one of its two forms"
    return event.noise_multiplier / sensitivity(relation)


@rdp.register
def _(event: DiscreteGaussian, orders: Floats, relation: NeighboringRelation) -> Floats:
    return gaussian_rdp(event.noise_multiplier / sensitivity(relation), orders)


@rdp.register
def _(event: DiscreteLaplace, orders: Floats, relation: NeighboringRelation) -> Floats:
    return discrete_laplace_rdp(event.noise_parameter, event.sensitivity * int(sensitivity(relation)), orders)


def mixture_of(event: MixtureOfGaussians, taken: float = 1.0) -> Mixture:
    """Build the distances of a mixture event for records that are taken with a probability."""
    return Mixture.of(event.standard_deviation, event.sensitivities, event.sampling_probs, taken)


@rdp.register
def _(event: MixtureOfGaussians, orders: Floats, relation: NeighboringRelation) -> Floats:
    if relation is NeighboringRelation.REPLACE_ONE:
        return replaced_mixture_rdp(mixture_of(event), orders)
    return gaussian_mixture_rdp(mixture_of(event), orders)


@rdp.register
def _(event: RandomizedResponse, orders: Floats, relation: NeighboringRelation) -> Floats:
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(
            "randomized_response is not supported under add_or_remove_one: every record answers, so a missing one "
            "shows. Declare replace_one, or replace_special where a missing record answers evenly."
        )
    special = relation is NeighboringRelation.REPLACE_SPECIAL
    return randomized_response_rdp(event.noise_parameter, event.num_buckets, orders, special=special)


@rdp.register
def _(event: TreeAggregation, orders: Floats, relation: NeighboringRelation) -> Floats:
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(
            "tree_aggregation is not supported under add_or_remove_one: without a record the steps of those after it "
            "would shift. Declare replace_special, where a missing record contributes zero, or replace_one."
        )
    return tree_aggregation_rdp(event.noise_multiplier / sensitivity(relation), event.step_counts, orders)


@rdp.register
def _(event: Exponential, orders: Floats, relation: NeighboringRelation) -> Floats:
    del relation  # the scores' sensitivity was taken under it
    return bounded_range_rdp(event.epsilon, orders)


@rdp.register
def _(event: PermuteAndFlip, orders: Floats, relation: NeighboringRelation) -> Floats:
    del relation  # the scores' sensitivity was taken under it
    return permute_and_flip_rdp(event.epsilon, orders)


@rdp.register
def _(event: EpsilonDelta, orders: Floats, relation: NeighboringRelation) -> Floats:
    # Every (epsilon, delta)-DP mechanism can be simulated by one that fails with probability delta and is randomized
    # response with epsilon otherwise (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776). The curve stores delta separately.
    del relation  # stated by the caller for it
    return pure_dp_rdp(event.epsilon, orders)


@rdp.register
def _(event: Zcdp, orders: Floats, relation: NeighboringRelation) -> Floats:
    # Bun, Steinke 2016 (arXiv 1605.02065), Definition 1.1: the divergence is at most xi + rho a at every order a.
    del relation  # stated by the caller for it
    return event.xi + event.rho * orders
