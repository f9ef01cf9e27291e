"""Events of noisy sums: their types and factories, with errors as in `events`."""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from epsilon_ledger._wire.coercion import items, noise, real, whole


class GaussianEvent(TypedDict):
    """Gaussian noise on a sum whose sensitivity is bounded by clipping."""

    type: Literal["gaussian"]
    noise_multiplier: float
    clipped: NotRequired[Literal["microbatch"]]


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


class LaplaceEvent(TypedDict):
    """Laplace noise on a sum whose L1 sensitivity is bounded by clipping."""

    type: Literal["laplace"]
    noise_multiplier: NotRequired[float]
    epsilon: NotRequired[float]


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


class DiscreteGaussianEvent(TypedDict):
    """Discrete Gaussian noise on a sum of integers."""

    type: Literal["discrete_gaussian"]
    noise_multiplier: float
    sensitivity: NotRequired[int]


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


class DiscreteLaplaceEvent(TypedDict):
    """Discrete Laplace noise on a sum of integers."""

    type: Literal["discrete_laplace"]
    noise_parameter: float
    sensitivity: int


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


class MixtureOfGaussiansEvent(TypedDict):
    """Gaussian noise on a sum to which a record contributes a vector of random size."""

    type: Literal["mixture_of_gaussians"]
    standard_deviation: float
    sensitivities: list[float]
    sampling_probs: list[float]


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


class TreeAggregationEvent(TypedDict):
    """Running sums from noisy binary trees."""

    type: Literal["tree_aggregation"]
    noise_multiplier: float
    step_counts: list[int]


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


class AdaptiveClippingEvent(TypedDict):
    """A clipped sum and the count that adapts its clipping norm."""

    type: Literal["adaptive_clipping"]
    noise_multiplier: NotRequired[float]
    gradient_noise_multiplier: NotRequired[float]
    count_noise_stddev: NotRequired[float]


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
