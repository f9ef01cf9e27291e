"""Searching: the least number that fits, where more of it always fits, among numbers with a few decimal digits."""

from collections.abc import Callable
from decimal import Decimal
from math import inf
from typing import Final

USUAL_SLOPE: Final = 1.5
"""Of the logarithm of epsilon over that of the noise."""

GENTLEST: Final = 0.01

FIRST_STEP: Final = 0.7
"""The longest first step towards a root, about a factor of two of the noise; each further one may be twice as long."""

FAR: Final = 0.02
OVERSHOOT: Final = 1.1
"""Far from a root a step goes a little further than the slope says, so that the root soon lies between two points."""

MOST_TRIALS: Final = 60
"""A function that jumps has no root, and being near the jump is as good."""


def least(fits_at: Callable[[int], bool], near: int, first: int, last: int) -> int | None:
    """Return the least whole number that fits, where every number above one that fits does too.

    Two trials are enough where `near` is the answer; otherwise their number grows with the logarithm of its distance.

    Args:
        fits_at: whether a number fits.
        near: where to begin; it need not be in bounds.
        first: the least number that may be tried.
        last: the largest one.

    Returns:
        A number that was tried and fits, while the one below it was tried and does not, or is out of bounds; None if
        not even `last` fits.
    """
    high, stride = min(max(near, first), last), 1
    low = high
    if fits_at(high):
        while high > first:
            low = max(high - stride, first)
            if not fits_at(low):
                break
            high, stride = low, stride * 8
        else:
            return high
    else:
        while low < last:
            high = min(low + stride, last)
            if fits_at(high):
                break
            low, stride = high, stride * 8
        else:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits_at(middle) else (middle, high)
    return high


def root(falling: Callable[[float], float], start: float, bounds: tuple[float, float], close: float) -> float:
    """Return where a falling function crosses 0.

    Args:
        falling: finite.
        start: where to begin, within the bounds.
        bounds: the least and the largest argument.
        close: how near the function must come to 0, or the place to the root.

    Returns:
        The place, or the bound on its side if the function crosses 0 nowhere between them. A secant's end is returned
        untried where its error, about the product of its two values, is small enough.

    Source:
        Dekker 1969: secants through the latest two points, and halves where a secant leaves the bracket.
    """
    low, high = bounds
    at, value, before = start, falling(start), inf
    slope, furthest, crossed = USUAL_SLOPE, FIRST_STEP, False
    for _ in range(MOST_TRIALS):
        if abs(value) <= close or (crossed and high - low <= close):
            break
        low, high = (at, high) if value > 0 else (low, at)
        step = value / slope * (OVERSHOOT if abs(value) > FAR else 1)
        following = at + step if crossed else min(max(at + min(max(step, -furthest), furthest), low), high)
        if crossed and not low < following < high:
            following = (low + high) / 2
        elif abs(value * before) <= close:
            return following
        if following == at:
            break
        then = falling(following)
        crossed = crossed or then * value < 0
        slope = max((value - then) / (following - at), GENTLEST)
        at, value, before, furthest = following, then, value, 2 * furthest
    return at


def decimal(index: int, digits: int) -> float:
    """Return a number with a few significant decimal digits: with four, 1.000 is 0, 1.001 is 1, 10.00 is 9000.

    Args:
        index: of the number, counted upwards.
        digits: at least 1.

    Returns:
        The positive float nearest to the number.
    """
    smallest_mantissa = int(10 ** (digits - 1))
    decade, offset = divmod(index, 9 * smallest_mantissa)
    return float(f"{smallest_mantissa + offset}e{decade - digits + 1}")


def index_at_or_below(value: float, digits: int) -> int:
    """Return the index of the largest number with a few digits that is not above a value.

    Args:
        value: finite and positive.
        digits: at least 1.

    Returns:
        The index, as `decimal` counts.
    """
    smallest_mantissa = int(10 ** (digits - 1))
    number = Decimal(repr(value))
    decade = number.adjusted()
    return (9 * decade - 1) * smallest_mantissa + int(number.scaleb(digits - 1 - decade))
