"""Factories of events, which describe mechanisms to the ledger.

Each raises ValueError for a number out of range, and TypeError for anything but a number.
"""

import math
from collections.abc import Sequence
from typing import Literal

from epsilon_ledger._wire.coercion import items, noise, real, whole
from epsilon_ledger._wire.events import (
    AdaptiveClippingEvent,
    ComposedEvent,
    DecayEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    EpsilonDeltaEvent,
    Event,
    ExponentialEvent,
    GaussianEvent,
    GroupPrivacyEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    NoOpEvent,
    PermuteAndFlipEvent,
    RandomizedResponseEvent,
    RepeatAndSelectEvent,
    SelfComposedEvent,
    TreeAggregationEvent,
    ZcdpEvent,
)


def no_op() -> NoOpEvent:
    """Describe a step that releases nothing, at no cost.

    Returns:
        The event for the wire.
    """
    return {"type": "no_op"}


def gaussian(noise_multiplier: float, *, clipped: Literal["example", "microbatch"] = "example") -> GaussianEvent:
    """Describe Gaussian noise on a clipped sum.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clipping norm, in [1e-3, 1e6].
        clipped: unit whose norm is clipped: one example's vector, or the mean of a micro-batch, which costs as much as
            half the noise.

    Returns:
        The event for the wire.
    """
    event: GaussianEvent = {"type": "gaussian", "noise_multiplier": noise(noise_multiplier)}
    if clipped == "microbatch":
        event["clipped"] = clipped
    return event


def laplace(noise_multiplier: float | None = None, *, epsilon: float | None = None) -> LaplaceEvent:
    """Describe Laplace noise on a sum. Give one of the two.

    Decimals add up exactly: ten releases of epsilon 0.1 are 1. A noise multiplier of 1 / 0.07 is a little more than an
    epsilon of 0.07.

    Args:
        noise_multiplier: scale of the noise divided by each record's L1 clipping norm, in [1e-3, 1e6].
        epsilon: privacy loss of one release, in [1e-6, 1e3] nats: the sum's L1 sensitivity under the population's
            neighboring relation divided by the scale.

    Returns:
        The event for the wire.
    """
    if epsilon is None:
        if noise_multiplier is None:
            raise ValueError("Give noise_multiplier or epsilon.")
        return {"type": "laplace", "noise_multiplier": noise(noise_multiplier)}
    if noise_multiplier is not None:
        raise ValueError("Give either noise_multiplier or epsilon.")
    return {"type": "laplace", "epsilon": real("epsilon", epsilon, 1e-6, 1e3)}


def discrete_gaussian(noise_multiplier: float, sensitivity: int | None = None) -> DiscreteGaussianEvent:
    """Describe discrete Gaussian noise on a sum of integers.

    Args:
        noise_multiplier: sigma of the noise divided by `sensitivity`, or without one, by each record's L2 clipping
            norm, in [1e-3, 1e6].
        sensitivity: each record's L1 clipping norm, up to 1,000,000. A plan needs it. None: not stated.

    Returns:
        The event for the wire.
    """
    event: DiscreteGaussianEvent = {"type": "discrete_gaussian", "noise_multiplier": noise(noise_multiplier)}
    if sensitivity is not None:
        event["sensitivity"] = whole("sensitivity", sensitivity)
    return event


def discrete_laplace(noise_parameter: float, sensitivity: int) -> DiscreteLaplaceEvent:
    """Describe discrete Laplace noise on a sum of integers.

    Args:
        noise_parameter: c in (0, 1e4]; the noise is x with a probability proportional to exp(-c |x|).
        sensitivity: each record's L1 clipping norm, up to 1,000,000.

    Returns:
        The event for the wire.
    """
    return {
        "type": "discrete_laplace",
        "noise_parameter": real("noise_parameter", noise_parameter, 0.0, 1e4, above=True),
        "sensitivity": whole("sensitivity", sensitivity),
    }


def randomized_response(noise_parameter: float, num_buckets: int) -> RandomizedResponseEvent:
    """Describe randomized response.

    Args:
        noise_parameter: probability of a uniformly random answer, in (0, 1].
        num_buckets: number of values, at least 2.

    Returns:
        The event for the wire.
    """
    return {
        "type": "randomized_response",
        "noise_parameter": real("noise_parameter", noise_parameter, 0.0, 1.0, above=True),
        "num_buckets": whole("num_buckets", num_buckets, 2),
    }


