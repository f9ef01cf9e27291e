"""Events in wire format: the mechanisms of noisy steps.

Each module of events has their types and factories. A factory raises ValueError for a number out of range, and
TypeError for anything but a number.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NotRequired, TypeAlias, TypedDict

# Any event of the API; each factory writes one type of them. A field at its default is left out.
Event: TypeAlias = Mapping[str, object]

SAMPLES: Final = frozenset(
    {"poisson_sampled", "sampled_without_replacement", "truncated_poisson_sampled", "sampled_with_replacement"}
)
"""Types of events on a random sample of the data, each drawn anew."""


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
