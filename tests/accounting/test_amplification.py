"""The sampled mechanisms against integrals of both directions at 60 digits, and the lemmas of the module itself."""

from itertools import product
from math import log

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.curves import finite_orders
from app.accounting.formulas import amplification
from app.accounting.formulas.amplification import sampled_discrete_gaussian_rdp, sampled_laplace_rdp
from app.accounting.formulas.mechanisms import gaussian_rdp, laplace_rdp, pure_dp_rdp
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from tests.each import for_each
from tests.soak import few, thinned

DIGITS = 60
GRID = finite_orders(1)
ORDERS = np.array([1.0625, 1.5, 2.0, 11.75, 60.5, 1024.0])
PROBABILITIES = (1e-9, 1e-3, 0.3, 0.99)
TOLERANCE = 2e-13


def both_directions_of_randomized_response(q: float, epsilon: float, order: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    q, a, odds = mpmath.mpf(q), mpmath.mpf(order), mpmath.exp(mpmath.mpf(epsilon))
    absent = (1 / (1 + odds), odds / (1 + odds))
    mixed = tuple((1 - q) * x + q * y for x, y in zip(absent, absent[::-1], strict=True))
    added = mpmath.fsum(m**a * x ** (1 - a) for m, x in zip(mixed, absent, strict=True))
    removed = mpmath.fsum(x**a * m ** (1 - a) for m, x in zip(mixed, absent, strict=True))
    return mpmath.log(added) / (a - 1), mpmath.log(removed) / (a - 1)


def both_directions_of_laplace(q: float, z: float, order: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Integrate over the output between the two centres, in scales; outside the ratio is constant."""
    q, a, v = mpmath.mpf(q), mpmath.mpf(order), 1 / mpmath.mpf(z)
    crossover = min(max((v + mpmath.log((1 - q) / q)) / 2, 0), v)
    cuts = {mpmath.mpf(0), v, crossover, *(v * i / 16 for i in range(17))}
    cuts |= {v - v * mpmath.mpf(2) ** -i for i in range(14)} | {v * mpmath.mpf(2) ** -i for i in range(14)}

    def divergence(power: mpmath.mpf) -> mpmath.mpf:
        def ratio(x: mpmath.mpf) -> mpmath.mpf:
            return (1 - q + q * mpmath.exp(2 * x - v)) ** power

        between = mpmath.quad(
            lambda x: mpmath.exp(-x) / 2 * ratio(x), sorted(cuts), maxdegree=6, method="gauss-legendre"
        )
        return mpmath.log(ratio(mpmath.mpf(0)) / 2 + between + mpmath.exp(-v) / 2 * ratio(v)) / (a - 1)

    return divergence(a), divergence(1 - a)


@for_each(product(PROBABILITIES, (1e-6, 0.1, 1.0, 5.0, 50.0, 1e3, 1e5)))
def test_sampled_pure_dp_is_sampled_randomized_response(case: tuple[float, float]) -> None:
    q, epsilon = case
    for order, nats in zip(ORDERS, amplification.sampled_pure_dp_rdp(q, epsilon, ORDERS), strict=True):
        added, removed = both_directions_of_randomized_response(q, epsilon, order)
        assert abs(mpmath.mpf(float(nats)) - max(added, removed)) <= TOLERANCE * added


@pytest.mark.parametrize(("q", "z"), thinned(list(product(PROBABILITIES, (100.0, 1.0, 0.2, 0.05))), 9))
def test_sampled_laplace_is_the_larger_of_both_directions(q: float, z: float) -> None:
    some = np.array([1.5, 11.75, 60.5])
    for order, nats in zip(some, sampled_laplace_rdp(q, z, some), strict=True):
        with mpmath.workdps(25 - 2 * round(mpmath.log10(q))):  # the moment is 1 and something of the size of q^2
            added, removed = both_directions_of_laplace(q, z, order)
        assert added >= removed
        assert abs(mpmath.mpf(float(nats)) - added) <= TOLERANCE * added


@pytest.mark.parametrize("q", PROBABILITIES)
def test_without_the_integral_laplace_is_charged_as_pure_dp(q: float) -> None:
    z = amplification.MIN_INTEGRATED_NOISE
    with_integral, without = sampled_laplace_rdp(q, z, GRID), sampled_laplace_rdp(q, np.nextafter(z, 0), GRID)
    assert np.all(with_integral <= without)
    assert np.all(without <= 2 * with_integral)  # at the two ends of the losses it has at most twice the probability


@pytest.mark.parametrize(("q", "z"), [(1e-9, 1e-3), (0.01, 0.04), (0.3, 0.3), (0.01, 3.0), (0.99, 1e6)])
def test_sampling_never_costs_more_than_not_sampling(q: float, z: float) -> None:
    for sampled, unsampled in (
        (amplification.sampled_pure_dp_rdp(q, 1 / z, GRID), pure_dp_rdp(1 / z, GRID)),
        (sampled_laplace_rdp(q, z, GRID), laplace_rdp(z, GRID)),
        (sampled_discrete_gaussian_rdp(q, z, GRID), gaussian_rdp(z, GRID)),
    ):
        assert np.all(np.isfinite(sampled) & (sampled > 0))
        assert np.all(sampled <= unsampled * (1 + TOLERANCE))
        assert np.all(np.diff(sampled) >= -TOLERANCE * sampled[1:])


def test_taking_every_record_is_not_sampling() -> None:
    assert np.array_equal(amplification.sampled_pure_dp_rdp(1.0, 0.7, GRID), pure_dp_rdp(0.7, GRID))
    assert np.array_equal(sampled_laplace_rdp(1.0, 0.7, GRID), laplace_rdp(0.7, GRID))
    assert np.array_equal(sampled_discrete_gaussian_rdp(1.0, 0.7, GRID), gaussian_rdp(0.7, GRID))
    assert amplification.sampled_epsilon_delta(1.0, 0.7, 1e-6) == (0.7, 1e-6)
    assert not amplification.sampled_pure_dp_rdp(0.3, 0.0, GRID).any()


@pytest.mark.parametrize(("q", "s", "step"), [(0.01, 1.0, 1), (0.3, 2.0, 3), (1e-4, 0.5, 1), (0.9, 5.0, 2)])
def test_sampled_discrete_noise_is_bounded_in_both_directions(q: float, s: float, step: int) -> None:
    # A sum moved by `step` with noise of parameter s: the noise multiplier is s / step.
    x = np.arange(-60 * step - 60, 60 * step + 61)
    log_absent = -(x**2) / (2 * s * s)
    log_absent -= np.logaddexp.reduce(log_absent)
    log_present = np.interp(x - step, x, log_absent)  # exact at integers
    log_mixed = np.logaddexp(np.log1p(-q) + log_absent, log(q) + log_present)
    a = np.array([1.25, 1.5, 2.0, 2.5, 7.0, 12.5])[:, np.newaxis]
    bound = sampled_discrete_gaussian_rdp(q, s / step, a.ravel())
    reach = np.abs(x) < 25 * step + 25
    for first, second in ((log_mixed, log_absent), (log_absent, log_mixed)):
        moments = np.logaddexp.reduce((a * first + (1 - a) * second)[:, reach], axis=1)
        assert np.all(moments / (a.ravel() - 1) <= bound * (1 + 1e-9))
    integers = np.array([2.0, 7.0, 64.0, 1024.0])
    assert sampled_discrete_gaussian_rdp(q, s, integers) == pytest.approx(
        sampled_gaussian_rdp(q, s, integers), rel=1e-15
    )


@for_each(product(PROBABILITIES, (0.0, 1e-9, 1.0, 699.0, 701.0, 1e5)))
def test_sampled_epsilon_delta_is_the_formula(case: tuple[float, float]) -> None:
    q, epsilon = case
    amplified, delta = amplification.sampled_epsilon_delta(q, epsilon, 1e-6)
    truth = mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(mpmath.mpf(epsilon)))
    assert abs(amplified - truth) <= 1e-15 * truth
    assert delta == pytest.approx(q * 1e-6, rel=1e-15)
    assert amplified <= epsilon


PROBABILITY = st.floats(-9, -1e-3).map(lambda exponent: 10**exponent)


@few(20)
@given(q=PROBABILITY, exponent=st.floats(-2, 3), step=st.floats(-6, 0).map(lambda e: 1 + 10**e))
def test_more_sampling_or_less_noise_never_costs_less(q: float, exponent: float, step: float) -> None:
    z, grid = 10**exponent, GRID[::20]

    def bounds(q: float, z: float) -> NDArray[np.float64]:
        pure, laplace = amplification.sampled_pure_dp_rdp(q, 1 / z, grid), sampled_laplace_rdp(q, z, grid)
        return np.stack([pure, laplace, sampled_discrete_gaussian_rdp(q, z, grid)])

    here = bounds(q, z) * (1 - TOLERANCE)
    assert np.all(bounds(min(1.0, q * step), z) >= here)
    assert np.all(bounds(q, z / step) >= here)
