"""The bound for fixed batches against an independent integral of it, against real pairs, and against dp_accounting."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import log, pi

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.curves import finite_orders
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from app.accounting.formulas.without_replacement import MIN_INTEGRATED_NOISE, without_replacement_gaussian_rdp
from tests.soak import thinned

DIGITS = 18
GRID = finite_orders(1)
LOW_ORDERS = np.array([1.25, 1.5, 2.0, 2.5, 3.0, 6.0])
TOLERANCE = 1e-11


def hockey_stick(q: mpmath.mpf, z: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
    """Return G at t = 1 + q (exp(y) - 1): q times that of two Gaussians at exp(y)."""
    return q * (mpmath.ncdf(1 / (2 * z) - z * y) - mpmath.exp(y) * mpmath.ncdf(-1 / (2 * z) - z * y))


@cache
def integral(q: float, z: float, power: mpmath.mpf, until: mpmath.mpf) -> mpmath.mpf:
    """Integrate t^power g(t) from t = 1 to where y is as said; kept, as a search asks for the same part again."""
    q, z = mpmath.mpf(q), mpmath.mpf(z)
    return mpmath.quad(
        lambda y: (1 + q * mpmath.expm1(y)) ** power * hockey_stick(q, z, y) * q * mpmath.exp(y),
        mpmath.linspace(0, until, 9),
    )


def moment_excess(q: float, z: float, order: float, end: mpmath.mpf) -> mpmath.mpf:
    """Return a b times the integral of t^(a - 2) g(t) from 1 / T on; T is at y = end."""
    a = mpmath.mpf(order)
    reach = (a + 14 * mpmath.mpf(z) + 1) / mpmath.mpf(z) ** 2
    return a * (a - 1) * (integral(q, z, a - 2, reach) + integral(q, z, -a - 1, min(end, reach)))


def second_moment(q: float, z: float) -> mpmath.mpf:
    q, d = mpmath.mpf(q), 1 / mpmath.mpf(z) ** 2
    return q * q * ((1 - q) * 2 * (mpmath.exp(d) - mpmath.exp(d / 2)) + q * mpmath.expm1(d))


@pytest.mark.parametrize(("q", "z"), thinned([(0.01, 1.0), (0.5, 3.0), (1e-6, 0.6), (0.2, 0.4), (0.9, 8.0)], 5))
def test_the_bound_is_the_largest_moment_that_its_constraints_allow(q: float, z: float) -> None:
    known = second_moment(q, z)
    end = mpmath.inf
    if moment_excess(q, z, 2, end) > known:
        end = mpmath.findroot(
            lambda y: moment_excess(q, z, 2, y) / known - 1,
            (mpmath.mpf("1e-3") / z, 3 / mpmath.mpf(z)),
            solver="anderson",
            tol=1e-18,
        )
    some = np.array([2.0, 2.5, 4.0, 7.5])
    for order, nats in zip(some, without_replacement_gaussian_rdp(q, z, some), strict=True):
        truth = mpmath.log1p(moment_excess(q, z, order, end)) / (order - 1)
        assert abs(mpmath.mpf(float(nats)) - truth) <= TOLERANCE * truth
    low = np.array([1.25, 1.75])
    for order, nats in zip(low, without_replacement_gaussian_rdp(q, z, low), strict=True):
        b = mpmath.mpf(order) - 1
        uncut = mpmath.log1p(moment_excess(q, z, order, mpmath.inf)) / b
        truth = min(uncut, mpmath.log1p((b + 1) * b * known / 2) / b, mpmath.log1p(known))
        assert abs(mpmath.mpf(float(nats)) - truth) <= TOLERANCE * truth


def log_densities(
    centres: Sequence[tuple[float, float]], z: float, reach: float
) -> tuple[list[NDArray[np.float64]], float]:
    """Return ln of Gaussian densities over a square of points, and ln of a point's area."""
    axis = np.arange(-reach, reach, z / 3)
    x, y = np.meshgrid(axis, axis)
    return (
        [-((x - u) ** 2 + (y - v) ** 2) / (2 * z * z) - log(2 * pi * z * z) for u, v in centres],
        2 * log(z / 3),
    )


