"""Schemas of events, nested as in dp_accounting."""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    RootModel,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticSerializationError, to_json

from app.accounting.errors import InvalidEventError
from app.accounting.events import MAX_COUNT, MAX_EVENTS, MAX_GROUP, MAX_NESTING, MIN_SHAPE, DpEvent, event_from_dict
from app.accounting.pricing_effort import require_affordable_events
from app.api.schemas.common import Count, Input, example
from app.api.schemas.mechanisms import (
    AdaptiveClippingEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    EpsilonDeltaEvent,
    EventInput,
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    NoOpEvent,
    PermuteAndFlipEvent,
    RandomizedResponseEvent,
    Size,
    TreeAggregationEvent,
    ZcdpEvent,
)
from app.ledger.errors import InvalidInputError, RequestTooLargeError
from app.ledger.repeated_events import distinct, step_events
from app.ledger.step_events import StepEvent


class PoissonSampledEvent(EventInput):
    """A mechanism on a sample that includes each privacy unit independently.

    Under `replace_special` and `replace_one` the output of any mechanism but a noisy sum may reveal the sample, which
    reduces the amplification.
    """

    model_config = example(
        {
            "type": "poisson_sampled",
            "sampling_probability": 0.01,
            "event": {"type": "gaussian", "noise_multiplier": 1.1},
        }
    )

    type: Literal["poisson_sampled"]
    sampling_probability: float = Field(ge=0, le=1, description="0: nothing is released, at no cost")
    event: "Event"


class SampledWithoutReplacementEvent(EventInput):
    """A mechanism on a uniformly random batch of fixed size; for `replace_one`."""

    type: Literal["sampled_without_replacement"]
    source_dataset_size: Size
    sample_size: Size = Field(description="At most the data set's size.")
    event: "Event"


class TruncatedPoissonSampledEvent(EventInput):
    """A mechanism on a Poisson sample that is cut to a largest size by an even choice."""

    model_config = example(
        {
            "type": "truncated_poisson_sampled",
            "source_dataset_size": 60000,
            "sampling_probability": 0.004,
            "truncated_batch_size": 320,
            "event": {"type": "gaussian", "noise_multiplier": 1.1},
        }
    )

    type: Literal["truncated_poisson_sampled"]
    source_dataset_size: Size
    sampling_probability: float = Field(ge=0, le=1, description="before the batch is cut")
    truncated_batch_size: Size = Field(description="The most records that are kept.")
    event: "Event"


class SampledWithReplacementEvent(EventInput):
    """A mechanism on a batch, each place of which holds any of the records; for `replace_one`."""

    type: Literal["sampled_with_replacement"]
    source_dataset_size: Size
    sample_size: Size = Field(description="The places of the batch.")
    event: "Event"


class ComposedEvent(EventInput):
    """Several mechanisms on the same data."""

    type: Literal["composed"]
    events: Annotated[list["Event"], FailFast()] = Field(min_length=1, max_length=MAX_EVENTS)


class SelfComposedEvent(EventInput):
    """The same mechanism, repeated on the same data."""

    type: Literal["self_composed"]
    event: "Event"
    count: Count


class RepeatAndSelectEvent(EventInput):
    """A hyper-parameter search: the best output of a random number of runs of a mechanism."""

    type: Literal["repeat_and_select"]
    event: "Event"
    mean: float = Field(ge=1, le=MAX_COUNT, description="expected number of runs")
    shape: Annotated[float, Field(ge=MIN_SHAPE, le=1e6)] | None = Field(
        description="of the truncated negative binomial distribution of their number: 1 geometric, 0 logarithmic; "
        "null: Poisson"
    )


class GroupPrivacyEvent(EventInput):
    """A mechanism that protects single records, where a privacy unit owns several."""

    type: Literal["group_privacy"]
    group_size: int = Field(ge=1, le=MAX_GROUP, description="maximum number of records of one unit")
    event: "Event"


