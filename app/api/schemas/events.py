"""Events on the wire: what one use of a mechanism did to the data, nested as dp_accounting nests it."""

import json
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    RootModel,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from app.accounting.events import (
    MAX_COUNT,
    MAX_CURVES,
    MAX_EVENTS,
    MAX_GROUP,
    MIN_SHAPE,
    DpEvent,
    curve_count,
    event_from_dict,
)
from app.api.schemas.common import Count, Input
from app.ledger.accounts import StepEvent
from app.ledger.errors import RequestTooLargeError

MAX_REQUEST_CURVES = 2 * MAX_CURVES
"""How many curves the events of one request may take: two long schedules, or a second of computing for most."""

MOST_EVENTS: dict[str, Any] = {"maxItems": MAX_EVENTS}
"""Said of a list in the contract; a longer one is refused by `step_events_of`, as too large and not as ill-formed."""

NoiseMultiplier = Annotated[float, Field(ge=1e-3, le=1e6)]
Epsilon = Annotated[float, Field(gt=0, le=1e4)]
Size = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class EventInput(Input):
    """An event; a field at its default is left out when it is written, so that both spellings are one request."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        fields = type(self).model_fields
        return {name: value for name, value in written.items() if value != fields[name].default}


class GaussianEvent(EventInput):
    """The Gaussian mechanism on a sum of vectors whose L2 norm is clipped."""

    type: Literal["gaussian"]
    noise_multiplier: NoiseMultiplier = Field(description="sigma / clipping norm")
    clipped: Literal["example", "microbatch"] = Field(
        default="example",
        description="What is clipped: the vector of one example, or the mean of a micro-batch, which one example can "
        "move by two clipping norms.",
    )


class LaplaceEvent(EventInput):
    """The Laplace mechanism on a sum of vectors whose L1 norm is clipped."""

    type: Literal["laplace"]
    noise_multiplier: NoiseMultiplier = Field(description="scale b / clipping norm")


class DiscreteGaussianEvent(EventInput):
    """The discrete Gaussian mechanism on a sum of integer vectors whose L2 norm is clipped."""

    type: Literal["discrete_gaussian"]
    noise_multiplier: NoiseMultiplier = Field(description="sigma / clipping norm")


class RandomizedResponseEvent(EventInput):
    """Every record answers by itself: with its value, or with one drawn evenly."""

    type: Literal["randomized_response"]
    noise_parameter: float = Field(gt=0, le=1, description="probability of the even draw")
    num_buckets: int = Field(ge=2, le=MAX_COUNT, description="number of values")


class ExponentialEvent(EventInput):
    """The exponential mechanism: a choice with weights exp(epsilon score / (2 sensitivity))."""

    type: Literal["exponential"]
    epsilon: Epsilon


class ZcdpEvent(EventInput):
    """A mechanism known to be (xi, rho)-zCDP under the population's neighboring relation."""

    type: Literal["zcdp"]
    rho: float = Field(gt=0, le=1e6)
    xi: float = Field(default=0.0, ge=0, le=1e6)


class EpsilonDeltaEvent(EventInput):
    """A mechanism known to be (epsilon, delta)-DP under the population's neighboring relation."""

    type: Literal["epsilon_delta"]
    epsilon: Epsilon
    delta: float = Field(default=0.0, ge=0, lt=0.5, description="taken from the account's delta")


class TreeAggregationEvent(EventInput):
    """DP-FTRL: running sums from noisy binary trees; each record occurs in one step of one tree."""

    type: Literal["tree_aggregation"]
    noise_multiplier: NoiseMultiplier = Field(description="sigma of a node / clipping norm")
    step_counts: list[Size] = Field(min_length=1, max_length=1000, description="steps of each tree between restarts")


class AdaptiveClippingEvent(EventInput):
    """A clipped sum and the count that adapts its clipping norm, with one noise multiplier for both, or their own."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"type": "adaptive_clipping", "noise_multiplier": 1.0},
                {"type": "adaptive_clipping", "gradient_noise_multiplier": 1.02, "count_noise_stddev": 12.8},
            ]
        }
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


class PoissonSampledEvent(EventInput):
    """A mechanism on a sample in which each privacy unit is included independently."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "poisson_sampled",
                    "sampling_probability": 0.01,
                    "event": {"type": "gaussian", "noise_multiplier": 1.1},
                }
            ]
        }
    )

    type: Literal["poisson_sampled"]
    sampling_probability: float = Field(gt=0, le=1)
    event: "Event"


class SampledWithoutReplacementEvent(EventInput):
    """A mechanism on a batch of fixed size, every batch being as likely as any other; for `replace_one`."""

    type: Literal["sampled_without_replacement"]
    source_dataset_size: Size
    sample_size: Size = Field(description="At most the data set's size.")
    event: "Event"


