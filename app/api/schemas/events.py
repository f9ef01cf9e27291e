"""Schemas of events, nested as in dp_accounting."""

from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, RootModel, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticSerializationError, to_json

from app.accounting.errors import InvalidEventError
from app.accounting.events import MAX_COUNT, MAX_EVENTS, MAX_NESTING, DpEvent, event_from_dict
from app.accounting.pricing_effort import require_affordable_events
from app.api.schemas.common import Count, Input
from app.api.schemas.event_models import EVENT_MODELS, EventInput
from app.ledger.errors import InvalidInputError, RequestTooLargeError
from app.ledger.repeated_events import distinct, step_events
from app.ledger.step_events import StepEvent

if TYPE_CHECKING:
    AnyEvent: TypeAlias = EventInput
else:
    AnyEvent = Annotated[reduce(or_, EVENT_MODELS.values()), Field(discriminator="type")]


class Event(RootModel[AnyEvent]):
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
