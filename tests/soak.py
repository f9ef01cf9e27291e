"""Long searches: `make test` takes some of their cases, `make soak` all of them."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

T = TypeVar("T")
U = TypeVar("U")


def thinned(cases: Sequence[T], every: int) -> list[T | ParameterSet]:
    """Mark all cases but each so many-th one for `make soak`; a tuple is one case of several arguments."""
    found: list[T | ParameterSet] = list(cases)
    for place, case in enumerate(cases):
        if place % every:
            values = case if isinstance(case, tuple) else (case,)
            found[place] = pytest.param(*values, marks=pytest.mark.soak)
    return found


def in_turns(first: Iterable[T], second: Iterable[U]) -> list[tuple[T, U] | ParameterSet]:
    """Pair all of two, of which `make test` takes each of the first once, with those of the second in turn."""
    seconds = list(second)
    pairs = [
        (one, seconds[(place + turn) % len(seconds)]) for place, one in enumerate(first) for turn in range(len(seconds))
    ]
    return thinned(pairs, len(seconds))


def few(examples: int) -> settings:
    """Take so many examples of a slow property in `make test`, and as many times more in `make soak` as of others."""
    more = settings().max_examples / settings.get_profile("ledger").max_examples
    return settings(max_examples=round(examples * more))