class ComposedEvent(EventInput):
    """Several mechanisms on the same data."""

    type: Literal["composed"]
    events: list["Event"] = Field(min_length=1, max_length=MAX_EVENTS)


class SelfComposedEvent(EventInput):
    """The same mechanism several times on the same data."""

    type: Literal["self_composed"]
    event: "Event"
    count: Count


class RepeatAndSelectEvent(EventInput):
    """A hyper-parameter search: a mechanism run a random number of times, of which the best output is released."""

    type: Literal["repeat_and_select"]
    event: "Event"
    mean: float = Field(ge=1, le=MAX_COUNT, description="expected number of runs")
    shape: Annotated[float, Field(ge=MIN_SHAPE, le=1e6)] | None = Field(
        description="of the truncated negative binomial distribution of their number: 1 geometric, 0 logarithmic; "
        "null: Poisson"
    )


class GroupPrivacyEvent(EventInput):
    """A mechanism that protects a record, where a privacy unit owns several."""

    type: Literal["group_privacy"]
    group_size: int = Field(ge=1, le=MAX_GROUP, description="the most records that one unit owns")
    event: "Event"


class DecayEvent(EventInput):
    """A mechanism at each step of a schedule along which its noise shrinks."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "decay",
                    "mode": "time",
                    "decay_rate": 6e-4,
                    "steps": 2344,
                    "event": {
                        "type": "poisson_sampled",
                        "sampling_probability": 0.0042667,
                        "event": {"type": "gaussian", "noise_multiplier": 1.5},
                    },
                }
            ]
        }
    )

    type: Literal["decay"]
    mode: Literal["time", "step", "exp"] = Field(
        description="noise at step t: z / (1 + k t), z (1 - k)^t or z exp(-k t), with z of `event` and k `decay_rate`"
    )
    decay_rate: float = Field(ge=0, le=1e6, description="below 1 in mode `step`")
    steps: int = Field(ge=1, le=10_000_000)
    first_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    event: "Event"


class Event(
    RootModel[
        Annotated[
            AdaptiveClippingEvent
            | ComposedEvent
            | DecayEvent
            | DiscreteGaussianEvent
            | EpsilonDeltaEvent
            | ExponentialEvent
            | GaussianEvent
            | GroupPrivacyEvent
            | LaplaceEvent
            | PoissonSampledEvent
            | RandomizedResponseEvent
            | RepeatAndSelectEvent
            | SampledWithoutReplacementEvent
            | SelfComposedEvent
            | TreeAggregationEvent
            | ZcdpEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """What one use of a mechanism did to the data; `type` says which mechanism."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _read_once(cls, given: object, read: ModelWrapValidatorHandler["Event"]) -> "Event":
        """Take an event that was sent in the same words before as it was read then: trainers repeat themselves."""
        try:
            words = json.dumps(given)
        except (TypeError, ValueError, RecursionError):
            return read(given)
        known = _KNOWN.get(words)
        if known is None:
            known = read(given)
            if len(words) <= MOST_WORDS:
                if len(_KNOWN) >= MOST_KNOWN:
                    _KNOWN.clear()
                _KNOWN[words] = known
        return known

    @cached_property
    def domain(self) -> DpEvent:
        """The event as the accountant knows it."""
        return event_from_dict(self.model_dump())


MOST_KNOWN = 4096
MOST_WORDS = 1000
_KNOWN: dict[str, Event] = {}
"""Events as they were read, by their JSON text; a few thousand short ones."""


class CountedEvent(Input):
    """`count` repetitions of one event."""

    event: Event
    count: Count = 1


def event_of(event: Event) -> DpEvent:
    """The event as the accountant knows it."""
    return event.domain


def step_events_of(items: list[CountedEvent]) -> tuple[StepEvent, ...]:
    """Counted events as the ledger knows them.

    Raises:
        RequestTooLargeError: there are more than 1,000 of them, or they would take too long to price.
    """
    if len(items) > MAX_EVENTS:
        raise RequestTooLargeError(
            f"A request holds at most {MAX_EVENTS} events; this one has {len(items)}. Send several requests, or use "
            "`count` for repetitions."
        )
    steps = tuple(StepEvent(event_of(item.event), item.count) for item in items)
    curves = sum(curve_count(step.event) for step in steps)
    if curves > MAX_REQUEST_CURVES:
        raise RequestTooLargeError(
            f"The events of one request take at most {MAX_REQUEST_CURVES} curves, one for each event that is no "
            f"wrapper and one for each noise multiplier of a decay; these take {curves}. Send several requests."
        )
    return steps
