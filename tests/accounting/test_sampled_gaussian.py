"""The sampled Gaussian against mpmath at 50 digits: an integral that is independent of the code, and the exact sum."""

from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.curves import UNIT, finite_orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.formulas.quadrature_sums import LEAST
from app.accounting.formulas.sampled_gaussian import FLAT_NOISE, sampled_gaussian_rdp
from app.accounting.rdp import curve_over, event_curve
from tests.each import for_each
from tests.soak import few, thinned

DIGITS = 50
ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
GRID = finite_orders(1)

# Forty times the measured error and a five-hundredth of the promised one.
TOLERANCE = 2e-13

PROBABILITIES = (1e-9, 1e-4, 256 / 60000, 0.3, 0.99)
FRACTIONAL_ORDERS = (1.0625, 1.5, 11.75, 60.5, 1000.5)
FRACTIONAL_POINTS = [
    *thinned(list(product(PROBABILITIES, (0.3, 1.1, 30.0, 1000.0), FRACTIONAL_ORDERS)), 53),
    (0.05, 0.5, 1023.75),
    (1e-9, 1.1, 48.5),  # just below the turn: the nodes far from the order carry the whole value
    (1e-9, 2.0, 150.5),
    (1e-9, 2.0, 165.5),  # in the turn: both parts count
    (1e-9, 5.0, 1000.5),  # in the turn, where terms are differences of numbers near 2e4
    (0.9, 20.0, 1000.5),  # terms that no float holds, near the bend
    (0.1, 5.0, 360.5),  # the same, with both parts
    (0.01, 10.0, 1020.5),  # the longest series
]
SMALL_NOISES = (0.001, 0.02, 0.0499, 0.0501, 0.1, 0.199)
SMALL_NOISE_POINTS = [
    *thinned(list(product((1e-9, 1e-4, 0.01, 0.7), SMALL_NOISES, (1.0625, 1.5, 2.0, 7.75))), 31),
    (1e-9, 0.02, 1.000001),  # as much below 1/2 as beyond
    (0.3, 0.04, 1.01),
]
EXTREME_POINTS = [
    *thinned(list(product((1 - 1e-6, 1e-30, 1e-100, 1 - 2**-53), (0.02, 0.3, 1.1, 1e6), (1.0625, 5.5, 300.25))), 23),
    (0.01, 1.1, 1 + 1e-9),
    (0.01, 0.003, 1 + 1e-9),
    (0.01, 1.1, 4096.0),
    (1e-9, 12.0, 4000.5),
    (1e-145, 1.0, 64.5),
]
INTEGER_POINTS = thinned(list(product(PROBABILITIES, (0.3, 0.5, 1.1, 5.0, 1000.0), (2, 8, 37, 1024))), 9)


def exact_at_integer(q: float, s: float, order: int) -> mpmath.mpf:
    q, s = mpmath.mpf(q), mpmath.mpf(s)
    total = mpmath.fsum(
        mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(mpmath.mpf(k * k - k) / (2 * s * s))
        for k in range(order + 1)
    )
    return mpmath.log(total) / (order - 1)


def integral(q: float, s: float, order: float) -> mpmath.mpf:
    """Integrate (1 + u)^a over 60 s^2 around the crossover of its two parts; expand it on either side.

    There the smaller part is below exp(-30) of the larger one, so eight terms are worth 1e-104 each way.
    """
    digits = 40 - 2 * int(mpmath.log10(q))  # A - 1 is of the size of q^2, or of order - 1
    with mpmath.workdps(digits + 10):
        q, s, a = mpmath.mpf(q), mpmath.mpf(s), mpmath.mpf(order)
        crossover = mpmath.mpf(1) / 2 + s * s * mpmath.log((1 - q) / q)
        low, high = crossover - 30 * s * s, crossover + 30 * s * s
        total = mpmath.mpf(0)
        for k in range(8):
            for exponent, edge in ((mpmath.mpf(k), low), (a - k, high)):
                tail = mpmath.ncdf((edge - exponent) / s if edge is low else (exponent - edge) / s)
                growth = mpmath.exp(exponent * (exponent - 1) / (2 * s * s))
                total += mpmath.binomial(a, k) * (1 - q) ** (a - exponent) * q**exponent * growth * tail
        begin, end = max(low, -20 * s), min(high, max(2, a) + 20 * s)
        if begin < end:
            pieces = int(mpmath.ceil((end - begin) / (2 * min(s, 2 * s * s))))
            total += mpmath.quad(
                lambda x: mpmath.npdf(x, 0, s) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))) ** a,
                mpmath.linspace(begin, end, pieces + 1),
                method="gauss-legendre",
                maxdegree=5,
            )
        return mpmath.log(total) / (a - 1)


def relative_error(computed: float, truth: mpmath.mpf) -> float:
    return float(abs((mpmath.mpf(computed) - truth) / truth))


def computed(q: float, s: float, order: float) -> float:
    return float(sampled_gaussian_rdp(q, s, np.array([order], dtype=np.float64))[0])


