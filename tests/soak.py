"""Long searches: `make test` takes some of their cases, `make soak` all of them."""

from collections.abc import Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

T = TypeVar("T")


def thinned(cases: Sequence[T], every: int) -> list[T | ParameterSet]:
    """Mark all cases but each so many-th one for `make soak`.

    Args:
        cases: of a parametrized test; a tuple is one case of several arguments.
        every: how many cases stand behind one that `make test` takes.

    Returns:
        The cases, in their order.
    """
    return [case if place % every == 0 else _soaked(case) for place, case in enumerate(cases)]


def few(examples: int) -> settings:
    """Take so many examples of a slow property in `make test`, and as many times more in `make soak` as of others."""
    more = settings().max_examples / settings.get_profile("ledger").max_examples
    return settings(max_examples=round(examples * more))


def _soaked(case: object) -> ParameterSet:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.soak)
