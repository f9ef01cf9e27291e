"""Mechanisms: noise added to a sum of clipped contributions, randomized response, and stated guarantees."""

from dataclasses import dataclass
from math import fsum
from typing import Annotated, Final, Literal

from app.accounting.errors import InvalidEventError
from app.accounting.events.base import (
    MAX_COUNT,
    MAX_EPSILON,
    MAX_NOISE_MULTIPLIER,
    Choice,
    DpEvent,
    Items,
    Real,
    Whole,
    noise,
    wire_type,
)
from app.accounting.formulas.noise_schedules import MIN_NOISE_MULTIPLIER

MAX_TREES: Final = 1000
MAX_SENSITIVITY: Final = 1_000_000
"""Of sums of integers; then all thresholds that matter are exact as floats."""

MAX_SENSITIVITIES: Final = 64
"""Of a mixture of Gaussians."""

PROBABILITY_ERROR: Final = 1e-9
"""Rounding of probabilities that sum to 1."""

MIXED_NOISE: Final = "the noise of a mixture over its largest distance"
GAUSSIAN_NOISE: Final = "the noise's standard deviation divided by the sum's sensitivity"


@wire_type("no_op")
@dataclass(frozen=True, slots=True)
class NoOp(DpEvent):
    """Nothing is released; it costs 0."""


RELEASE: Final = Real(
    1 / MAX_NOISE_MULTIPLIER, 1 / MIN_NOISE_MULTIPLIER, "the privacy loss of one release, in nats", optional=True
)


def _part(meaning: str) -> Real:
    return Real(MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER, meaning, optional=True)


@wire_type("gaussian")
@dataclass(frozen=True, slots=True)
class Gaussian(DpEvent):
    """The Gaussian mechanism on a sum of vectors whose L2 norm is clipped.

    Args:
        noise_multiplier: standard deviation of the noise divided by the L2 clipping norm of a summand (for DP-SGD:
            sigma / clipping norm).
        clipped: the summand that is clipped. "example": one record's vector, so that adding or removing a record moves
            the sum by at most one clipping norm. "microbatch": the clipped mean of several records' vectors; one record
            may move that mean between any two points of the ball, so the sum moves by up to two clipping norms under
            every relation. Which other records share a micro-batch must not depend on the record. A special record is
            left out of the mean.
    """

    noise_multiplier: Annotated[float, noise(GAUSSIAN_NOISE), "sigma / clipping norm"]
    clipped: Annotated[
        Literal["example", "microbatch"],
        Choice(("example", "microbatch"), "what has its norm bounded before the sum"),
        "The clipped unit: one example's vector, or the mean of a micro-batch, which one example can move by two "
        "clipping norms.",
    ] = "example"


@wire_type("laplace", {"noise_multiplier": 20.0}, {"epsilon": 0.1}, forms=(("noise_multiplier",), ("epsilon",)))
@dataclass(frozen=True, slots=True)
class Laplace(DpEvent):
    """The Laplace mechanism on a sum of vectors whose L1 norm is clipped.

    Args:
        noise_multiplier: the scale b of the noise divided by the L1 clipping norm of a record's vector.
        epsilon: the privacy loss of one release, in nats: the sum's L1 sensitivity under the population's neighboring
            relation divided by the scale; given instead of `noise_multiplier`.
    """

    noise_multiplier: Annotated[
        float | None,
        noise("the noise's scale divided by the sum's L1 sensitivity", optional=True),
        "scale b / clipping norm",
    ] = None
    epsilon: Annotated[
        float | None, RELEASE, "the privacy loss of one release, in nats; instead of `noise_multiplier`"
    ] = None


@wire_type("discrete_gaussian")
@dataclass(frozen=True, slots=True)
class DiscreteGaussian(DpEvent):
    """The discrete Gaussian mechanism on a sum of integer vectors whose norm is clipped.

    Args:
        noise_multiplier: the parameter sigma of the noise divided by `sensitivity`, or without one, by the L2 clipping
            norm of a record's vector. The L2 norm is at most the L1 norm, so bounds for the former hold for both.
        sensitivity: the L1 clipping norm of a record's vector, a whole number. A plan needs it: with sigma, it
            determines by which integers the sum can move. None: not stated.
    """

    noise_multiplier: Annotated[
        float,
        noise("the noise's parameter sigma divided by the sum's L2 sensitivity"),
        "sigma / `sensitivity`, or without one / L2 clipping norm",
    ]
    sensitivity: Annotated[
        int | None,
        Whole(1, MAX_SENSITIVITY, "the L1 norm to which a record's vector is clipped", optional=True),
        "L1 clipping norm of a record's integers; a plan needs it",
    ] = None


