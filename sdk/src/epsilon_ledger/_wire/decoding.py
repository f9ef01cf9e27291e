"""Decoding of JSON into typed values by class annotations."""

import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

ABSENT = "absent"
"""Key of a field's metadata: its value where an answer lacks the member."""

T = TypeVar("T")

_Decoder: TypeAlias = Callable[[object], object]

# The wire name would shadow a builtin.
_WIRE_NAMES = {"next_cursor": "next"}


class MalformedError(Exception):
    """A member of a response is missing or has the wrong type."""


def parse_json(text: str | bytes) -> object:
    """Parse JSON without repeated names: readers differ on which of two values they take.

    Raises:
        ValueError: it is not such JSON.
        RecursionError: it is nested too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _JSON.decode(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the member {max(names, key=names.count)[:100]!a} is given twice")
    return members


# Made once: `json.loads` makes one for each text.
_JSON = json.JSONDecoder(object_pairs_hook=_object)


def decode(shape: type[T], data: object) -> T:
    """Decode a JSON object into a dataclass or TypedDict; unknown members are ignored.

    Raises:
        MalformedError: a member is missing or has the wrong type.
    """
    if not isinstance(data, Mapping):
        raise MalformedError(f"expected an object for {shape.__name__}, got {type(data).__name__}")
    return shape(**members(shape, data))


def members(shape: type, data: Mapping[str, object]) -> dict[str, Any]:
    """Decode every annotated member of a class by name; missing optional ones are None.

    Raises:
        MalformedError: a member is missing or has the wrong type.
    """
    found: dict[str, Any] = {}
    for name, wire_name, decoder in _member_decoders(shape):
        try:
            found[name] = decoder(data.get(wire_name))
        except MalformedError as error:
            raise MalformedError(f"{shape.__name__}.{wire_name}: {error}") from None
    return found


@cache
def _member_decoders(shape: type) -> tuple[tuple[str, str, _Decoder], ...]:
    """Return the name, the wire name and the decoder of every annotated member."""
    hints = typing.get_type_hints(shape)
    own = fields(shape) if is_dataclass(shape) else ()
    absent = {each.name: each.metadata[ABSENT] for each in own if ABSENT in each.metadata}
    decoders = {name: _decoder(hint) for name, hint in hints.items()}
    decoders |= {name: partial(_or_absent, decoders[name], value) for name, value in absent.items()}
    return tuple((name, _WIRE_NAMES.get(name, name), decoder) for name, decoder in decoders.items())


def _or_absent(decoder: _Decoder, value: object, raw: object) -> object:
    return value if raw is None else decoder(raw)


def _decoder(hint: Any) -> _Decoder:  # noqa: ANN401 - a type hint can be anything
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        options = [_decoder(option) for option in typing.get_args(hint) if option is not types.NoneType]
        return partial(_optional, options[0] if len(options) == 1 else partial(_any, options))
    if origin is tuple:
        return partial(_list, _decoder(typing.get_args(hint)[0]))
    expected = origin or hint
    if typing.is_typeddict(expected) and not expected.__total__:
        return _partial
    if typing.is_typeddict(expected) or is_dataclass(expected):
        return partial(decode, expected)
    return partial(_scalar, expected)


def _optional(decoder: _Decoder, raw: object) -> object:
    return None if raw is None else decoder(raw)


def _any(decoders: Sequence[_Decoder], raw: object) -> object:
    """Decode by the first of several decoders that takes a value."""
    for decoder in decoders[:-1]:
        with suppress(MalformedError):
            return decoder(raw)
    return decoders[-1](raw)


def _list(decoder: _Decoder, raw: object) -> object:
    if not isinstance(raw, list):
        raise MalformedError(f"expected a list, got {type(raw).__name__}")
    return tuple(decoder(item) for item in raw)


def _partial(raw: object) -> object:
    """Keep all members, also those of newer versions, so that they are sent back unchanged."""
    if not isinstance(raw, Mapping):
        raise MalformedError(f"expected an object, got {type(raw).__name__}")
    return dict(raw)


def _scalar(expected: type, raw: object) -> object:
    if type(raw) is expected:
        return raw
    if expected is datetime and isinstance(raw, str):
        return _timestamp(raw)
    if expected is date and isinstance(raw, str):
        return _day(raw)
    if expected is float and raw == "Infinity":  # of JSON's own numbers none is
        return math.inf
    if expected is float and isinstance(raw, int) and not isinstance(raw, bool):
        return _real(raw)
    if not isinstance(raw, expected) or (isinstance(raw, bool) and expected is not bool):
        raise MalformedError(f"expected {expected.__name__}, got {type(raw).__name__}")
    return raw


def _real(raw: int) -> float:
    try:
        return float(raw)
    except OverflowError:
        raise MalformedError("expected a number that a float can hold") from None


def _day(raw: str) -> date:
    try:
        return date.fromisoformat(raw)
    except ValueError:
        raise MalformedError("expected an ISO 8601 date") from None


def _timestamp(raw: str) -> datetime:
    try:
        return datetime.fromisoformat(raw)
    except ValueError:
        raise MalformedError("expected an ISO 8601 time") from None
