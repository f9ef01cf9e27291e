"""From the ledger's JSON to typed values, by the annotations of the class that is wanted."""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

# Two names of the wire would shadow Python's own.
_WIRE_NAMES = {"privacy_filter": "filter", "next_cursor": "next"}


class MalformedError(Exception):
    """What the ledger sent lacks a member, or a member has another type than was agreed."""


def decode(shape: type[T], data: object) -> T:
    """Build a value of `shape` from a decoded JSON object.

    Args:
        shape: a class whose annotated members are its keyword arguments (a dataclass or a TypedDict).
        data: the decoded JSON; members that `shape` does not know are left out: a newer ledger may add some.

    Returns:
        The value.

    Raises:
        MalformedError: a member is missing or has another type.
    """
    if not isinstance(data, Mapping):
        raise MalformedError(f"expected an object for {shape.__name__}, got {type(data).__name__}")
    return shape(**members(shape, data))


def members(shape: type, data: Mapping[str, object]) -> dict[str, Any]:
    """Read every annotated member of `shape` from a decoded JSON object.

    Args:
        shape: any class with annotated members.
        data: the decoded JSON object.

    Returns:
        Member name to typed value; an optional member that is missing is None.

    Raises:
        MalformedError: a member is missing or has another type.
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
    wanted = origin or hint
    if typing.is_typeddict(wanted) or is_dataclass(wanted):
        return decode(wanted, raw)
    return _scalar(wanted, raw)


def _scalar(wanted: type, raw: object) -> object:
    if wanted is datetime and isinstance(raw, str):
        return _moment(raw)
    if wanted is float and raw == "Infinity":  # of JSON's own numbers none is
        return math.inf
    if wanted is float and isinstance(raw, int) and not isinstance(raw, bool):
        return _real(raw)
    if not isinstance(raw, wanted) or (isinstance(raw, bool) and wanted is not bool):
        raise MalformedError(f"expected {wanted.__name__}, got {type(raw).__name__}")
    return raw


def _real(raw: int) -> float:
    try:
        return float(raw)
    except OverflowError:
        raise MalformedError("expected a number that a float can hold") from None


def _moment(raw: str) -> datetime:
    try:
        return datetime.fromisoformat(raw)
    except ValueError:
        raise MalformedError("expected an ISO 8601 time") from None