def triple_rdp(q: float, z: float, centres: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """Integrate the divergence of (1 - q) P0 + q P1 and (1 - q) P0 + q P1' with these centres at low orders."""
    (without, first, second), log_area = log_densities(centres, z, 8 + 9 * z)
    log_p = np.logaddexp(np.log1p(-q) + without, log(q) + first)
    log_q = np.logaddexp(np.log1p(-q) + without, log(q) + second)
    return np.array(
        [np.logaddexp.reduce((a * log_p + (1 - a) * log_q).ravel() + log_area) / (a - 1) for a in LOW_ORDERS]
    )


@given(
    q=st.floats(0.001, 0.999),
    log_z=st.floats(-0.6, 1),
    places=st.tuples(*(st.floats(0, 1) for _ in range(6))),
)
def test_no_random_triple_of_gaussians_costs_more(
    q: float, log_z: float, places: tuple[float, float, float, float, float, float]
) -> None:
    centres = np.array(places).reshape(3, 2)
    widest = max(float(np.hypot(*(centres[i] - centres[j]))) for i, j in combinations(range(3), 2))
    centres = centres / max(widest, 0.1)
    bound = without_replacement_gaussian_rdp(q, 10**log_z, LOW_ORDERS)
    assert np.all(triple_rdp(q, 10**log_z, [(float(x), float(y)) for x, y in centres]) <= bound * (1 + 1e-10) + 1e-12)


SETTINGS = [
    (256 / 60000, 0.55),
    (0.01, 1.0),
    (0.1, 2.0),
    (0.5, 3.0),
    (0.001, 5.0),
    (0.3, 30.0),
    (0.9, 0.7),
    (0.01, 0.15),
]


@pytest.mark.parametrize(("q", "z"), [*SETTINGS, (1e-9, 0.25), (1e-9, 1e6), (0.5, 1e-3), (0.99, 1e3)])
def test_the_bound_lies_between_poisson_sampling_and_no_sampling(q: float, z: float) -> None:
    bound, poisson = without_replacement_gaussian_rdp(q, z, GRID), sampled_gaussian_rdp(q, z, GRID)
    assert np.all(bound >= poisson * (1 - 1e-12))
    assert np.all(bound <= np.minimum(2 * poisson, gaussian_rdp(z, GRID) * (1 + 1e-12)))
    assert np.all(np.diff(bound) >= -1e-12 * bound[1:])


def test_a_batch_of_everything_is_not_sampled() -> None:
    assert np.array_equal(without_replacement_gaussian_rdp(1.0, 2.0, GRID), gaussian_rdp(2.0, GRID))
    almost = without_replacement_gaussian_rdp(1 - 1e-12, 2.0, GRID)
    assert almost == pytest.approx(gaussian_rdp(2.0, GRID), rel=1e-10)


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.7])
def test_less_is_known_without_the_integrals(q: float) -> None:
    z = MIN_INTEGRATED_NOISE
    known = without_replacement_gaussian_rdp(q, z, GRID[GRID >= 2])
    less_known = without_replacement_gaussian_rdp(q, np.nextafter(z, 0), GRID[GRID >= 2])
    assert np.all(known <= less_known * (1 + 1e-12))
    assert np.all(less_known <= known * 1.02)


@given(
    q=st.floats(-9, -1e-3).map(lambda exponent: 10**exponent),
    z=st.floats(-1.2, 3).map(lambda exponent: 10**exponent),
    step=st.floats(-6, 0).map(lambda exponent: 1 + 10**exponent),
)
def test_larger_batches_or_less_noise_never_cost_less(q: float, z: float, step: float) -> None:
    grid = GRID[::20]
    here = without_replacement_gaussian_rdp(q, z, grid) * (1 - 1e-11)
    assert np.all(without_replacement_gaussian_rdp(min(1.0, q * step), z, grid) >= here)
    assert np.all(without_replacement_gaussian_rdp(q, z / step, grid) >= here)
