"""Events as JSON: wire form, canonical bytes and fingerprint.

The wire form is `type` and every field that differs from its default.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from hashlib import sha256
from typing import Final

from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events.base import TYPE_BY_NAME, DpEvent, truncate, type_name

MAX_NESTING: Final = 16
"""Far deeper than any mechanism; a hostile body must not exhaust the interpreter's stack."""


def event_to_dict(event: DpEvent) -> dict[str, object]:
    """Convert an event to its wire form."""
    wire: dict[str, object] = {"type": type_name(event)}
    for field in fields(event):
        value = getattr(event, field.name)
        if value != field.default:
            wire[field.name] = _to_wire(value)
    return wire


def event_from_dict(wire: object) -> DpEvent:
    """Parse and validate an event from its wire form.

    Args:
        wire: a JSON object, for example `{"type": "gaussian", "noise_multiplier": 1.1}`.

    Raises:
        InvalidEventError: not an object, nested too deeply, or a field is missing, unknown or out of bounds.
        UnsupportedEventError: `type` is unknown, or no formula covers the combination of events.
    """
    return _event_from_dict(wire, depth=1)


def canonical(event: DpEvent) -> bytes:
    """Serialize an event to unique bytes: sorted ASCII JSON with exact floats."""
    wire = event_to_dict(event)
    return json.dumps(wire, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def event_from_canonical(data: bytes) -> DpEvent:
    """Parse an event from its canonical bytes; errors as for `event_from_dict`."""
    try:
        wire = json.loads(data)
    except ValueError as error:
        raise InvalidEventError("An event's canonical form must be JSON.") from error
    return event_from_dict(wire)


@lru_cache(maxsize=1024)
def fingerprint(event: DpEvent) -> str:
    """Compute the SHA-256 hex digest of an event's canonical form."""
    return sha256(canonical(event)).hexdigest()


def _to_wire(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_wire(item) for item in value]
    return event_to_dict(value) if isinstance(value, DpEvent) else value


def _event_from_dict(wire: object, depth: int) -> DpEvent:
    if depth > MAX_NESTING:
        raise InvalidEventError(f"The event is nested more than {MAX_NESTING} deep; no mechanism needs that.")
    if not isinstance(wire, Mapping):
        raise InvalidEventError('An event must be an object such as {"type": "gaussian", "noise_multiplier": 1.1}.')
    name = wire.get("type")
    cls = TYPE_BY_NAME.get(name) if isinstance(name, str) else None
    if cls is None:
        supported = ", ".join(sorted(TYPE_BY_NAME))
        raise UnsupportedEventError(f"The event type {truncate(name)} is not supported; supported are: {supported}.")
    known = {field.name: field.default is MISSING for field in fields(cls)}
    given = wire.keys() - {"type"}
    missing = {field for field, required in known.items() if required} - given
    if missing or not given <= known.keys():
        unknown = ", ".join(sorted(str(key) for key in given - known.keys()))
        raise InvalidEventError(
            f"An event of type {name} has the fields {', '.join(sorted(known))}; "
            f"missing: {', '.join(sorted(missing)) or 'none'}; unknown: {truncate(unknown) if unknown else 'none'}."
        )
    return cls(**{key: _from_wire(wire[key], depth + 1) for key in given})


def _from_wire(value: object, depth: int) -> object:
    if isinstance(value, list):
        return tuple(_event_from_dict(item, depth) if isinstance(item, Mapping) else item for item in value)
    return _event_from_dict(value, depth) if isinstance(value, Mapping) else value
