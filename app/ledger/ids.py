"""Ids of organisations and accounts, and the integers that are stored for them.

An id such as `run_19aa5b3c4d7b0c1` is a prefix and fifteen hexadecimal digits. Its integer is those 60 bits below two
bits for the prefix. Ids and integers have the same order, and no other text has an integer.
"""

from functools import lru_cache
from typing import Final

DIGITS: Final = 15
TIME_DIGITS: Final = 11
"""Of milliseconds, with which the digits of every id begin."""
NO_NUMBER: Final = -1
"""Stored for no id: the integer of a text that is none."""

PREFIXES: Final = ("bud", "org", "pop", "run")
"""In the order of their integers, which is alphabetical like that of the ids."""

BITS: Final = 4 * DIGITS
MASK: Final = (1 << BITS) - 1
_HEX: Final = frozenset("0123456789abcdef")


def number_of(public_id: str) -> int:
    """Get the integer of an id, NO_NUMBER for any other text."""
    prefix, _, digits = public_id.partition("_")
    if prefix not in PREFIXES or len(digits) != DIGITS or not _HEX.issuperset(digits):
        return NO_NUMBER
    return PREFIXES.index(prefix) << BITS | int(digits, 16)


def is_id(text: str) -> bool:
    """Check whether a text is an id that has an integer."""
    return number_of(text) != NO_NUMBER


@lru_cache(maxsize=65_536)
def id_of(number: int) -> str:
    """Get the id of an integer.

    Raises:
        ValueError: no id has it.
    """
    if not 0 <= number < len(PREFIXES) << BITS:
        raise ValueError(f"no id has the number {number}")
    return f"{PREFIXES[number >> BITS]}_{number & MASK:0{DIGITS}x}"


def is_numbered(prefix: str) -> bool:
    """Check whether ids with a prefix are stored as integers."""
    return prefix in PREFIXES


def bounds(prefix: str) -> tuple[str, str]:
    """Get the least and the greatest id with a prefix."""
    return f"{prefix}_{'0' * DIGITS}", f"{prefix}_{'f' * DIGITS}"
