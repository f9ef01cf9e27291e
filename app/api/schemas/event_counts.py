"""Lists of repeated events in steps, plans and workloads."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from app.accounting.events import MAX_EVENTS
from app.accounting.work import require_affordable_events
from app.api.schemas.common import Count, Input
from app.api.schemas.events import SentEvent
from app.ledger.accounts import StepEvent
from app.ledger.errors import RequestTooLargeError


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


EventCounts = Annotated[list[EventCount], BeforeValidator(_few), Field(json_schema_extra={"maxItems": MAX_EVENTS})]


def step_events_of(items: list[EventCount]) -> tuple[StepEvent, ...]:
    """Convert to the domain.

    Raises:
        PlanTooExpensiveError: pricing them exceeds the work limit of a request.
    """
    steps = tuple(StepEvent(item.event.domain, item.count) for item in items)
    require_affordable_events(step.event for step in steps)
    return steps
