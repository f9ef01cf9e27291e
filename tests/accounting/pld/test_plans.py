"""Delta of compositions against closed forms and sums, their frequencies against transforms in long doubles."""

from math import exp, expm1, inf, log, sqrt

import mpmath
import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st

from app.accounting.curves import Floats
from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.pld import plans
from app.accounting.pld.composition import saddle, tilted_sum
from app.accounting.pld.connect_the_dots import Dots, connect_the_dots
from app.accounting.pld.frequencies import NEGLIGIBLE, frequencies
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.plans import (
    FINE,
    Composition,
    approximate_plan_log_delta,
    plan_delta,
    plan_epsilon,
    plan_log_delta,
)
from tests.soak import few

EPSILONS = st.floats(log(0.05), log(20)).map(exp)


@few(10)
@given(
    pure=st.floats(log(1e-3), log(3)).map(exp),
    count=st.floats(0, log(500)).map(lambda x: int(exp(x))),
    epsilon=EPSILONS,
)
def test_randomized_response_is_bounded_by_its_binomial_sum(pure: float, count: int, epsilon: float) -> None:
    exact, sooner = binomial_log_delta(pure, count, epsilon), binomial_log_delta(pure, count, 0.99 * epsilon)
    assume(log(1e-15) < exact)
    found = plan_log_delta({FinitePair.exchanged(pure): count}, epsilon, exp(exact))
    assert exact <= found <= sooner + 0.1  # the lattice moves each loss a little


def binomial_log_delta(pure: float, count: int, epsilon: float) -> float:
    with mpmath.workdps(40):
        likely = 1 / (1 + mpmath.exp(-mpmath.mpf(pure)))
        exact = mpmath.mpf(0)
        for larger in range(count + 1):
            loss = (2 * larger - count) * mpmath.mpf(pure)
            if loss > epsilon:
                chance = mpmath.binomial(count, larger) * likely**larger * (1 - likely) ** (count - larger)
                exact += chance * -mpmath.expm1(epsilon - loss)
        return float(mpmath.log(min(exact, 1))) if exact else -inf  # it is rounded


ALONE = st.tuples(st.floats(log(0.5), log(200)).map(exp), st.floats(0, log(1e5)).map(lambda x: int(exp(x))))
PARTS = st.lists(
    st.tuples(st.floats(2, 60), st.integers(1, 300)), min_size=2, max_size=4, unique_by=lambda part: part[0]
)


@few(50)
@given(parts=PARTS | ALONE.map(lambda part: [part]), epsilon=EPSILONS)
def test_gaussian_noises_are_bounded_by_their_closed_form(parts: list[tuple[float, int]], epsilon: float) -> None:
    exact = gaussian_delta(sqrt(sum(count / noise**2 for noise, count in parts)), epsilon)
    assume((1e-20 if len(parts) == 1 else 1e-15) < exact < 0.5)
    found = plan_log_delta({GaussianPair(noise): count for noise, count in parts}, epsilon, exact)
    assert log(exact) * (1 + 1e-12) <= found <= log(exact) + 0.05


@few(20)
@given(
    q=st.floats(log(1e-3), log(0.5)).map(exp),
    z=st.floats(0.5, 5),
    count=st.floats(log(10), log(1e4)).map(lambda x: int(exp(x))),
    delta=st.floats(log(1e-10), log(1e-3)).map(exp),
    removes=st.booleans(),
)
def test_delta_at_the_epsilon_found_is_the_one_asked_for(
    q: float, z: float, count: int, delta: float, *, removes: bool
) -> None:
    plan: dict[Pair, int] = {SampledPair(q, GaussianPair(z), removes): count}
    epsilon = plan_epsilon(plan, delta)
    # Delta is computed on other lattices, which differ by about a hundredth.
    assert plan_delta(plan, epsilon * 1.02) < 1.02 * delta
    if epsilon:
        assert plan_delta(plan, epsilon * 0.98) > 0.98 * delta


@pytest.mark.parametrize(("delta", "miss"), [(1e-9, 1e-3), (1e-5, 0.03), (1e-5, 1e-5)])
def test_an_epsilon_below_the_root_is_raised_until_it_is_proven(
    monkeypatch: pytest.MonkeyPatch, delta: float, miss: float
) -> None:
    plan: dict[Pair, int] = {SampledPair(0.01, GaussianPair(1.0), removes=True): 1000}
    proven = plan_epsilon(plan, delta)
    monkeypatch.setattr(plans, "_root_in_epsilon", lambda *_: proven * (1 - miss))
    assert plan_delta(plan, plan_epsilon(plan, delta)) <= delta * (1 + 1e-3)


def test_epsilon_is_infinite_where_losses_are_too_large() -> None:
    plan: dict[Pair, int] = {LaplacePair(1e-5): 1, LaplacePair(3.0): 1}
    assert (plan_epsilon(plan, 1e-6), plan_delta(plan, 1.0)) == (inf, 1)
    assert approximate_plan_log_delta(plan, 1.0, 1e-6) == 0
    assert plan_epsilon({LaplacePair(1e-4): 1}, 1e-6) < 10_001  # a loss of 10,000 is looked at


