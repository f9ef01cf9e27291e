"""The parser itself: what JSON does not have is refused before any schema sees it."""

import pytest

from app.api.strict_json import strict_loads
from app.ledger.errors import InvalidInputError


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize("text", ["{}", '{{"a": {}}}', '{{"a": [1, {{"b": {}}}]}}'])
def test_what_is_no_number_is_refused_wherever_it_stands(text: str, number: str) -> None:
    assert strict_loads(text.format(1.5).encode())
    with pytest.raises(InvalidInputError):
        strict_loads(text.format(number).encode())


def test_a_key_that_stands_twice_is_refused_and_named() -> None:
    with pytest.raises(InvalidInputError, match="count"):
        strict_loads(b'{"count": 1, "events": {}, "count": 2}')