@wire_type("discrete_laplace")
@dataclass(frozen=True, slots=True)
class DiscreteLaplace(DpEvent):
    """The discrete Laplace mechanism on a sum of integer vectors whose L1 norm is clipped.

    Args:
        noise_parameter: c of the noise, which is x with a probability proportional to exp(-c |x|), for integers x.
        sensitivity: the L1 clipping norm of a record's vector, a whole number.
    """

    noise_parameter: Annotated[
        float,
        Real(0, MAX_EPSILON, "the noise is x with a probability proportional to exp(-c |x|)", above=True),
        "c: the noise is x with a probability proportional to exp(-c |x|)",
    ]
    sensitivity: Annotated[
        int,
        Whole(1, MAX_SENSITIVITY, "the L1 norm to which a record's vector is clipped"),
        "L1 clipping norm of a record's integers",
    ]


@wire_type(
    "adaptive_clipping",
    {"noise_multiplier": 1.0},
    {"gradient_noise_multiplier": 1.02, "count_noise_stddev": 12.8},
    forms=(("noise_multiplier",), ("gradient_noise_multiplier", "count_noise_stddev")),
)
@dataclass(frozen=True, slots=True)
class AdaptiveClipping(DpEvent):
    """Adaptive clipping: a clipped sum and the count that adapts its norm, with one noise multiplier or two.

    Both are released from the same records: together they are one Gaussian release of a longer vector. The count is the
    sum of b_i - 1/2, where b_i is 1 if record i was within the norm and else 0, so a record moves it by 1/2. The
    combined noise multiplier is z = (z_g^-2 + (2 s)^-2)^(-1/2) (Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv
    1905.03871, Theorem 1).

    Args:
        noise_multiplier: z, if the caller has increased the gradients' noise by this formula.
        gradient_noise_multiplier: z_g, the standard deviation of the gradients' noise divided by the clipping norm;
            given with `count_noise_stddev` instead of `noise_multiplier`.
        count_noise_stddev: s, the standard deviation of the count's noise, in records; if a system adds noise to the
            fraction of such records, multiply by the fraction's divisor.
    """

    noise_multiplier: Annotated[float | None, noise(GAUSSIAN_NOISE, optional=True), "of both together"] = None
    gradient_noise_multiplier: Annotated[
        float | None,
        _part("the standard deviation of the gradients' noise divided by the clipping norm"),
        "sigma of the gradients / clipping norm; with `count_noise_stddev`",
    ] = None
    count_noise_stddev: Annotated[
        float | None,
        _part("the standard deviation of the noise of the count"),
        "sigma of the sum of b - 1/2 over the examples, b = 1 where one is within the norm",
    ] = None


@wire_type(
    "mixture_of_gaussians",
    {"standard_deviation": 4.0, "sensitivities": [0.0, 1.0, 2.0], "sampling_probs": [0.9801, 0.0198, 0.0001]},
)
@dataclass(frozen=True, slots=True)
class MixtureOfGaussians(DpEvent):
    """Gaussian noise on a sum to which a record contributes a vector whose size is drawn by its own coins.

    The coins do not depend on the data.

    Args:
        standard_deviation: of the noise.
        sensitivities: the largest L2 norms of the contribution, one for each outcome of the draw.
        sampling_probs: probabilities of the outcomes. They sum to 1 but for rounding, and are divided by their sum.
    """

    standard_deviation: Annotated[float, Real(1e-9, 1e9, "the standard deviation of the noise"), "of the noise"]
    sensitivities: Annotated[
        tuple[float, ...],
        Items(Real(0, 1e9, "an L2 norm of a record's contribution"), MAX_SENSITIVITIES, "numbers"),
        "largest L2 norm of the contribution, for each outcome",
    ]
    sampling_probs: Annotated[
        tuple[float, ...],
        Items(Real(0, 1, "the probability of a sensitivity"), MAX_SENSITIVITIES, "probabilities"),
        "probability of each outcome; they sum to 1",
    ]

    def __post_init__(self) -> None:
        """Check the numbers, that the probabilities are some, and the noise."""
        DpEvent.__post_init__(self)
        if len(self.sensitivities) != len(self.sampling_probs):
            raise InvalidEventError("sensitivities and sampling_probs must be equally many: each has its probability.")
        if abs(fsum(self.sampling_probs) - 1) > PROBABILITY_ERROR:
            raise InvalidEventError(f"sampling_probs sum to {fsum(self.sampling_probs):.12g}, but they must sum to 1.")
        if not self.largest:
            raise InvalidEventError(
                "A positive sensitivity must have a positive probability: else nothing is released."
            )
        noise(MIXED_NOISE).checked(
            "standard_deviation over the largest sensitivity", self.standard_deviation / self.largest
        )

    @property
    def largest(self) -> float:
        """The largest sensitivity of a positive probability."""
        both = zip(self.sensitivities, self.sampling_probs, strict=True)
        return max((sensitivity for sensitivity, share in both if share), default=0.0)


