"""The base of all events: frozen dataclasses with a wire name, whose annotations bound their fields.

What else is known of an event is derived from its class: the API's schemas, and the mechanisms that a policy may allow.
The API's description of an event is the docstring up to its first section; that of a field is a text in the annotation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final, Protocol, TypeVar, get_type_hints, runtime_checkable

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


@runtime_checkable
class FieldCheck(Protocol):
    """The values that a field may hold, written as `Annotated` in an event class."""

    def checked(self, name: str, value: object) -> object:
        """Get the value to store in the field `name`; raise InvalidEventError if `value` is not allowed."""


@dataclass(frozen=True, slots=True)
class DpEvent:
    """Base of every event: one use of a mechanism (named as in dp_accounting)."""

    def __post_init__(self) -> None:
        """Check the form and the annotated fields. Subclasses call this by name: `slots=True` breaks `super()`."""
        declared = EVENT_TYPES[type(self)]
        if not declared.has_one_form(lambda name: getattr(self, name) is not None):
            raise InvalidEventError(f"An event of type {declared.name} has either {declared.forms_in_words()}.")
        for name, check in declared.checks.items():
            object.__setattr__(self, name, check.checked(name, getattr(self, name)))

    def curve_count(self) -> int:
        """Compute the maximum number of curves needed to price the event."""
        return sum(child.curve_count() for child in child_events(self)) or 1


EventT = TypeVar("EventT", bound=DpEvent)


@dataclass(frozen=True, slots=True)
class EventType:
    """What is declared of an event class.

    Args:
        name: `type` on the wire.
        checks: of its fields, by name.
        descriptions: of its fields for the API, by name; not of all.
        examples: fields of examples for the API.
        forms: sets of fields, of which an event has exactly one; none: its fields are independent.
    """

    name: str
    checks: Mapping[str, FieldCheck] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()
    forms: tuple[tuple[str, ...], ...] = ()

    @property
    def is_mechanism(self) -> bool:
        """Whether it contains no other event."""
        return "event" not in self.checks and "events" not in self.checks

    def has_one_form(self, is_given: Callable[[str], bool]) -> bool:
        """Check whether exactly one of the forms is given, and nothing of another one."""
        given = tuple(name for form in self.forms for name in form if is_given(name))
        return not self.forms or given in self.forms

    def forms_in_words(self, quote: str = "") -> str:
        """Write the forms as alternatives, with `quote` around names."""
        between = ", or " if any(len(form) > 1 for form in self.forms) else " or "
        return between.join(" and ".join(f"{quote}{name}{quote}" for name in form) for form in self.forms)


TYPE_BY_NAME: Final[dict[str, type[DpEvent]]] = {}
EVENT_TYPES: Final[dict[type[DpEvent], EventType]] = {}


def wire_type(
    name: str, *examples: Mapping[str, Any], forms: tuple[tuple[str, ...], ...] = ()
) -> Callable[[type[EventT]], type[EventT]]:
    """Register an event class under its `type` name on the wire; arguments are as for `EventType`."""

    def register(cls: type[EventT]) -> type[EventT]:
        checks, descriptions = {}, {}
        for field_name, hint in get_type_hints(cls, include_extras=True).items():
            for said in getattr(hint, "__metadata__", ()):
                if isinstance(said, FieldCheck):
                    checks[field_name] = said
                else:
                    descriptions[field_name] = said
        TYPE_BY_NAME[name] = cls
        EVENT_TYPES[cls] = EventType(name, checks, descriptions, examples, forms)
        return cls

    return register


def type_name(event: DpEvent) -> str:
    """Get the `type` name of an event on the wire."""
    return EVENT_TYPES[type(event)].name


def child_events(event: DpEvent) -> list[DpEvent]:
    """Get the events directly inside an event; a mechanism has none."""
    parts = getattr(event, "events", None)
    return list(parts) if parts else [event.event] if hasattr(event, "event") else []


def mechanisms_in(event: DpEvent) -> list[DpEvent]:
    """Get the mechanisms inside an event at any depth, or the event itself."""
    parts = child_events(event)
    return [leaf for each in parts for leaf in mechanisms_in(each)] if parts else [event]


@dataclass(frozen=True, slots=True)
class Real:
    """A number in an interval, stored as a float for canonical bytes.

    Args:
        low: the lower end; `above` excludes it.
        high: the upper end; `below` excludes it.
        meaning: describes the number at the end of an error's message, without a full stop.
        above: whether the number must be above `low`.
        below: whether the number must be below `high`.
        optional: whether None is allowed.
    """

    low: float
    high: float
    meaning: str
    above: bool = False
    below: bool = False
    optional: bool = False

    def checked(self, name: str, value: object) -> float | None:
        """Convert an allowed number to a float; NaN never is one."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidEventError(f"{name} must be a number, but it is {truncate(value)}.")
        try:
            number = float(value) + 0.0  # the sum turns -0.0 into 0.0: equal numbers have equal bytes
        except OverflowError:  # an integer beyond every float is beyond every bound too
            number = inf if value > 0 else -inf
        above_low = self.low < number if self.above else self.low <= number
        below_high = number < self.high if self.below else number <= self.high
        if not (above_low and below_high):
            raise InvalidEventError(f"{name} is {truncate(number)}, but it must {self._bounds()}: {self.meaning}.")
        return number

    def _bounds(self) -> str:
        if self.above or self.below:
            low, high = "above" if self.above else "at least", "below" if self.below else "at most"
            return f"be {low} {self.low:g} and {high} {self.high:g}"
        return f"lie between {self.low:g} and {self.high:g}"


