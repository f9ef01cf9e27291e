"""Frequencies of compositions, and their delta, against sums and transforms in long doubles."""

from math import exp, log

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import Floats
from app.accounting.pld.composition import saddle, tilted_sum
from app.accounting.pld.dots import Dots, connect_the_dots
from app.accounting.pld.frequencies import NEGLIGIBLE, frequencies
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.plans import FINE, Composition
from tests.soak import few

PAIRS = st.one_of(
    st.builds(SampledPair, st.floats(1e-3, 0.9), st.builds(GaussianPair, st.floats(0.5, 5)), st.booleans()),
    st.builds(SampledPair, st.floats(1e-2, 0.9), st.builds(LaplacePair, st.floats(0.5, 5)), st.booleans()),
    st.builds(LaplacePair, st.floats(1, 20)),
    st.builds(FinitePair.exchanged, st.floats(0.01, 1)),
)
COUNTS = st.floats(0, log(1e6)).map(lambda x: int(exp(x)))
SAMPLES = 100
"""Frequencies that are looked at, if there are many."""


def dots_of(plan: dict[Pair, int], epsilon: float) -> tuple[Composition, Dots, float]:
    composition = Composition.of(plan, 1e-6)
    found = saddle(composition.rough, composition.counts, epsilon)
    return composition, connect_the_dots(composition.pairs, composition.lattice(found, epsilon, FINE)), found.tilt


def exact_logs(masses: Floats, counts: Floats, dots: Dots, size: int, numbers: Floats) -> Floats:
    """Compute logarithms of the absolute values of frequencies of a composition."""
    turns = np.multiply.outer(numbers.astype(np.int64), dots.places % size) % size
    angles = turns.astype(np.longdouble) * (-2 * np.arctan2(np.longdouble(0), np.longdouble(-1)) / size)
    real, imaginary = (masses.astype(np.longdouble) @ each.T for each in (np.cos(angles), np.sin(angles)))
    found: Floats = counts @ np.log(np.maximum(np.hypot(real, imaginary), 1e-300))
    return found


@few(15)
@given(
    plan=st.dictionaries(PAIRS, COUNTS, min_size=1, max_size=3),
    epsilon=st.floats(0.1, 5),
    factor=st.sampled_from([1, 10, 1000]),
)
def test_frequencies_that_are_not_computed_are_negligible(plan: dict[Pair, int], epsilon: float, factor: int) -> None:
    composition, dots, tilt = dots_of(plan, epsilon)
    masses = dots.masses * np.exp(np.minimum(tilt * dots.losses, 600) - np.minimum(tilt * dots.losses, 600).max())
    masses /= masses.sum(axis=1, keepdims=True)
    size = 1000 * factor
    found = frequencies(masses, composition.counts, dots.places, size, 0.0)
    if found is None:
        return  # a coarser lattice is taken
    last = found.size // 2
    numbers = np.unique(np.concatenate([np.geomspace(1, last, SAMPLES), np.linspace(0, last, SAMPLES)]).astype(int))
    exact = exact_logs(masses, composition.counts, dots, found.size, numbers)
    computed = np.isin(numbers, found.numbers)
    assert (exact[~computed] <= NEGLIGIBLE).all()
    places = np.searchsorted(found.numbers, numbers[computed])
    assert (exact[computed] <= found.largest[places]).all()
    assert (np.abs(found.logs.real[places] - exact[computed]) <= found.growth[places] + 1e-9).all()


def delta_in_long_doubles(dots: Dots, counts: Floats, epsilon: float, size: int) -> float:
    """Compose without a tilt on a period that holds everything."""
    product = np.ones(size // 2 + 1, dtype=np.clongdouble)
    for row, count in zip(dots.masses, counts, strict=True):
        folded = np.zeros(size, dtype=np.longdouble)
        folded[dots.places % size] = row
        product *= scipy.fft.rfft(folded) ** int(count)
    masses = scipy.fft.irfft(product, size)
    places = np.arange(size)
    losses = np.where(places < size // 2, places, places - size) * np.longdouble(dots.spacing)
    weights = np.where(losses > epsilon, -np.expm1(epsilon - losses), 0)
    return float(masses @ weights) + float(counts @ dots.infinite)


@pytest.mark.parametrize(
    ("plan", "epsilon"),
    [
        ({SampledPair(0.1, GaussianPair(2.0), removes=True): 50}, 2.0),
        ({SampledPair(0.1, GaussianPair(2.0), removes=False): 50}, 1.5),
        ({SampledPair(0.02, GaussianPair(1.0), removes=True): 200, LaplacePair(20.0): 30}, 3.0),
        ({FinitePair.exchanged(0.1): 300, SampledPair(0.2, LaplacePair(2.0), removes=True): 20}, 6.0),
    ],
)
def test_delta_is_that_of_long_doubles(plan: dict[Pair, int], epsilon: float) -> None:
    composition, dots, tilt = dots_of(plan, epsilon)
    exact = delta_in_long_doubles(dots, composition.counts, epsilon, 2**19)
    total = tilted_sum(dots, composition.counts, tilt)
    assert total is not None
    assert 1e-14 < exact <= exp(total.log_delta(epsilon)) <= exact * (1 + 1e-6)
