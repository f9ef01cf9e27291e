"""Schemas of events without nested events."""

from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from app.accounting.events import MAX_COUNT, MAX_SENSITIVITIES, MAX_SENSITIVITY
from app.api.schemas.common import Input, example

NoiseMultiplier = Annotated[float, Field(ge=1e-3, le=1e6)]
Epsilon = Annotated[float, Field(gt=0, le=1e4)]
Size = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class EventInput(Input):
    """An event, serialized without defaults, so that both spellings are the same request."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        fields = type(self).model_fields
        return {name: value for name, value in written.items() if value != fields[name].default}


class NoOpEvent(EventInput):
    """Nothing is released; it costs 0."""

    type: Literal["no_op"]


class GaussianEvent(EventInput):
    """The Gaussian mechanism on a sum of vectors whose L2 norm is clipped."""

    type: Literal["gaussian"]
    noise_multiplier: NoiseMultiplier = Field(description="sigma / clipping norm")
    clipped: Literal["example", "microbatch"] = Field(
        default="example",
        description="The clipped unit: one example's vector, or the mean of a micro-batch, which one example can "
        "move by two clipping norms.",
    )


class LaplaceEvent(EventInput):
    """The Laplace mechanism on a sum of vectors whose L1 norm is clipped."""

    model_config = example({"type": "laplace", "noise_multiplier": 20.0}, {"type": "laplace", "epsilon": 0.1})

    type: Literal["laplace"]
    noise_multiplier: NoiseMultiplier | None = Field(default=None, description="scale b / clipping norm")
    epsilon: Annotated[float, Field(ge=1e-6, le=1e3)] | None = Field(
        default=None, description="the privacy loss of one release, in nats; instead of `noise_multiplier`"
    )

    @model_validator(mode="after")
    def _one_form(self) -> "LaplaceEvent":
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError("send either `noise_multiplier` or `epsilon`")
        return self


class DiscreteGaussianEvent(EventInput):
    """The discrete Gaussian mechanism on a sum of integer vectors whose norm is clipped."""

    type: Literal["discrete_gaussian"]
    noise_multiplier: NoiseMultiplier = Field(description="sigma / `sensitivity`, or without one / L2 clipping norm")
    sensitivity: Annotated[int, Field(ge=1, le=MAX_SENSITIVITY)] | None = Field(
        default=None, description="L1 clipping norm of a record's integers; a plan needs it"
    )


class DiscreteLaplaceEvent(EventInput):
    """The discrete Laplace mechanism on a sum of integer vectors whose L1 norm is clipped."""

    type: Literal["discrete_laplace"]
    noise_parameter: Epsilon = Field(description="c: the noise is x with a probability proportional to exp(-c |x|)")
    sensitivity: int = Field(ge=1, le=MAX_SENSITIVITY, description="L1 clipping norm of a record's integers")


class RandomizedResponseEvent(EventInput):
    """Randomized response: every record reports its value or a uniformly random one."""

    type: Literal["randomized_response"]
    noise_parameter: float = Field(gt=0, le=1, description="probability of a uniformly random answer")
    num_buckets: int = Field(ge=2, le=MAX_COUNT, description="number of values")


class ExponentialEvent(EventInput):
    """The exponential mechanism: a choice with weights exp(epsilon score / (2 sensitivity))."""

    type: Literal["exponential"]
    epsilon: Epsilon


class PermuteAndFlipEvent(EventInput):
    """Permute and flip: a choice by report noisy max with exponential noise of mean 2 sensitivity / epsilon."""

    type: Literal["permute_and_flip"]
    epsilon: Epsilon


class ZcdpEvent(EventInput):
    """A mechanism known to be (xi, rho)-zCDP under the population's neighboring relation."""

    type: Literal["zcdp"]
    rho: float = Field(gt=0, le=1e6)
    xi: float = Field(default=0.0, ge=0, le=1e6)


class EpsilonDeltaEvent(EventInput):
    """A mechanism known to be (epsilon, delta)-DP under the population's neighboring relation."""

    type: Literal["epsilon_delta"]
    epsilon: float = Field(ge=0, le=1e4)
    delta: float = Field(default=0.0, ge=0, lt=0.5, description="subtracted from the account's delta")


class MixtureOfGaussiansEvent(EventInput):
    """Gaussian noise on a sum to which a record contributes a vector whose size is drawn by its own coins."""

    model_config = example(
        {
            "type": "mixture_of_gaussians",
            "standard_deviation": 4.0,
            "sensitivities": [0.0, 1.0, 2.0],
            "sampling_probs": [0.9801, 0.0198, 0.0001],
        }
    )

    type: Literal["mixture_of_gaussians"]
    standard_deviation: float = Field(ge=1e-9, le=1e9, description="of the noise")
    sensitivities: Annotated[list[Annotated[float, Field(ge=0, le=1e9)]], FailFast()] = Field(
        min_length=1, max_length=MAX_SENSITIVITIES, description="largest L2 norm of the contribution, for each outcome"
    )
    sampling_probs: Annotated[list[Annotated[float, Field(ge=0, le=1)]], FailFast()] = Field(
        min_length=1, max_length=MAX_SENSITIVITIES, description="probability of each outcome; they sum to 1"
    )


class TreeAggregationEvent(EventInput):
    """DP-FTRL: running sums from noisy binary trees; each record occurs in one step of one tree.

    Virtual steps count: a trainer that completes its trees before a restart sends the steps of the completed trees.
    """

    type: Literal["tree_aggregation"]
    noise_multiplier: NoiseMultiplier = Field(description="sigma of a node / clipping norm")
    step_counts: Annotated[list[Size], FailFast()] = Field(
        min_length=1,
        max_length=1000,
        description="steps of each tree between restarts, virtual ones included: 8, where 7 steps are completed to 8",
    )


class AdaptiveClippingEvent(EventInput):
    """Adaptive clipping: a clipped sum and the count that adapts its norm, with one noise multiplier or two."""

    model_config = example(
        {"type": "adaptive_clipping", "noise_multiplier": 1.0},
        {"type": "adaptive_clipping", "gradient_noise_multiplier": 1.02, "count_noise_stddev": 12.8},
    )

    type: Literal["adaptive_clipping"]
    noise_multiplier: NoiseMultiplier | None = Field(default=None, description="of both together")
    gradient_noise_multiplier: NoiseMultiplier | None = Field(
        default=None, description="sigma of the gradients / clipping norm; with `count_noise_stddev`"
    )
    count_noise_stddev: NoiseMultiplier | None = Field(
        default=None, description="sigma of the sum of b - 1/2 over the examples, b = 1 where one is within the norm"
    )

    @model_validator(mode="after")
    def _one_form(self) -> "AdaptiveClippingEvent":
        parts = sum(part is not None for part in (self.gradient_noise_multiplier, self.count_noise_stddev))
        if parts != (2 if self.noise_multiplier is None else 0):
            raise ValueError("send either `noise_multiplier`, or `gradient_noise_multiplier` and `count_noise_stddev`")
        return self
