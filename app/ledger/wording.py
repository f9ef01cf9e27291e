"""Counts, lists and numbers as people write them in sentences."""

import re
from collections.abc import Iterable
from enum import StrEnum
from math import floor
from typing import Final, Self

_PADDED: Final = re.compile(r"(?<=\d)(e-)0+(?=\d)")


class WordedEnum(StrEnum):
    """Names, each declared with its words on pages."""

    words: str

    def __new__(cls, name: str, words: str = "") -> Self:
        """Keep the words beside the name; they are optional since a member is looked up by its name alone."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.words = words
        return member


def counted(number: int, noun: str) -> str:
    """Write a number of things: "1 step", "1,028 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def joined(items: Iterable[str], word: str = "and") -> str:
    """Write a list: "a", "a and b", "a, b and c"; or with another word."""
    *first, last = items
    return f"{', '.join(first)} {word} {last}" if first else last


def format_exact(number: float) -> str:
    """Format a configured number as short as possible without rounding it; small ones as 1e-5, as people write them."""
    short = f"{number:g}"
    return without_zeros(short if float(short) == number else repr(number))


def percent(share: float, sign: str = " %") -> str:
    """Write a share in percent, rounded to a tenth; 0 and 100 % are exact, and up to 999 % is told."""
    if share > 10:  # noqa: PLR2004 - as said
        return f"over 999{sign}"
    tenths = floor(round(share * 1000, 6) + 0.5)
    if share > 0 and not tenths:
        return f"under 0.1{sign}"
    if tenths == 1000 and share != 1:  # noqa: PLR2004 - all of it
        tenths += 1 if share > 1 else -1
    return f"{tenths / 10:.1f}{sign}"


def without_zeros(text: str) -> str:
    """Drop the leading zeros of negative exponents in a text: "1e-05" becomes "1e-5"."""
    return _PADDED.sub(r"\1", text)
