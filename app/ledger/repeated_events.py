"""Step events of a batch, which repeats few of them many times.

Hashing and comparing events takes longer than all else that is done with an item. So equal items share one object, and
what depends only on the item is computed once for each object.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.accounting.events import DpEvent
from app.ledger.step_events import StepEvent

T = TypeVar("T")
Result = TypeVar("Result")


def step_events(items: Sequence[tuple[DpEvent, int]]) -> tuple[StepEvent, ...]:
    """Build step events; items with the same event object and count share one.

    Raises:
        InvalidInputError: a count is out of range.
    """
    if len(items) == 1:
        return (StepEvent(*items[0]),)
    keys = [(id(event), count) for event, count in items]
    made = {key: StepEvent(*item) for key, item in dict(zip(keys, items, strict=True)).items()}
    return tuple(map(made.__getitem__, keys))


def map_once(function: Callable[[T], Result], items: Sequence[T]) -> list[Result]:
    """Apply a function to all items, once to each object."""
    if len(items) == 1:
        return [function(items[0])]
    results = {place: function(item) for place, item in distinct(items).items()}
    return list(map(results.__getitem__, map(id, items)))


def distinct(items: Sequence[T]) -> dict[int, T]:
    """Collect the different objects among items by identity, in order of first occurrence."""
    return dict(zip(map(id, items), items, strict=True))


def repeated(items: Sequence[T]) -> list[tuple[T, int]]:
    """Collect the different objects among items, and how often each occurs."""
    if len(items) == 1:
        return [(items[0], 1)]
    times = Counter(map(id, items))
    return [(item, times[place]) for place, item in distinct(items).items()]
