"""Events in wire format: the mechanisms of noisy steps."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

# Any event of the API; each function in _makers writes one type of them. A field at its default is left out.
Event: TypeAlias = Mapping[str, object]

SAMPLES: Final = frozenset(
    {"poisson_sampled", "sampled_without_replacement", "truncated_poisson_sampled", "sampled_with_replacement"}
)
"""Types of events on a random sample of the data, each drawn anew."""


class NoOpEvent(TypedDict):
    """Nothing is released."""

    type: Literal["no_op"]


class GaussianEvent(TypedDict):
    """Gaussian noise on a sum whose sensitivity is bounded by clipping."""

    type: Literal["gaussian"]
    noise_multiplier: float
    clipped: NotRequired[Literal["microbatch"]]


class LaplaceEvent(TypedDict):
    """Laplace noise on a sum whose L1 sensitivity is bounded by clipping."""

    type: Literal["laplace"]
    noise_multiplier: NotRequired[float]
    epsilon: NotRequired[float]


class DiscreteGaussianEvent(TypedDict):
    """Discrete Gaussian noise on a sum of integers."""

    type: Literal["discrete_gaussian"]
    noise_multiplier: float
    sensitivity: NotRequired[int]


class DiscreteLaplaceEvent(TypedDict):
    """Discrete Laplace noise on a sum of integers."""

    type: Literal["discrete_laplace"]
    noise_parameter: float
    sensitivity: int


class RandomizedResponseEvent(TypedDict):
    """Randomized response."""

    type: Literal["randomized_response"]
    noise_parameter: float
    num_buckets: int


class ExponentialEvent(TypedDict):
    """A choice by the exponential mechanism."""

    type: Literal["exponential"]
    epsilon: float


class PermuteAndFlipEvent(TypedDict):
    """A choice by permute and flip."""

    type: Literal["permute_and_flip"]
    epsilon: float


class ZcdpEvent(TypedDict):
    """Any mechanism with a zCDP guarantee."""

    type: Literal["zcdp"]
    rho: float
    xi: NotRequired[float]


class EpsilonDeltaEvent(TypedDict):
    """Any mechanism with an (epsilon, delta) guarantee."""

    type: Literal["epsilon_delta"]
    epsilon: float
    delta: NotRequired[float]


class MixtureOfGaussiansEvent(TypedDict):
    """Gaussian noise on a sum to which a record contributes a vector of random size."""

    type: Literal["mixture_of_gaussians"]
    standard_deviation: float
    sensitivities: list[float]
    sampling_probs: list[float]


class TreeAggregationEvent(TypedDict):
    """Running sums from noisy binary trees."""

    type: Literal["tree_aggregation"]
    noise_multiplier: float
    step_counts: list[int]


class AdaptiveClippingEvent(TypedDict):
    """A clipped sum and the count that adapts its clipping norm."""

    type: Literal["adaptive_clipping"]
    noise_multiplier: NotRequired[float]
    gradient_noise_multiplier: NotRequired[float]
    count_noise_stddev: NotRequired[float]


class PoissonSampledEvent(TypedDict):
    """An event on a Poisson sample."""

    type: Literal["poisson_sampled"]
    sampling_probability: float
    event: Event


class SampledWithoutReplacementEvent(TypedDict):
    """An event on a batch of fixed size."""

    type: Literal["sampled_without_replacement"]
    source_dataset_size: int
    sample_size: int
    event: Event


class TruncatedPoissonSampledEvent(TypedDict):
    """An event on a Poisson sample that is cut to a largest size."""

    type: Literal["truncated_poisson_sampled"]
    source_dataset_size: int
    sampling_probability: float
    truncated_batch_size: int
    event: Event


class SampledWithReplacementEvent(TypedDict):
    """An event on a batch in which a record may occur several times."""

    type: Literal["sampled_with_replacement"]
    source_dataset_size: int
    sample_size: int
    event: Event


class ComposedEvent(TypedDict):
    """Several events on the same data."""

    type: Literal["composed"]
    events: list[Event]


class SelfComposedEvent(TypedDict):
    """A repeated event."""

    type: Literal["self_composed"]
    event: Event
    count: int


class RepeatAndSelectEvent(TypedDict):
    """The best of a random number of runs."""

    type: Literal["repeat_and_select"]
    event: Event
    mean: float
    shape: float | None


class GroupPrivacyEvent(TypedDict):
    """An event that protects single records, where a privacy unit owns several."""

    type: Literal["group_privacy"]
    group_size: int
    event: Event


class DecayEvent(TypedDict):
    """An event at each step of a decaying noise schedule."""

    type: Literal["decay"]
    mode: Literal["time", "step", "exp"]
    decay_rate: float
    steps: int
    first_step: NotRequired[int]
    event: Event


class EventCount(TypedDict):
    """An event and its number of repetitions."""

    event: Event
    count: int


class PlannedEventCount(TypedDict):
    """An event of an account's plan; count None: as many repetitions as the limit allows, of the last event only."""

    event: Event
    count: NotRequired[int | None]


PlannedEvents: TypeAlias = Sequence[Event | tuple[Event, int] | EventCount | PlannedEventCount]
"""A plan: events in order, each with a count; the last one may be a bare event, as many as the limit allows."""
