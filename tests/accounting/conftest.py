"""Floats that raise, and digits of mpmath, for modules that compare formulas with it."""

from collections.abc import Iterator

import mpmath
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _exact(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let mpmath have a module's `DIGITS`, and numpy raise where a float overflows or is not a number."""
    digits = getattr(request.module, "DIGITS", None)
    if digits is None:
        yield
        return
    with mpmath.workdps(digits), np.errstate(all="raise", under="ignore"):
        yield
