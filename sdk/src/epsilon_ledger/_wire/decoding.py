"""Decoding of JSON into typed values by class annotations."""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

# These wire names would shadow builtins.
_WIRE_NAMES = {"privacy_filter": "filter", "next_cursor": "next"}


class MalformedError(Exception):
    """A member of a response is missing or has the wrong type."""


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
    for name, hint in _hints(shape).items():
        wire_name = _WIRE_NAMES.get(name, name)
        raw = data.get(wire_name)
        try:
            found[name] = _value(hint, raw)
        except MalformedError as error:
            raise MalformedError(f"{shape.__name__}.{wire_name}: {error}") from None
    return found


@cache
def _hints(shape: type) -> dict[str, Any]:
    return typing.get_type_hints(shape)


def _value(hint: Any, raw: object) -> object:  # noqa: ANN401 - a type hint can be anything
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        if raw is None:
            return None
        (hint,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
        return _value(hint, raw)
    if origin is tuple:
        if not isinstance(raw, list):
            raise MalformedError(f"expected a list, got {type(raw).__name__}")
        return tuple(_value(typing.get_args(hint)[0], item) for item in raw)
    expected = origin or hint
    if typing.is_typeddict(expected) or is_dataclass(expected):
        return decode(expected, raw)
    return _scalar(expected, raw)


def _scalar(expected: type, raw: object) -> object:
    if expected is datetime and isinstance(raw, str):
        return _timestamp(raw)
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


def _timestamp(raw: str) -> datetime:
    try:
        return datetime.fromisoformat(raw)
    except ValueError:
        raise MalformedError("expected an ISO 8601 time") from None
