"""What every event is: a frozen record under a wire name, whose numbers were checked when it was made."""

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
"""Characters of a caller's value in a message."""


class NeighboringRelation(StrEnum):
    """Which data sets count as neighbours."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    REPLACE_SPECIAL = "replace_special"


@dataclass(frozen=True, slots=True)
class DpEvent:
    """Base of every event: what one use of a mechanism did to the data (named as in dp_accounting)."""


EventT = TypeVar("EventT", bound=DpEvent)

TYPE_BY_NAME: Final[dict[str, type[DpEvent]]] = {}
NAME_BY_TYPE: Final[dict[type[DpEvent], str]] = {}


def wire_type(name: str) -> Callable[[type[EventT]], type[EventT]]:
    """Register an event class under the name that its wire form has in `type`.

    Args:
        name: in snake_case.

    Returns:
        A decorator that leaves the class as it is.
    """

    def register(cls: type[EventT]) -> type[EventT]:
        TYPE_BY_NAME[name] = cls
        NAME_BY_TYPE[cls] = name
        return cls

    return register


def type_name(event: DpEvent) -> str:
    """Return the name that an event's wire form has in `type`."""
    return NAME_BY_TYPE[type(event)]


@singledispatch
def curve_count(event: DpEvent) -> int:  # noqa: ARG001 - dispatch looks at it
    """Return how many curves must be computed to price an event, at most: what a request is limited by.

    Args:
        event: the event.

    Returns:
        1 for an event that holds no other, else what the events in it take.
    """
    return 1


def inside(event: DpEvent) -> list[DpEvent]:
    """Get the events directly in an event; none in a mechanism."""
    parts = getattr(event, "events", None)
    return list(parts) if parts else [event.event] if hasattr(event, "event") else []


def leaves(event: DpEvent) -> list[DpEvent]:
    """Get the mechanisms in an event: itself, or those in it, however deep."""
    parts = inside(event)
    return [leaf for each in parts for leaf in leaves(each)] if parts else [event]


@dataclass(frozen=True, slots=True)
class Interval:
    """The real numbers that a field may have.

    Args:
        low: the lower end.
        high: the upper end.
        above: whether the lower end itself is left out.
        below: whether the upper end itself is left out.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        """Whether a number is allowed; NaN never is."""
        return (self.low < value or (value == self.low and not self.above)) and (
            value < self.high or (value == self.high and not self.below)
        )

    def __str__(self) -> str:
        """Say it in the words of a message: "must ..."."""
        if self.above or self.below:
            low, high = "above" if self.above else "at least", "below" if self.below else "at most"
            return f"be {low} {self.low:g} and {high} {self.high:g}"
        return f"lie between {self.low:g} and {self.high:g}"


NOISE_MULTIPLIERS: Final = Interval(MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER)
PROBABILITIES: Final = Interval(0, 1, above=True)
EPSILONS: Final = Interval(0, MAX_EPSILON, above=True)
DELTAS: Final = Interval(0, 0.5, below=True)


def set_real(event: DpEvent, name: str, allowed: Interval, meaning: str) -> None:
    """Check a field and keep it as a float, so that equal events have equal bytes.

    Args:
        event: being made.
        name: of the field.
        allowed: its bounds.
        meaning: what the number stands for, the end of a sentence without its full stop.

    Raises:
        InvalidEventError: the field is no number, or out of its bounds.
    """
    number = _real(name, getattr(event, name))
    if number not in allowed:
        raise InvalidEventError(f"{name} is {shown(number)}, but it must {allowed}: {meaning}.")
    object.__setattr__(event, name, number)


def set_noise_multiplier(event: DpEvent, sensitivity: str) -> None:
    """Check the noise multiplier of an event that adds noise to a sum.

    Args:
        event: being made.
        sensitivity: what the noise's scale is divided by.

    Raises:
        InvalidEventError: it is no number in [1e-3, 1e6].
    """
    set_real(
        event,
        "noise_multiplier",
        NOISE_MULTIPLIERS,
        f"{sensitivity}. No noise at all is an infinite loss and cannot be charged",
    )


def check_whole(name: str, value: object, low: int, high: int, meaning: str) -> None:
    """Refuse what is no whole number within bounds; 3.0 and true are none.

    Args:
        name: of the field.
        value: of the field.
        low: the smallest that is allowed.
        high: the largest that is allowed.
        meaning: what the number stands for, the end of a sentence without its full stop.

    Raises:
        InvalidEventError: it is no whole number, or out of its bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEventError(f"{name} must be a whole number, but it is {shown(value)}.")
    if not low <= value <= high:
        raise InvalidEventError(f"{name} is {shown(value)}, but it must lie between {low} and {high}: {meaning}.")


def as_tuple(name: str, value: object, most: int, what: str) -> tuple[object, ...]:
    """Return a list's items, as a value that can be shared and hashed.

    Args:
        name: of the field.
        value: of the field.
        most: items that it may have.
        what: the items are, in the plural.

    Raises:
        InvalidEventError: it is no list, empty, or too long.
    """
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= most:
        raise InvalidEventError(f"{name} must be a list of 1 to {most} {what}.")
    return tuple(value)


def check_event(value: object, role: str) -> None:
    """Refuse what is no event.

    Args:
        value: of the field `event`.
        role: what the event is here, the end of "the event that ...".

    Raises:
        InvalidEventError: it is none.
    """
    if not isinstance(value, DpEvent):
        raise InvalidEventError(
            f'event must be the event that {role}, for example {{"type": "gaussian", "noise_multiplier": 1.1}}.'
        )


def shown(value: object) -> str:
    """Shorten what a caller sent, so that a message never carries a megabyte back."""
    if isinstance(value, int) and value.bit_length() > 4 * MAX_SHOWN:
        return "a number without end"  # the interpreter refuses to write more than 4,300 digits
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"  # its own text may be without end
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidEventError(f"{name} must be a number, but it is {shown(value)}.")
    try:
        return float(value) + 0.0  # the sum turns -0.0 into 0.0: equal numbers have equal bytes
    except OverflowError:  # an integer beyond every float is beyond every bound too
        return inf if value > 0 else -inf
