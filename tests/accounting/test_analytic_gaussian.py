"""The exact privacy curve of Gaussian noise, against 60 digits: never below the truth, and close above it."""

from itertools import product
from math import log, sqrt

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon

MUS = (1e-6, 1e-3, 0.03, 0.3, 0.999, 1.0, 1.001, 2.0, 5.0, 20.0, 100.0)
DELTAS = (0.3, 1e-2, 1e-5, 1e-10, 1e-20, 1e-30)
POINTS = list(product(MUS, DELTAS))


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Balle & Wang 2018, Theorem 8, as it is printed."""
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def excess(mu: float, epsilon: float) -> float:
    """How far the computed delta is above the exact one, relative."""
    with mpmath.workdps(60):
        exact = exact_delta(mu, epsilon)
        return float((mpmath.mpf(gaussian_delta(mu, epsilon)) - exact) / exact)


@pytest.mark.parametrize(("mu", "delta"), POINTS)
def test_epsilon_is_the_exact_one_rounded_up(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(60):
        if epsilon == 0:
            assert exact_delta(mu, 0) <= delta
        else:
            assert exact_delta(mu, epsilon) <= delta
            assert exact_delta(mu, epsilon * (1 - 1e-12)) > delta * (1 - 1e-11)
            assert exact_delta(mu, epsilon - 1e-12 * max(epsilon, mu)) > delta


@pytest.mark.parametrize(("mu", "delta"), POINTS)
def test_delta_is_the_exact_one_rounded_up(mu: float, delta: float) -> None:
    assert 0 <= excess(mu, max(gaussian_epsilon(mu, delta), 0.1 * mu)) < 2e-12


@given(
    mu=st.floats(-6, 3).map(lambda exponent: 10**exponent),
    place=st.floats(-3, 30),
)
def test_delta_is_never_below_the_exact_one_wherever_the_tail_is(mu: float, place: float) -> None:
    # `place` is how many standard deviations the loss must be above its mean.
    epsilon = max(0.0, (place + mu / 2) * mu)
    assert 0 <= excess(mu, epsilon) < 1e-10


@given(mu=st.floats(1e-3, 50), delta=st.floats(-30, -0.4).map(lambda exponent: 10**exponent))
def test_epsilon_and_delta_are_each_others_inverse(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    found = gaussian_delta(mu, epsilon)
    assert found <= delta * (1 + 1e-14)
    assert epsilon == 0 or found >= delta * (1 - 1e-10)


def test_nothing_released_costs_nothing() -> None:
    assert gaussian_epsilon(0.0, 1e-30) == 0
    assert gaussian_delta(0.0, 0.0) == 0


def test_the_least_noise_and_the_most_have_an_answer() -> None:
    for mu in (1e-300, 1e-200, 1e-12, 3e7):
        for delta in (1e-30, 0.4):
            assert gaussian_delta(mu, gaussian_epsilon(mu, delta)) <= delta * (1 + 1e-9)
    assert 0 < gaussian_delta(1e-200, 0.0) < 1e-80
    assert 0 < gaussian_delta(1e-200, 1e4) < 1e-300


def test_the_classic_noise_breaks_its_promise_from_about_epsilon_8_on() -> None:
    # sigma = sqrt(2 ln(1.25 / delta)) / epsilon (Dwork & Roth 2014, Theorem 3.22) is proven for epsilon < 1 only.
    def real(nominal: float) -> float:
        return gaussian_epsilon(nominal / sqrt(2 * log(1.25 / 1e-5)), 1e-5)

    assert real(1.0) < 0.95
    assert real(8.3) < 8.3
    assert real(8.5) > 8.5
    assert real(20.0) == pytest.approx(25.4, abs=0.05)