def test_losses_below_every_lattice_have_little_delta() -> None:
    plan: dict[Pair, int] = {FinitePair.exchanged(1e-17): 10**9}
    assert 1e-13 < plan_delta(plan, 0.0) < 0.05
    assert approximate_plan_log_delta(plan, 0.0, 1e-6) == pytest.approx(log(plan_delta(plan, 0.0)))
    assert plan_delta(plan, 1.0) == plan_delta(plan, 9e3) == 0


def test_worse_tilt_does_not_raise_an_epsilon_that_was_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([2.0, 3.0, 3.0])
    monkeypatch.setattr(plans, "_proven_root", lambda *_: next(found))
    assert plan_epsilon({LaplacePair(1.0): 10}, 1e-6) == 2.0


def test_gaussian_noise_alone_has_its_closed_form() -> None:
    plan: dict[Pair, int] = {GaussianPair(20.0): 50, GaussianPair(30.0): 4}
    mu = sqrt(50 / 400 + 4 / 900)
    assert gaussian_epsilon(mu, 1e-6) <= plan_epsilon(plan, 1e-6) <= gaussian_epsilon(mu, 1e-6) * (1 + 1e-12)
    assert gaussian_delta(mu, 1.5) <= plan_delta(plan, 1.5) <= gaussian_delta(mu, 1.5) * (1 + 1e-12)


def test_laplace_noise_alone_has_its_closed_form() -> None:
    exact = -expm1((99.5 - 100.0) / 2)
    assert exact <= plan_delta({LaplacePair(0.01): 1}, 99.5) <= exact * (1 + 1e-3)


def test_a_rare_large_loss_twice_has_its_closed_form() -> None:
    rare = FinitePair((0.95, 0.05), (1 - 1e-5, 1e-5))
    found = plan_epsilon({rare: 2, GaussianPair(20.0): 1}, 1e-12)
    sooner, later = (0.05**2 * gaussian_delta(1 / 20, each - 2 * log(0.05 / 1e-5)) for each in (0.999 * found, found))
    assert later <= 1e-12 < sooner


SOME_PAIRS = st.one_of(
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


@few(4)
@given(
    plan=st.dictionaries(SOME_PAIRS, COUNTS, min_size=1, max_size=3),
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


def test_frequencies_of_masses_at_uneven_distances_are_negligible_by_a_grid() -> None:
    places = np.cumsum(np.tile([2, 3], 10))  # no two are next to each other
    found = frequencies(np.full((1, 20), 1 / 20), np.array([1e4]), places, 2**21, 0.0)
    assert found is not None
    assert found.numbers.size < 3000


def delta_in_long_doubles(dots: Dots, counts: Floats, epsilon: float, tilt: float, size: int) -> float:
    """Compose on a period that holds everything; the tilt keeps what is above epsilon from drowning in roundings."""
    product, log_moment = np.ones(size // 2 + 1, dtype=np.clongdouble), np.longdouble(0)
    for row, count in zip(dots.masses, counts, strict=True):
        tilted = row * np.exp(tilt * dots.places * np.longdouble(dots.spacing))
        folded = np.zeros(size, dtype=np.longdouble)
        folded[dots.places % size] = tilted / tilted.sum()
        product *= scipy.fft.rfft(folded) ** int(count)
        log_moment += count * np.log(tilted.sum())
    masses = scipy.fft.irfft(product, size)
    places = np.arange(size)
    above = np.where(places < size // 2, places, places - size) * np.longdouble(dots.spacing) - epsilon
    weights = np.where(above > 0, -np.expm1(-above) * np.exp(-tilt * above), 0)
    return float(np.exp(log_moment - tilt * epsilon) * (masses @ weights)) + float(counts @ dots.infinite)


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
    exact = delta_in_long_doubles(dots, composition.counts, epsilon, tilt, 2**19)
    total = tilted_sum(dots, composition.counts, tilt)
    assert total is not None
    assert 1e-14 < exact <= exp(total.log_delta(epsilon)) <= exact * (1 + 1e-6)


def test_rounding_errors_of_a_million_steps_are_within_their_bound() -> None:
    composition, dots, tilt = dots_of({SampledPair(0.01, GaussianPair(1.0), removes=True): 10**6}, 20.0)
    total = tilted_sum(dots, composition.counts, tilt)
    assert total is not None
    with mpmath.workdps(40):
        factors = (mpmath.exp(mpmath.mpf(tilt) * float(loss)) for loss in dots.losses)
        exact = 10**6 * mpmath.log(mpmath.fsum(map(mpmath.fmul, dots.masses[0].tolist(), factors)))
        assert abs(exact - total.log_moment) <= total.rounding < 1e-7
