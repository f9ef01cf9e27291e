"""Counted events on the wire: what steps, plans and workloads are lists of."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from app.accounting.events import MAX_EVENTS
from app.accounting.work import require_little_work
from app.api.schemas.common import Count, Input
from app.api.schemas.events import SentEvent, event_of
from app.ledger.accounts import StepEvent
from app.ledger.errors import RequestTooLargeError


class EventCount(Input):
    """`count` repetitions of one event."""

    event: SentEvent
    count: Count = 1


def _few(given: object) -> object:
    """Refuse a list that is too long, as too large and not as ill-formed, before its items are looked at.

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
    """Counted events as the ledger knows them.

    Raises:
        PlanTooExpensiveError: to price them is more work than one request may make.
    """
    steps = tuple(StepEvent(event_of(item.event), item.count) for item in items)
    require_little_work(step.event for step in steps)
    return steps
