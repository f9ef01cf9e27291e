"""Validation of arguments before anything is charged or drawn."""

from collections.abc import Mapping
from math import nextafter
from operator import index
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIN_NOISE_MULTIPLIER: Final = 1e-3
MAX_NOISE_MULTIPLIER: Final = 1e6
"""The service's bounds of noise multipliers and of the standard deviation of a count's noise."""

MIN_CLIPPING_NORM: Final = 1e-9
MAX_CLIPPING_NORM: Final = 1e9

ABOVE_ZERO: Final = nextafter(0.0, 1.0)
BELOW_ONE: Final = nextafter(1.0, 0.0)

_REAL = (int, float, np.integer, np.floating)


def real(name: str, value: object, low: float, high: float, meaning: str) -> float:
    """Check a number, also of numpy, in [low, high]; return it as a float.

    Args:
        name: of the argument.
        value: of the argument; booleans are no numbers.
        low: minimum.
        high: maximum.
        meaning: of the number, for the message.

    Raises:
        ValueError: it is no number, NaN, or out of the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, _REAL) or not low <= value <= high:
        least = "above 0" if low == ABOVE_ZERO else f"at least {low:g}"
        most = "below 1" if high == BELOW_ONE else f"at most {high:g}"
        raise ValueError(f"{name} is {value!r}, but it must be a number, {least} and {most}: {meaning}.")
    return float(value)


def whole(name: str, value: object, low: int, high: int, meaning: str) -> int:
    """Check an integer, also of numpy, in [low, high]; `meaning` is for the message.

    Raises:
        ValueError: it is no integer, or out of the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, but it must be a whole number from {low} to {high}: {meaning}.")
    return index(value)


def noise_multiplier(name: str, value: object) -> float:
    """Check a noise multiplier; return it as a float.

    Raises:
        ValueError: it is no number in [1e-3, 1e6].
    """
    meaning = "the noise's scale divided by the sensitivity of the sum"
    return real(name, value, MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER, meaning)


def clipping_norm(name: str, value: object) -> float:
    """Check a clipping norm; return it as a float.

    Raises:
        ValueError: it is no number in [1e-9, 1e9].
    """
    return real(name, value, MIN_CLIPPING_NORM, MAX_CLIPPING_NORM, "the L2 norm to which each summand is clipped")


def state(found: object, expected: frozenset[str], owner: str) -> Mapping[str, object]:
    """Check that a state has exactly the expected members of its owner.

    Raises:
        ValueError: it is no mapping, or its members differ.
    """
    if isinstance(found, Mapping) and found.keys() == expected:
        return found
    actual = f"this one has {sorted(found)}" if isinstance(found, Mapping) else f"this is {type(found).__name__}"
    raise ValueError(
        f"A state of {owner} has the members {sorted(expected)}, but {actual}: give what state_dict() returned."
    )


def vector(name: str, value: object, size: int) -> NDArray[np.float64]:
    """Copy a state's vector as (size,) floats.

    Raises:
        ValueError: it is no vector of that many finite numbers.
    """
    found = np.array(value, dtype=np.float64)
    if found.shape != (size,) or not np.isfinite(found).all():
        raise ValueError(f"{name} has the shape {found.shape}, but it must have {size} finite numbers in one row.")
    return found