def exponential(epsilon: float) -> ExponentialEvent:
    """Describe the exponential mechanism, with weights exp(epsilon score / (2 sensitivity)).

    Args:
        epsilon: in (0, 1e4], under the population's neighboring relation.

    Returns:
        The event for the wire.
    """
    return {"type": "exponential", "epsilon": real("epsilon", epsilon, 0.0, 1e4, above=True)}


def permute_and_flip(epsilon: float) -> PermuteAndFlipEvent:
    """Describe permute and flip, which is report noisy max with exponential noise of mean 2 sensitivity / epsilon.

    Args:
        epsilon: in (0, 1e4], under the population's neighboring relation.

    Returns:
        The event for the wire.
    """
    return {"type": "permute_and_flip", "epsilon": real("epsilon", epsilon, 0.0, 1e4, above=True)}


def zcdp(rho: float, xi: float = 0.0) -> ZcdpEvent:
    """Describe a mechanism by its zCDP guarantee under the population's neighboring relation.

    Args:
        rho: Rényi divergence divided by the order, in (0, 1e6].
        xi: part of the divergence at every order, in [0, 1e6].

    Returns:
        The event for the wire.
    """
    event: ZcdpEvent = {"type": "zcdp", "rho": real("rho", rho, 0.0, 1e6, above=True)}
    if xi:
        event["xi"] = real("xi", xi, 0.0, 1e6)
    return event


def epsilon_delta(epsilon: float, delta: float = 0.0) -> EpsilonDeltaEvent:
    """Describe a mechanism by its (epsilon, delta) guarantee under the population's neighboring relation.

    Args:
        epsilon: in [0, 1e4].
        delta: in [0, 0.5); subtracted from the budget's delta.

    Returns:
        The event for the wire.
    """
    event: EpsilonDeltaEvent = {"type": "epsilon_delta", "epsilon": real("epsilon", epsilon, 0.0, 1e4)}
    if delta:
        event["delta"] = real("delta", delta, 0.0, 0.5, below=True)
    return event


def mixture_of_gaussians(
    standard_deviation: float, sensitivities: Sequence[float], sampling_probs: Sequence[float]
) -> MixtureOfGaussiansEvent:
    """Describe Gaussian noise on a sum to which a record contributes a vector of random size, drawn by its own coins.

    Args:
        standard_deviation: of the noise.
        sensitivities: largest L2 norms of the contribution, one for each outcome of the draw, up to 64.
        sampling_probs: probabilities of the outcomes, which sum to 1.

    Returns:
        The event for the wire.
    """
    norms, probabilities = (
        items("sensitivities", sensitivities, "[1.0]"),
        items("sampling_probs", sampling_probs, "[1.0]"),
    )
    if len(norms) != len(probabilities):
        raise ValueError("Give as many sampling_probs as sensitivities.")
    return {
        "type": "mixture_of_gaussians",
        "standard_deviation": real("standard_deviation", standard_deviation, 1e-9, 1e9),
        "sensitivities": [real("sensitivities", each, 0.0, 1e9) for each in norms],
        "sampling_probs": [real("sampling_probs", each, 0.0, 1.0) for each in probabilities],
    }


def tree_aggregation(
    noise_multiplier: float, step_counts: Sequence[int], *, completed: bool = False
) -> TreeAggregationEvent:
    """Describe DP-FTRL: one epoch of running sums from noisy binary trees.

    A trainer that completes a tree with virtual steps before a restart releases the completed tree's nodes: of 7 steps,
    a record is then in 4 nodes instead of 3. Virtual steps count.

    Args:
        noise_multiplier: standard deviation of each node's noise divided by the clipping norm, in [1e-3, 1e6].
        step_counts: steps of each tree between two restarts; a record occurs in one step of one tree.
        completed: whether virtual steps complete every tree (Kairouz et al. 2021, arXiv 2103.00039, appendix D), as in
            DP-FTRL's reference code; each count is then raised to the next power of two.

    Returns:
        The event for the wire.
    """
    counts = [whole("step_counts", steps) for steps in items("step_counts", step_counts, "[100, 100]")]
    if completed:
        counts = [whole("step_counts", 1 << (steps - 1).bit_length()) for steps in counts]
    return {"type": "tree_aggregation", "noise_multiplier": noise(noise_multiplier), "step_counts": counts}