class DecayEvent(EventInput):
    """A mechanism at each step of a decaying noise schedule."""

    model_config = example(
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
            | DiscreteLaplaceEvent
            | EpsilonDeltaEvent
            | ExponentialEvent
            | GaussianEvent
            | GroupPrivacyEvent
            | LaplaceEvent
            | MixtureOfGaussiansEvent
            | NoOpEvent
            | PermuteAndFlipEvent
            | PoissonSampledEvent
            | RandomizedResponseEvent
            | RepeatAndSelectEvent
            | SampledWithoutReplacementEvent
            | SampledWithReplacementEvent
            | SelfComposedEvent
            | TreeAggregationEvent
            | TruncatedPoissonSampledEvent
            | ZcdpEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """One use of a mechanism on the data; `type` names the mechanism."""

    model_config = ConfigDict(frozen=True)

    @cached_property
    def domain(self) -> DpEvent:
        """Convert to the domain; cached, because trainers repeat events.

        Raises:
            PlanTooExpensiveError: pricing it exceeds the work limit of a request.
        """
        event = event_from_dict(self.model_dump())
        require_affordable_events([event])
        return event


def _read_once(given: object, read: ValidatorFunctionWrapHandler) -> Event:
    """Parse an event once for each JSON text, because trainers repeat events."""
    try:
        text = to_json(given)
    except PydanticSerializationError:  # nested more deeply than that goes
        text = b""
    known = _KNOWN.get(text)
    if known is None:
        _check_nesting(given)
        known = read(given)
        if 0 < len(text) <= MOST_WORDS:
            if len(_KNOWN) >= MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[text] = known
    return known


SentEvent = Annotated[Event, WrapValidator(_read_once)]
"""An event in a request, parsed together with its nested events."""

MOST_KNOWN = 4096
MOST_WORDS = 1000
_KNOWN: dict[bytes, Event] = {}
"""Events as they were read, by their JSON text; a few thousand short ones."""


def _check_nesting(given: object) -> None:
    """Check the nesting before parsing, whose own limit and message differ.

    Raises:
        InvalidEventError: the event is nested too deeply.
    """
    level = [given]
    for _ in range(MAX_NESTING):
        level = [held for event in level if isinstance(event, dict) for held in _held(event)]
        if not level:
            return
    raise InvalidEventError(f"The event is nested more than {MAX_NESTING} deep; no mechanism needs that.")


def _held(event: dict[str, object]) -> list[object]:
    """Iterate over the possible events nested in an event."""
    several = event.get("events")
    held = [event.get("event"), *(several if isinstance(several, list) else [])]
    return [one for one in held if isinstance(one, dict)]


class EventCount(Input):
    """`count` repetitions of one event."""

    event: SentEvent
    count: Count = 1


def _few(given: object) -> object:
    """Refuse a list that is too long before its items are validated.

    Raises:
        RequestTooLargeError: it has more than 1,000 items.
    """
    if isinstance(given, list) and len(given) > MAX_EVENTS:
        raise RequestTooLargeError(
            f"A request holds at most {MAX_EVENTS} events; this one has {len(given)}. Send several requests, or use "
            "`count` for repetitions."
        )
    return given


class PlannedEventInput(Input):
    """An event of a plan, with the number of its repetitions."""

    event: SentEvent
    count: Count | None = Field(
        default=None, description="Left out, of the last event only: as many repetitions as the limit allows."
    )


EventCounts = Annotated[list[EventCount], BeforeValidator(_few), Field(json_schema_extra={"maxItems": MAX_EVENTS})]


PlannedEvents = Annotated[
    list[PlannedEventInput], BeforeValidator(_few), Field(json_schema_extra={"maxItems": MAX_EVENTS})
]


def planned_events_of(items: list[PlannedEventInput]) -> tuple[StepEvent, ...]:
    """Convert a plan to the domain.

    Raises:
        InvalidInputError: an event before the last one has no count.
        PlanTooExpensiveError: pricing the events exceeds the work limit of a request.
    """
    endless = next((place for place, item in enumerate(items[:-1]) if item.count is None), None)
    if endless is not None:
        raise InvalidInputError(
            f"planned[{endless}] has no count, so that the events after it would never be reached: only the last event "
            "of a plan may be repeated without end. Give a count, or put it last."
        )
    steps = step_events([(item.event.domain, item.count or MAX_COUNT) for item in items])
    require_affordable_events([step.event for step in distinct(steps).values()])
    return steps


def step_events_of(items: list[EventCount]) -> tuple[StepEvent, ...]:
    """Convert to the domain.

    Raises:
        PlanTooExpensiveError: pricing them exceeds the work limit of a request.
    """
    steps = step_events([(item.event.domain, item.count) for item in items])
    require_affordable_events([step.event for step in distinct(steps).values()])
    return steps
