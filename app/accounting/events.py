"""What mechanisms did to the data: frozen DpEvents, their wire form, canonical form and fingerprint.

A new event type is one dataclass under `@_wire_type(name)` here, with its noise multiplier registered below it,
and one formula in `rdp.py`. Field values are numbers or events; the wire form follows from the fields.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import singledispatch
from hashlib import sha256
from math import inf
from typing import TypeVar

from app.accounting.errors import InvalidEventError, UnsupportedEventError

MIN_NOISE_MULTIPLIER = 1e-3
MAX_NOISE_MULTIPLIER = 1e6
MAX_NESTING = 16  # no mechanism nests deeper; a hostile body must not exhaust the interpreter's stack
MAX_SHOWN = 40  # characters of a caller's value in a message


class NeighboringRelation(StrEnum):
    """Which data sets count as neighbours."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    REPLACE_SPECIAL = "replace_special"


@dataclass(frozen=True, slots=True)
class DpEvent:
    """Base of every event: what one use of a mechanism did to the data (named as in dp_accounting)."""


EventT = TypeVar("EventT", bound=DpEvent)

_TYPE_BY_NAME: dict[str, type[DpEvent]] = {}
_NAME_BY_TYPE: dict[type[DpEvent], str] = {}


def _wire_type(name: str) -> Callable[[type[EventT]], type[EventT]]:
    def register(cls: type[EventT]) -> type[EventT]:
        _TYPE_BY_NAME[name] = cls
        _NAME_BY_TYPE[cls] = name
        return cls

    return register


@_wire_type("gaussian")
@dataclass(frozen=True, slots=True)
class Gaussian(DpEvent):
    """A sum with Gaussian noise.

    Args:
        noise_multiplier: standard deviation of the noise divided by the L2 sensitivity of the sum (for
            DP-SGD: sigma / clipping norm), in [1e-3, 1e6].

    Raises:
        InvalidEventError: the noise multiplier is not a number in these bounds.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check the bounds; an integer becomes a float so that equal events have equal bytes."""
        z = _real("noise_multiplier", self.noise_multiplier)
        if not MIN_NOISE_MULTIPLIER <= z <= MAX_NOISE_MULTIPLIER:
            raise InvalidEventError(
                f"noise_multiplier is {_shown(z)}, but it must lie between {MIN_NOISE_MULTIPLIER:g} and "
                f"{MAX_NOISE_MULTIPLIER:g}: the noise's standard deviation divided by the sum's sensitivity. "
                "No noise at all is an infinite loss and cannot be charged."
            )
        object.__setattr__(self, "noise_multiplier", z)


@_wire_type("poisson_sampled")
@dataclass(frozen=True, slots=True)
class PoissonSampled(DpEvent):
    """A mechanism run on a Poisson sample: every record is taken independently with the same probability.

    Args:
        sampling_probability: probability with which each record is taken, in (0, 1].
        event: what happened to the sample.

    Raises:
        InvalidEventError: the probability is out of bounds or `event` is not an event.
    """

    sampling_probability: float
    event: DpEvent

    def __post_init__(self) -> None:
        """Check the bounds; an integer becomes a float so that equal events have equal bytes."""
        q = _real("sampling_probability", self.sampling_probability)
        if not 0 < q <= 1:
            raise InvalidEventError(
                f"sampling_probability is {_shown(q)}, but it must be above 0 and at most 1: "
                "the probability with which each record is taken, independently of the others."
            )
        if not isinstance(self.event, DpEvent):
            raise InvalidEventError(
                "event must be the event that happened to the sample, for example "
                '{"type": "gaussian", "noise_multiplier": 1.1}.'
            )
        object.__setattr__(self, "sampling_probability", q)


@singledispatch
def noise_multiplier(event: DpEvent) -> float:
    """Return the one noise multiplier inside an event.

    Args:
        event: the event.

    Returns:
        Noise scale divided by the sensitivity of the sum.

    Raises:
        UnsupportedEventError: events of this type have no single noise multiplier.
    """
    raise UnsupportedEventError(f"{_NAME_BY_TYPE[type(event)]} has no single noise multiplier.")


@singledispatch
def with_noise_multiplier(event: DpEvent, z: float) -> DpEvent:
    """Return the same event with another noise multiplier.

    Args:
        event: the event.
        z: the new noise multiplier, in [1e-3, 1e6].

    Returns:
        A new event; nothing but the noise multiplier differs.

    Raises:
        InvalidEventError: `z` is out of bounds.
        UnsupportedEventError: events of this type have no single noise multiplier.
    """
    raise UnsupportedEventError(
        f"{_NAME_BY_TYPE[type(event)]} has no single noise multiplier that could be replaced by {z:g}."
    )


