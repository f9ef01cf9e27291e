"""Events of local randomness, and events whose guarantee the caller states."""

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
    """Each record answers with one of k values, sometimes drawn evenly instead of its own.

    Args:
        noise_parameter: probability with which the answer is drawn evenly from all k values, in (0, 1].
        num_buckets: number k of values, in 2 ... 1e9.

    Raises:
        InvalidEventError: a number is out of bounds.
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
        epsilon: nats, in (0, 1e4]; for the scores' sensitivity under the population's neighboring relation.

    Raises:
        InvalidEventError: epsilon is out of bounds.
    """

    epsilon: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(self, "epsilon", EPSILONS, "the privacy loss of one choice, in nats")


@wire_type("zcdp")
@dataclass(frozen=True, slots=True)
class Zcdp(DpEvent):
    """A mechanism of which it is known that it is (xi, rho)-zCDP under the population's neighboring relation.

    Args:
        rho: what the divergence grows by with the order, in (0, 1e6].
        xi: what it has at every order, in [0, 1e6] nats.

    Raises:
        InvalidEventError: a number is out of bounds.
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
    """A mechanism of which it is known that it is (epsilon, delta)-DP under the population's neighboring relation.

    Args:
        epsilon: nats, in (0, 1e4].
        delta: in [0, 0.5); it is taken from the account's delta.

    Raises:
        InvalidEventError: a number is out of bounds.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(self, "epsilon", EPSILONS, "the mechanism's guarantee, in nats")
        set_real(self, "delta", DELTAS, "the probability with which the mechanism's epsilon need not hold")
