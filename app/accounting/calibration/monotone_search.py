"""Search monotone predicates over numbers with a few decimal digits, and find roots."""

from collections.abc import Callable
from decimal import Decimal
from math import inf
from typing import Final

USUAL_SLOPE: Final = 1.5
"""Slope of ln epsilon over the logarithm of the noise."""

MIN_SLOPE: Final = 0.01

FIRST_STEP: Final = 0.7
"""Maximum first step towards a root, about a factor of two of the noise; the limit doubles with each step."""

FAR: Final = 0.02
OVERSHOOT: Final = 1.1
"""Far from a root, steps exceed the secant's so that two points soon bracket the root."""

MAX_TRIALS: Final = 60
"""A function that jumps has no root; a point near the jump is good enough."""


def smallest_fitting(fits_at: Callable[[int], bool], near: int, first: int, last: int) -> int | None:
    """Find the smallest integer that fits, given that every larger one fits.

    It takes two trials if `near`, a guess that may be out of bounds, is the answer, else a number that grows with the
    logarithm of its distance. The result was checked, and its predecessor too; None if `last` does not fit.
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
    """Find the zero of a finite decreasing function, or the nearer bound.

    Secants through the last two points, bisection where a secant leaves the bracket (Dekker 1969). `close` is the
    tolerance for the function's value or the argument. The end of a secant is returned unevaluated if its error, about
    the product of its two values, is small enough.
    """
    low, high = bounds
    at, value, before = start, falling(start), inf
    slope, furthest, crossed = USUAL_SLOPE, FIRST_STEP, False
    for _ in range(MAX_TRIALS):
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
        slope = max((value - then) / (following - at), MIN_SLOPE)
        at, value, before, furthest = following, then, value, 2 * furthest
    return at


def decimal(index: int, digits: int) -> float:
    """Convert an index to a number with a few significant digits.

    With four digits, 0 is 1.000, 1 is 1.001 and 9000 is 10.00.
    """
    smallest_mantissa = int(10 ** (digits - 1))
    decade, offset = divmod(index, 9 * smallest_mantissa)
    return float(f"{smallest_mantissa + offset}e{decade - digits + 1}")


def index_at_or_below(value: float, digits: int) -> int:
    """Find the `decimal` index of the largest number not above a value."""
    smallest_mantissa = int(10 ** (digits - 1))
    number = Decimal(repr(value))
    decade = number.adjusted()
    return (9 * decade - 1) * smallest_mantissa + int(number.scaleb(digits - 1 - decade))
