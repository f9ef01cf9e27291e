"""Numbers in JSON."""

from math import inf


def json_finite(**numbers: float) -> dict[str, float | str]:
    """Represent each number as itself, or as "Infinity"."""
    return {name: json_number(number) for name, number in numbers.items()}


def json_number(number: float) -> float | str:
    """Represent a number as itself, or as "Infinity"."""
    return "Infinity" if number == inf else number