def slope_dents(at: NDArray[np.float64], divergence: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Return how far the slopes of (a - 1) R(a) fall from one order to the next, beyond what the noise explains."""
    log_a = (at - 1) * divergence
    slopes = np.diff(log_a) / np.diff(at)
    error = noise * log_a[1:] / np.diff(at)
    return np.maximum(-np.diff(slopes) - error[1:] - error[:-1], 0)


@pytest.mark.parametrize(("q", "s", "order"), [*FRACTIONAL_POINTS, *SMALL_NOISE_POINTS, *EXTREME_POINTS])
def test_fractional_order_costs_the_integral(q: float, s: float, order: float) -> None:
    assert relative_error(computed(q, s, order), integral(q, s, order)) < TOLERANCE


@pytest.mark.parametrize(("q", "s", "order"), INTEGER_POINTS)
def test_integer_order_costs_the_exact_sum(q: float, s: float, order: int) -> None:
    assert relative_error(computed(q, s, order), exact_at_integer(q, s, order)) < TOLERANCE


@for_each(product((1e-9, 1e-4, 0.01, 0.3, 0.9), (0.01, 0.1, 0.3, 0.5, 1.0, 3.0, 5.0, 100.0)))
def test_the_whole_grid_is_one_smooth_increasing_function(case: tuple[float, float]) -> None:
    # Neighbouring orders are summed by different means: from moments or one by one, with the right part from the nodes,
    # from the series, or nothing but it. (a - 1) R(a) is convex (Hölder), so an error of any shows as a dent.
    divergence = sampled_gaussian_rdp(*case, GRID)
    assert np.all(np.diff(divergence) > -1e-14 * divergence[1:])
    assert not slope_dents(GRID, divergence, 1e-14).any()


@pytest.mark.parametrize(
    ("q", "s"),
    [(1e-4, 0.3), (0.01, 0.07), (0.01, 0.5), (0.05, 2.0), (0.1, 0.3), (0.1, 1.1), (0.3, 0.02), (0.3, 5.0), (0.5, 30.0)],
)
def test_sixth_differences_see_no_seam(q: float, s: float) -> None:
    # So close together the sixth difference of a smooth function vanishes, and a step in it of 5e-14 gives 1e-12.
    many = 1 + np.geomspace(0.01, 1023, 60000)
    assert np.abs(np.diff(np.log(sampled_gaussian_rdp(q, s, many)), 6)).max() < 1e-12


@pytest.mark.parametrize(("q", "s"), [(1e-9, 0.3), (256 / 60000, 1.1), (0.3, 30.0), (0.01, 1000.0), (0.2, 0.04)])
def test_order_costs_the_same_bits_beside_any_other_orders(q: float, s: float) -> None:
    whole = sampled_gaussian_rdp(q, s, GRID)
    random = np.random.default_rng(1)
    for count in (1, 2, 3, 7, 40, 500):
        for _ in range(3):
            some = random.choice(GRID.size, count)
            assert np.array_equal(sampled_gaussian_rdp(q, s, GRID[some]), whole[some])
    assert sampled_gaussian_rdp(q, s, GRID[:0]).size == 0


@pytest.mark.parametrize("q", [1e-9, 1e-6, 0.03, 0.6])
def test_the_two_sides_of_the_flat_approximation_agree(q: float) -> None:
    # Just below FLAT_NOISE one node stands for all x below 1/2, just above it they are summed.
    below, above = (sampled_gaussian_rdp(q, FLAT_NOISE * (1 + sign * 1e-15), GRID) for sign in (-1, 1))
    assert below == pytest.approx(above, rel=1e-12)


CURVES = [(256 / 60000, 1.1), (1e-9, 0.3), (0.01, 1000.0), (0.3, 30.0), (0.01, 0.1)]


@pytest.mark.parametrize(("q", "s"), thinned(CURVES, 5))
def test_a_curve_is_never_below_the_truth_and_at_most_a_billionth_above(q: float, s: float) -> None:
    curve = event_curve(PoissonSampled(q, Gaussian(s)), ADD_OR_REMOVE)
    for index in (0, 53, 700, GRID.size - 1):
        order = float(GRID[index])
        truth = exact_at_integer(q, s, int(order)) if order.is_integer() else integral(q, s, order)
        rounded = mpmath.mpf(int(curve.values[index])) * UNIT
        assert truth <= rounded <= truth * (1 + mpmath.mpf(1.001e-9)) + UNIT


def test_divergence_below_floats_is_rounded_up() -> None:
    for q in (5e-324, 1e-300, 1e-160):
        assert integral(q, 1.1, 2.5) < LEAST == computed(q, 1.1, 2.5)


def test_an_order_out_of_bounds_is_refused() -> None:
    for order in (1.0, 0.5, 4096.5, np.inf, np.nan):
        with pytest.raises(ValueError, match="above 1 and are at most 4096"):
            computed(0.01, 1.1, order)


PROBABILITY = st.floats(-9, -1e-6).map(lambda exponent: 10**exponent)
NOISE = st.floats(-1.2, 3).map(lambda exponent: 10**exponent)
STEP = st.floats(-6, 0).map(lambda exponent: 1 + 10**exponent)


@few(25)
@given(q=PROBABILITY, z=NOISE, step=STEP)
def test_less_noise_never_costs_less(q: float, z: float, step: float) -> None:
    here, less_noise, more_sampling = (
        curve_over(PoissonSampled(share, Gaussian(noise)), GRID[::20], ADD_OR_REMOVE)
        for share, noise in ((q, z), (q, z / step), (min(1.0, q * step), z))
    )
    assert less_noise.covers(here)
    assert more_sampling.covers(here)
