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
    """Parse a JSON object from outside, such as a cookie, a token or a signed document.

    Raises:
        ValueError: it is not a JSON object, is nested too deeply, has an unpaired surrogate, or repeats a name in one
            object: readers differ on which of the two values they take.
    """
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_unique)
        require_characters(parsed)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of what was sent, not of this program
    return parsed


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the member {max(names, key=names.count)[:100]!a} is given twice")
    return members


def json_finite(**numbers: float) -> dict[str, float | str]:
    """Represent each number as itself, or as "Infinity"."""
    return {name: json_number(number) for name, number in numbers.items()}


def json_number(number: float) -> float | str:
    """Represent a number as itself, or as "Infinity"."""
    return "Infinity" if number == inf else number
