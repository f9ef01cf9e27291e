"""Randomized response, the exponential mechanism, and guarantees stated by the caller."""

from dataclasses import dataclass

from app.accounting.events.base import (
    DELTAS,
    EPSILONS,
    MAX_COUNT,
    PROBABILITIES,
    DpEvent,
    Interval,
    check_whole,
    set_real,
    wire_type,
)


@wire_type("randomized_response")
@dataclass(frozen=True, slots=True)
class RandomizedResponse(DpEvent):
    """Each record reports one of k values: its own, or one drawn uniformly.

    Args:
        noise_parameter: probability of the uniform draw from all k values, in (0, 1].
        num_buckets: number k of values, 2 to 1e9.
    """

    noise_parameter: float
    num_buckets: int

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(self, "noise_parameter", PROBABILITIES, "the probability with which the answer is drawn evenly")
        check_whole("num_buckets", self.num_buckets, 2, MAX_COUNT, "how many values an answer can have")


@wire_type("exponential")
@dataclass(frozen=True, slots=True)
class Exponential(DpEvent):
    """The exponential mechanism: a choice with weights exp(epsilon score / (2 sensitivity)).

    Report noisy max with Gumbel noise of scale 2 sensitivity / epsilon is the same.

    Args:
        epsilon: nats, in (0, 1e4], for the scores' sensitivity under the population's neighboring relation.
    """

    epsilon: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(self, "epsilon", EPSILONS, "the privacy loss of one choice, in nats")


@wire_type("zcdp")
@dataclass(frozen=True, slots=True)
class Zcdp(DpEvent):
    """A mechanism known to be (xi, rho)-zCDP under the population's neighboring relation.

    Args:
        rho: growth of the divergence per order, in (0, 1e6] nats.
        xi: divergence common to all orders, in [0, 1e6] nats.
    """

    rho: float
    xi: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(self, "rho", Interval(0, 1e6, above=True), "the divergence at an order divided by the order")
        set_real(self, "xi", Interval(0, 1e6), "the part of the divergence that every order has, in nats")


@wire_type("epsilon_delta")
@dataclass(frozen=True, slots=True)
class EpsilonDelta(DpEvent):
    """A mechanism known to be (epsilon, delta)-DP under the population's neighboring relation.

    Args:
        epsilon: nats, in (0, 1e4].
        delta: in [0, 0.5); subtracted from the account's delta.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(self, "epsilon", EPSILONS, "the mechanism's guarantee, in nats")
        set_real(self, "delta", DELTAS, "the probability with which the mechanism's epsilon need not hold")
