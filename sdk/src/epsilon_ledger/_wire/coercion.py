"""Validation of numbers and lists before they are sent."""

import math
from collections.abc import Iterable, Mapping
from operator import index
from typing import TypeVar

T = TypeVar("T")

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


def noise(value: float, name: str = "noise_multiplier") -> float:
    """Check a noise multiplier, noise over sensitivity; return it as a float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is outside of [1e-3, 1e6].
    """
    if value == math.inf:
        raise ValueError(
            f"{name} must be in [{LEAST_NOISE:g}, {MOST_NOISE:g}]: infinite noise releases nothing, which is no_op()."
        )
    return real(name, value, LEAST_NOISE, MOST_NOISE)


def real(name: str, value: float, least: float, most: float, *, above: bool = False, below: bool = False) -> float:
    """Check a finite number, also of numpy, in an interval; return it as a float.

    Args:
        name: for the message.
        value: the number.
        least: lower end of the interval.
        most: upper end of the interval.
        above: exclude `least`.
        below: exclude `most`.

    Raises:
        TypeError: it is not a number.
        ValueError: it is outside.
    """
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}.")
    number = float(value)
    inside = least <= number <= most and math.isfinite(number)
    if not inside or (above and number == least) or (below and number == most):
        upper = ")" if below or math.isinf(most) else "]"
        raise ValueError(f"{name} must be in {'(' if above else '['}{least:g}, {most:g}{upper}, not {number}.")
    return number


def one_of(name: str, value: T, allowed: tuple[T, ...]) -> T:
    """Check a value among few, and return it.

    Raises:
        ValueError: it is none of them.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, not {value!r}.")
    return value


def whole(name: str, value: int, least: int = 1) -> int:
    """Check an integer, also of numpy; return it as an int.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is less than `least`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, at least {least}, not {value!r}.")
    if index(value) < least:
        raise ValueError(f"{name} must be at least {least}, not {value}.")
    return index(value)


def items(name: str, values: Iterable[T], example: str) -> list[T]:
    """Check a collection, and return its items as a list.

    A text has items, too, and a single event has keys: neither is meant where a list is expected.

    Raises:
        TypeError: it is a text or a mapping, or has no items; `example` shows a valid value.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, such as {example}, not {values!r}.")
    return list(values)