@wire_type("tree_aggregation")
@dataclass(frozen=True, slots=True)
class TreeAggregation(DpEvent):
    """DP-FTRL: running sums from noisy binary trees; each record occurs in one step of one tree.

    Virtual steps count: a trainer that completes its trees before a restart sends the steps of the completed trees.
    Several epochs are repetitions of this event.

    Args:
        noise_multiplier: standard deviation of each node's noise divided by the clipping norm.
        step_counts: steps of each tree between two restarts. Virtual steps release the nodes above the last steps.
    """

    noise_multiplier: Annotated[float, noise(GAUSSIAN_NOISE), "sigma of a node / clipping norm"]
    step_counts: Annotated[
        tuple[int, ...],
        Items(Whole(1, MAX_COUNT, "the steps of a tree between two restarts"), MAX_TREES, "whole numbers"),
        "steps of each tree between restarts, virtual ones included: 8, where 7 steps are completed to 8",
    ]


@wire_type("randomized_response")
@dataclass(frozen=True, slots=True)
class RandomizedResponse(DpEvent):
    """Randomized response: every record reports its value or a uniformly random one."""

    noise_parameter: Annotated[
        float,
        Real(0, 1, "the probability with which the answer is drawn evenly", above=True),
        "probability of a uniformly random answer",
    ]
    num_buckets: Annotated[int, Whole(2, MAX_COUNT, "how many values an answer can have"), "number of values"]


@wire_type("exponential")
@dataclass(frozen=True, slots=True)
class Exponential(DpEvent):
    """The exponential mechanism: a choice with weights exp(epsilon score / (2 sensitivity)).

    The sensitivity is that of the scores under the population's neighboring relation. Report noisy max with Gumbel
    noise of scale 2 sensitivity / epsilon is the same.
    """

    epsilon: Annotated[float, Real(0, MAX_EPSILON, "the privacy loss of one choice, in nats", above=True)]


@wire_type("permute_and_flip")
@dataclass(frozen=True, slots=True)
class PermuteAndFlip(DpEvent):
    """Permute and flip: a choice by report noisy max with exponential noise of mean 2 sensitivity / epsilon.

    Candidates come in random order, each accepted with exp(epsilon (score - best) / (2 sensitivity)). The sensitivity
    is that of the scores under the population's neighboring relation. Sources: McKenna, Sheldon 2020 (arXiv
    2010.12603); Ding, Kifer, Sayed, Steinke, Wang, Xiao, Zhang 2021 (arXiv 2105.07260).
    """

    epsilon: Annotated[float, Real(0, MAX_EPSILON, "the privacy loss of one choice, in nats", above=True)]


@wire_type("zcdp")
@dataclass(frozen=True, slots=True)
class Zcdp(DpEvent):
    """A mechanism known to be (xi, rho)-zCDP under the population's neighboring relation, or delta-approximately so."""

    rho: Annotated[float, Real(0, 1e6, "the divergence at an order divided by the order", above=True)]
    xi: Annotated[float, Real(0, 1e6, "the part of the divergence that every order has, in nats")] = 0.0
    delta: Annotated[
        float,
        Real(0, 0.5, "the probability with which the divergence need not be bounded", below=True),
        "subtracted from the account's delta",
    ] = 0.0


@wire_type("epsilon_delta")
@dataclass(frozen=True, slots=True)
class EpsilonDelta(DpEvent):
    """A mechanism known to be (epsilon, delta)-DP under the population's neighboring relation."""

    epsilon: Annotated[float, Real(0, MAX_EPSILON, "the mechanism's guarantee, in nats")]
    delta: Annotated[
        float,
        Real(0, 0.5, "the probability with which the mechanism's epsilon need not hold", below=True),
        "subtracted from the account's delta",
    ] = 0.0
