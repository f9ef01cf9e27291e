"""The base of all events: frozen dataclasses with a wire name and validated numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import singledispatch
from math import inf
from typing import Final, TypeVar

from app.accounting.errors import InvalidEventError
from app.accounting.formulas.noise_schedules import MIN_NOISE_MULTIPLIER

MAX_NOISE_MULTIPLIER: Final = 1e6
MAX_EPSILON: Final = 1e4
MAX_COUNT: Final = 1_000_000_000
MAX_SHOWN: Final = 40
"""Maximum characters of a caller's value in a message."""


class NeighboringRelation(StrEnum):
    """The relation that defines neighbouring data sets."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    REPLACE_SPECIAL = "replace_special"


@dataclass(frozen=True, slots=True)
class DpEvent:
    """Base of every event: one use of a mechanism (named as in dp_accounting)."""


EventT = TypeVar("EventT", bound=DpEvent)

TYPE_BY_NAME: Final[dict[str, type[DpEvent]]] = {}
NAME_BY_TYPE: Final[dict[type[DpEvent], str]] = {}


def wire_type(name: str) -> Callable[[type[EventT]], type[EventT]]:
    """Register an event class under its `type` name on the wire."""

    def register(cls: type[EventT]) -> type[EventT]:
        TYPE_BY_NAME[name] = cls
        NAME_BY_TYPE[cls] = name
        return cls

    return register


def type_name(event: DpEvent) -> str:
    """Get the `type` name of an event on the wire."""
    return NAME_BY_TYPE[type(event)]


@singledispatch
def curve_count(event: DpEvent) -> int:  # noqa: ARG001 - dispatch looks at it
    """Compute the maximum number of curves needed to price an event."""
    return 1


def child_events(event: DpEvent) -> list[DpEvent]:
    """Get the events directly inside an event; a mechanism has none."""
    parts = getattr(event, "events", None)
    return list(parts) if parts else [event.event] if hasattr(event, "event") else []


def mechanisms_in(event: DpEvent) -> list[DpEvent]:
    """Get the mechanisms inside an event at any depth, or the event itself."""
    parts = child_events(event)
    return [leaf for each in parts for leaf in mechanisms_in(each)] if parts else [event]


@dataclass(frozen=True, slots=True)
class Interval:
    """The real numbers that a field may have; `above` and `below` exclude the ends."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        """Check whether a number is allowed; NaN never is."""
        return (self.low < value or (value == self.low and not self.above)) and (
            value < self.high or (value == self.high and not self.below)
        )

    def __str__(self) -> str:
        """Describe the interval for a message, after "must"."""
        if self.above or self.below:
            low, high = "above" if self.above else "at least", "below" if self.below else "at most"
            return f"be {low} {self.low:g} and {high} {self.high:g}"
        return f"lie between {self.low:g} and {self.high:g}"


NOISE_MULTIPLIERS: Final = Interval(MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER)
PROBABILITIES: Final = Interval(0, 1, above=True)
EPSILONS: Final = Interval(0, MAX_EPSILON, above=True)
DELTAS: Final = Interval(0, 0.5, below=True)


def set_real(event: DpEvent, name: str, allowed: Interval, meaning: str) -> None:
    """Validate a field and store it as a float for canonical bytes.

    `meaning` ends the message of the InvalidEventError: a description of the number without a full stop.
    """
    number = _real(name, getattr(event, name))
    if number not in allowed:
        raise InvalidEventError(f"{name} is {truncate(number)}, but it must {allowed}: {meaning}.")
    object.__setattr__(event, name, number)


def set_noise_multiplier(event: DpEvent, sensitivity: str) -> None:
    """Validate the noise multiplier of an event, in [1e-3, 1e6].

    `sensitivity` describes in the message the norm that the noise is divided by.
    """
    set_real(
        event,
        "noise_multiplier",
        NOISE_MULTIPLIERS,
        f"{sensitivity}. No noise at all is an infinite loss and cannot be charged",
    )


def check_whole(name: str, value: object, low: int, high: int, meaning: str) -> None:
    """Reject a value that is no integer within bounds; 3.0 is none.

    `meaning` ends the message of the InvalidEventError: a description of the number without a full stop.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEventError(f"{name} must be a whole number, but it is {truncate(value)}.")
    if not low <= value <= high:
        raise InvalidEventError(f"{name} is {truncate(value)}, but it must lie between {low} and {high}: {meaning}.")


def as_tuple(name: str, value: object, most: int, what: str) -> tuple[object, ...]:
    """Convert a nonempty list to a tuple; `what` names its items in messages."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= most:
        raise InvalidEventError(f"{name} must be a list of 1 to {most} {what}.")
    return tuple(value)


def check_event(value: object, role: str) -> None:
    """Reject a value that is no event; `role` completes "the event that"."""
    if not isinstance(value, DpEvent):
        raise InvalidEventError(
            f'event must be the event that {role}, for example {{"type": "gaussian", "noise_multiplier": 1.1}}.'
        )


def truncate(value: object) -> str:
    """Shorten a caller's value, so that a message never echoes a megabyte."""
    if isinstance(value, int) and value.bit_length() > 4 * MAX_SHOWN:
        return "a number without end"  # the interpreter refuses to print more than 4,300 digits
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"  # its text may be arbitrarily long
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidEventError(f"{name} must be a number, but it is {truncate(value)}.")
    try:
        return float(value) + 0.0  # the sum turns -0.0 into 0.0: equal numbers have equal bytes
    except OverflowError:  # an integer beyond every float is beyond every bound too
        return inf if value > 0 else -inf