@noise_multiplier.register
def _(event: Gaussian) -> float:
    return event.noise_multiplier


@with_noise_multiplier.register
def _(event: Gaussian, z: float) -> DpEvent:
    return replace(event, noise_multiplier=z)


@noise_multiplier.register
def _(event: PoissonSampled) -> float:
    return noise_multiplier(event.event)


@with_noise_multiplier.register
def _(event: PoissonSampled, z: float) -> DpEvent:
    return replace(event, event=with_noise_multiplier(event.event, z))


def event_to_dict(event: DpEvent) -> dict[str, object]:
    """Return an event's wire form.

    Args:
        event: the event.

    Returns:
        A JSON object with `type` and the event's fields, nested as the event is.
    """
    wire: dict[str, object] = {"type": _NAME_BY_TYPE[type(event)]}
    for field in fields(event):
        wire[field.name] = _to_wire(getattr(event, field.name))
    return wire


def event_from_dict(wire: object) -> DpEvent:
    """Read an event from its wire form.

    Args:
        wire: a JSON object, for example `{"type": "gaussian", "noise_multiplier": 1.1}`.

    Returns:
        The event, checked.

    Raises:
        InvalidEventError: not an object, a field missing, unknown or out of bounds, or nested too deep.
        UnsupportedEventError: `type` names no supported event.
    """
    return _event_from_dict(wire, depth=1)


def canonical(event: DpEvent) -> bytes:
    """Return the one byte string that stands for an event: sorted JSON, no spaces, shortest exact floats.

    Args:
        event: the event.

    Returns:
        ASCII bytes; equal events give equal bytes and different events different ones.
    """
    wire = event_to_dict(event)
    return json.dumps(wire, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def event_from_canonical(data: bytes) -> DpEvent:
    """Read an event back from its canonical form.

    Args:
        data: what `canonical` returned.

    Returns:
        The event, equal to the one that was written.

    Raises:
        InvalidEventError: `data` is not the wire form of a valid event.
        UnsupportedEventError: `type` names no supported event.
    """
    try:
        wire = json.loads(data)
    except ValueError as error:
        raise InvalidEventError("An event's canonical form must be JSON.") from error
    return event_from_dict(wire)


def fingerprint(event: DpEvent) -> str:
    """Return the name of an event's content.

    Args:
        event: the event.

    Returns:
        SHA-256 of the canonical form, 64 hexadecimal digits.
    """
    return sha256(canonical(event)).hexdigest()


def _to_wire(value: object) -> object:
    return event_to_dict(value) if isinstance(value, DpEvent) else value


def _event_from_dict(wire: object, depth: int) -> DpEvent:
    if depth > MAX_NESTING:
        raise InvalidEventError(f"The event is nested more than {MAX_NESTING} deep; no mechanism needs that.")
    if not isinstance(wire, Mapping):
        raise InvalidEventError('An event must be an object such as {"type": "gaussian", "noise_multiplier": 1.1}.')
    name = wire.get("type")
    cls = _TYPE_BY_NAME.get(name) if isinstance(name, str) else None
    if cls is None:
        supported = ", ".join(sorted(_TYPE_BY_NAME))
        raise UnsupportedEventError(f"The event type {_shown(name)} is not supported; supported are: {supported}.")
    expected = {field.name for field in fields(cls)}
    given = wire.keys() - {"type"}
    if given != expected:
        unknown = ", ".join(sorted(str(key) for key in given - expected))
        missing = ", ".join(sorted(expected - given))
        raise InvalidEventError(
            f"A {name} event has the fields {', '.join(sorted(expected))}; "
            f"missing: {missing or 'none'}; unknown: {_shown(unknown) if unknown else 'none'}."
        )
    return cls(**{key: _from_wire(wire[key], depth + 1) for key in expected})


def _from_wire(value: object, depth: int) -> object:
    return _event_from_dict(value, depth) if isinstance(value, Mapping) else value


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidEventError(f"{name} must be a number, but it is {_shown(value)}.")
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float is beyond every bound too
        return inf if value > 0 else -inf


def _shown(value: object) -> str:
    """Shorten what a caller sent, so that a message never carries a megabyte back."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
