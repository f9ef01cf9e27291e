"""Delta by shared frequencies, against products of polynomials in long doubles."""

from functools import reduce
from math import ceil, exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.pld.connect_the_dots import Dots, Lattice, connect_the_dots
from app.accounting.pld.kept_frequencies import TooManyFrequenciesError
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.shared_frequencies import Corner, SharedFrequencies
from tests.soak import few

SPACING = 2.0**-5
GOAL = log(1e-6)
PAIRS: list[Pair] = [
    SampledPair(0.1, GaussianPair(1.0), removes=True),
    SampledPair(0.01, LaplacePair(0.7), removes=False),
    FinitePair.exchanged(0.5),
]


def exact_delta(dots: Dots, counts: list[int], epsilon: float) -> float:
    """Compute delta by multiplying out the distributions; losses below the lattice's first place do not occur."""
    first, last = int(dots.places[0]), int(dots.places[-1])
    rows = []
    for row, count in zip(dots.masses, counts, strict=True):
        masses = np.zeros(last - first + 1, dtype=np.longdouble)
        masses[dots.places - first] = row
        rows += [masses] * count
    product = reduce(np.convolve, rows)
    losses = (np.arange(product.size) + first * sum(counts)) * np.longdouble(dots.spacing)
    return float(np.sum(product * -np.expm1(np.minimum(epsilon - losses, 0))))


@few(15)
@given(
    counts=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    tilt=st.floats(3, 12),
    epsilon=st.floats(0.5, 6),
    lowest=st.booleans(),
)
def test_delta_is_above_the_exact_one_at_any_tilt(
    counts: list[int], tilt: float, epsilon: float, *, lowest: bool
) -> None:
    dots = connect_the_dots(PAIRS, Lattice.over(-3.0, 6.0, SPACING, SPACING, 1e-3))
    now = np.array(counts, dtype=np.float64)
    corners = [Corner(np.ones(3) if lowest else now, epsilon), Corner(now, epsilon)]
    shared = SharedFrequencies.of(dots, tilt, corners, GOAL)
    assert shared is not None
    total = shared.total(now)
    for place in range(ceil(epsilon / SPACING), ceil(9 / SPACING), 20):
        exact = exact_delta(dots, counts, place * SPACING)
        assert log(exact) <= total.log_delta_at(place) if exact > 1e-300 else True
    found = shared.epsilon(now, GOAL, epsilon)
    assert found == float("inf") or exact_delta(dots, counts, found) <= exp(GOAL) * (1 + 1e-9)
    root = shared.root(now, GOAL, epsilon)
    assert exact_delta(dots, counts, root) <= exp(GOAL) * (1 + 1e-9)


def test_too_many_frequencies_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.accounting.pld.kept_frequencies.MOST_VALUES", 10)
    dots = connect_the_dots(PAIRS, Lattice.over(-3.0, 6.0, SPACING, SPACING, 1e-3))
    with pytest.raises(TooManyFrequenciesError):
        SharedFrequencies.of(dots, 5.0, [Corner(np.ones(3), 1.0)], GOAL)
