"""Numbers as they are stored and answered."""

from math import inf


def json_finite(**numbers: float) -> dict[str, float | bool | None]:
    """Numbers as JSON has them, which knows no infinity.

    Args:
        **numbers: by name.

    Returns:
        Each number, or null if it is infinite, and beside it whether it is.
    """
    members: dict[str, float | bool | None] = {}
    for name, number in numbers.items():
        members[name] = None if number == inf else number
        members[f"{name}_infinite"] = number == inf
    return members