def adaptive_clipping(
    noise_multiplier: float | None = None,
    *,
    gradient_noise_multiplier: float | None = None,
    count_noise_stddev: float | None = None,
) -> AdaptiveClippingEvent:
    """Describe adaptive clipping: a clipped sum, and the count that adapts its norm.

    Give the first argument, or the other two.

    Args:
        noise_multiplier: of both together, in [1e-3, 1e6].
        gradient_noise_multiplier: standard deviation of the sum's noise divided by the clipping norm, in [1e-3, 1e6].
        count_noise_stddev: standard deviation of the noise of the count of examples, in [1e-3, 1e6].

    Returns:
        The event for the wire.
    """
    both = gradient_noise_multiplier is not None and count_noise_stddev is not None
    neither = gradient_noise_multiplier is None and count_noise_stddev is None
    if not (neither if noise_multiplier is not None else both):
        raise ValueError("Give noise_multiplier, or gradient_noise_multiplier and count_noise_stddev.")
    event: AdaptiveClippingEvent = {"type": "adaptive_clipping"}
    if noise_multiplier is not None:
        event["noise_multiplier"] = noise(noise_multiplier)
    if gradient_noise_multiplier is not None:
        event["gradient_noise_multiplier"] = noise(gradient_noise_multiplier, "gradient_noise_multiplier")
    if count_noise_stddev is not None:
        event["count_noise_stddev"] = noise(count_noise_stddev, "count_noise_stddev")
    return event


def composed(events: Sequence[Event]) -> ComposedEvent:
    """Describe several events on the same data.

    Args:
        events: 1 to 1,000.

    Returns:
        The event for the wire.
    """
    return {"type": "composed", "events": items("events", events, "[gaussian(1.1), laplace(2.0)]")}


def self_composed(event: Event, count: int) -> SelfComposedEvent:
    """Describe one event repeated on the same data.

    Args:
        event: of each repetition.
        count: in 1 ... 1e9.

    Returns:
        The event for the wire.
    """
    return {"type": "self_composed", "event": event, "count": whole("count", count)}


def repeat_and_select(event: Event, mean: float, shape: float | None) -> RepeatAndSelectEvent:
    """Describe a hyper-parameter search that releases the best of a random number of runs.

    Args:
        event: of one run, for all hyper-parameters.
        mean: expected number of runs, at least 1.
        shape: of the truncated negative binomial distribution of their number, at least -0.9999: 1 is geometric, 0
            logarithmic; None: Poisson.

    Returns:
        The event for the wire.
    """
    return {
        "type": "repeat_and_select",
        "event": event,
        "mean": real("mean", mean, 1.0, math.inf),
        "shape": None if shape is None else real("shape", shape, -0.9999, math.inf),
    }


def group_privacy(group_size: int, event: Event) -> GroupPrivacyEvent:
    """Describe an event that protects single records, where a privacy unit owns several.

    Args:
        group_size: maximum number of records of a unit.
        event: as if each record were a unit.

    Returns:
        The event for the wire.
    """
    return {"type": "group_privacy", "group_size": whole("group_size", group_size), "event": event}


def decay(
    mode: Literal["time", "step", "exp"], decay_rate: float, event: Event, *, steps: int, first_step: int = 0
) -> DecayEvent:
    """Describe steps with a decaying noise multiplier z.

    Args:
        mode: at step t it is z / (1 + k t), z (1 - k)^t or z exp(-k t).
        decay_rate: k.
        event: of a step, with the noise multiplier of step 0.
        steps: number of steps, in 1 ... 1e7.
        first_step: number t of the first one.

    Returns:
        The event for the wire.
    """
    wire: DecayEvent = {
        "type": "decay",
        "mode": mode,
        "decay_rate": real("decay_rate", decay_rate, 0.0, math.inf),
        "steps": whole("steps", steps),
        "event": event,
    }
    if first_step:
        wire["first_step"] = whole("first_step", first_step, 0)
    return wire
