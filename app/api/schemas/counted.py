"""Counted events on the wire: what steps, plans and workloads are lists of."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from app.accounting.events import MAX_CURVES, MAX_EVENTS, curve_count
from app.api.schemas.common import Count, Input
from app.api.schemas.events import SentEvent, event_of
from app.ledger.accounts import StepEvent
from app.ledger.errors import RequestTooLargeError

MAX_REQUEST_CURVES = 2 * MAX_CURVES
"""How many curves the events of one request may take: two long schedules, or a second of computing for most."""


class CountedEvent(Input):
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


CountedEvents = Annotated[list[CountedEvent], BeforeValidator(_few), Field(json_schema_extra={"maxItems": MAX_EVENTS})]


def step_events_of(items: list[CountedEvent]) -> tuple[StepEvent, ...]:
    """Counted events as the ledger knows them.

    Raises:
        RequestTooLargeError: they would take too long to price.
    """
    steps = tuple(StepEvent(event_of(item.event), item.count) for item in items)
    curves = sum(curve_count(step.event) for step in steps)
    if curves > MAX_REQUEST_CURVES:
        raise RequestTooLargeError(
            f"The events of one request take at most {MAX_REQUEST_CURVES} curves, one for each event that is no "
            f"wrapper and one for each noise multiplier of a decay; these take {curves}. Send several requests."
        )
    return steps