def noise(sensitivity: str, *, optional: bool = False) -> Real:
    """Describe a noise multiplier in [1e-3, 1e6]; `sensitivity` is the norm that the noise is divided by."""
    meaning = (
        f"{sensitivity}. No noise at all is an infinite loss and cannot be charged; with infinite noise nothing is "
        "released, which is a no_op event"
    )
    return Real(MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER, meaning, optional=optional)


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer from `low` to `high`; 3.0 is none. `meaning` and `optional` are as for `Real`."""

    low: int
    high: int
    meaning: str
    optional: bool = False

    def checked(self, name: str, value: object) -> int | None:
        """Get an allowed integer."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidEventError(f"{name} must be a whole number, but it is {truncate(value)}.")
        if not self.low <= value <= self.high:
            raise InvalidEventError(
                f"{name} is {truncate(value)}, but it must lie between {self.low} and {self.high}: {self.meaning}."
            )
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several texts; `meaning` is as for `Real`."""

    options: tuple[str, ...]
    meaning: str

    def checked(self, name: str, value: object) -> str:
        """Get an allowed text."""
        if not isinstance(value, str) or value not in self.options:
            known = ", ".join(f'"{option}"' for option in self.options[:-1]) + f' or "{self.options[-1]}"'
            raise InvalidEventError(f"{name} is {truncate(value)}, but it must be {known}: {self.meaning}.")
        return value


@dataclass(frozen=True, slots=True)
class Inner:
    """An event; `role` completes "the event that" in an error's message."""

    role: str

    def checked(self, name: str, value: object) -> DpEvent:  # noqa: ARG002 - a list's items are events too
        """Get an event."""
        if not isinstance(value, DpEvent):
            example = '{"type": "gaussian", "noise_multiplier": 1.1}'
            raise InvalidEventError(f"event must be the event that {self.role}, for example {example}.")
        return value


@dataclass(frozen=True, slots=True)
class Items:
    """A list of 1 to `most` items, stored as a tuple; `what` names them in an error's message."""

    item: FieldCheck
    most: int
    what: str

    def checked(self, name: str, value: object) -> tuple[object, ...]:
        """Convert a list of allowed items to a tuple."""
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= self.most:
            raise InvalidEventError(f"{name} must be a list of 1 to {self.most} {self.what}.")
        return tuple(self.item.checked(name, item) for item in value)


def truncate(value: object) -> str:
    """Shorten a caller's value, so that a message never echoes a megabyte."""
    if isinstance(value, int) and value.bit_length() > 4 * MAX_SHOWN:
        return "a number without end"  # the interpreter refuses to print more than 4,300 digits
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"  # its text may be arbitrarily long
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
