"""JSON from outside, and unbounded numbers in JSON."""

import json
from math import inf


def require_characters(value: object) -> None:
    """Refuse unpaired surrogates, which Python decodes but cannot encode.

    Raises:
        UnicodeEncodeError: a string or a name has one.
        RecursionError: the value is nested too deeply.
    """
    json.dumps(value, ensure_ascii=False).encode()


def read_object(content: bytes) -> dict[str, object]:
    """Parse a JSON object from outside, such as a cookie or a token.

    Raises:
        ValueError: it is not a JSON object, is nested too deeply, or has an unpaired surrogate.
    """
    try:
        parsed = json.loads(content.decode())
        require_characters(parsed)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of what was sent, not of this program
    return parsed


def json_finite(**numbers: float) -> dict[str, float | str]:
    """Represent each number as itself, or as "Infinity"."""
    return {name: json_number(number) for name, number in numbers.items()}


def json_number(number: float) -> float | str:
    """Represent a number as itself, or as "Infinity"."""
    return "Infinity" if number == inf else number
