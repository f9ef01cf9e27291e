"""Events of mechanisms that are no noisy sums: their types and factories, with errors as in `events`."""

from typing import Literal, NotRequired, TypedDict

from epsilon_ledger._wire.coercion import real, whole


class NoOpEvent(TypedDict):
    """Nothing is released."""

    type: Literal["no_op"]


def no_op() -> NoOpEvent:
    """Describe a step that releases nothing, at no cost.

    Returns:
        The event for the wire.
    """
    return {"type": "no_op"}


class RandomizedResponseEvent(TypedDict):
    """Randomized response."""

    type: Literal["randomized_response"]
    noise_parameter: float
    num_buckets: int


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


class ExponentialEvent(TypedDict):
    """A choice by the exponential mechanism."""

    type: Literal["exponential"]
    epsilon: float


def exponential(epsilon: float) -> ExponentialEvent:
    """Describe the exponential mechanism, with weights exp(epsilon score / (2 sensitivity)).

    Args:
        epsilon: in (0, 1e4], under the population's neighboring relation.

    Returns:
        The event for the wire.
    """
    return {"type": "exponential", "epsilon": real("epsilon", epsilon, 0.0, 1e4, above=True)}


class PermuteAndFlipEvent(TypedDict):
    """A choice by permute and flip."""

    type: Literal["permute_and_flip"]
    epsilon: float


def permute_and_flip(epsilon: float) -> PermuteAndFlipEvent:
    """Describe permute and flip, which is report noisy max with exponential noise of mean 2 sensitivity / epsilon.

    Args:
        epsilon: in (0, 1e4], under the population's neighboring relation.

    Returns:
        The event for the wire.
    """
    return {"type": "permute_and_flip", "epsilon": real("epsilon", epsilon, 0.0, 1e4, above=True)}


class ZcdpEvent(TypedDict):
    """Any mechanism with a zCDP guarantee."""

    type: Literal["zcdp"]
    rho: float
    xi: NotRequired[float]
    delta: NotRequired[float]


def zcdp(rho: float, xi: float = 0.0, delta: float = 0.0) -> ZcdpEvent:
    """Describe a mechanism by its zCDP guarantee under the population's neighboring relation.

    Args:
        rho: Rényi divergence divided by the order, in (0, 1e6].
        xi: part of the divergence at every order, in [0, 1e6].
        delta: probability with which the divergence need not be bounded, in [0, 0.5); subtracted from the budget's.

    Returns:
        The event for the wire.
    """
    event: ZcdpEvent = {"type": "zcdp", "rho": real("rho", rho, 0.0, 1e6, above=True)}
    if xi:
        event["xi"] = real("xi", xi, 0.0, 1e6)
    if delta:
        event["delta"] = real("delta", delta, 0.0, 0.5, below=True)
    return event


class EpsilonDeltaEvent(TypedDict):
    """Any mechanism with an (epsilon, delta) guarantee."""

    type: Literal["epsilon_delta"]
    epsilon: float
    delta: NotRequired[float]


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
