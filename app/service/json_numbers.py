"""Numbers as they are stored and answered."""

from math import inf


def json_finite(**numbers: float) -> dict[str, float | str]:
    """Write numbers as JSON can hold them, which knows no infinity.

    Args:
        **numbers: by name.

    Returns:
        Each number, or "Infinity" in its place.
    """
    return {name: json_number(number) for name, number in numbers.items()}


def json_number(number: float) -> float | str:
    """Write a number as JSON can hold it: an infinite one is the text "Infinity"."""
    return "Infinity" if number == inf else number
