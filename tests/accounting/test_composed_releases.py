"""Composition theorems of textbooks, exact in small cases; the exact privacy curve of Gaussian noise at 60 digits."""

from itertools import product
from math import exp, inf, prod, sqrt

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.composed_releases import compose_releases
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.formulas.composition import advanced_epsilons, optimal_epsilons, textbook_gaussian_epsilon
from tests.each import for_each
from tests.soak import few

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def hockey_stick(epsilon: float, count: int, total: float) -> float:
    """Delta of randomized responses, summed over all their outputs."""
    one = 1 / (1 + exp(-epsilon))
    delta = 0.0
    for bits in product((0, 1), repeat=count):
        p = prod(one if bit else 1 - one for bit in bits)
        q = prod(1 - one if bit else one for bit in bits)
        delta += max(0.0, p - exp(total) * q)
    return delta


@few(25)
@given(st.floats(0.01, 3.0), st.integers(1, 7), st.floats(1e-6, 0.4))
def test_optimal_composition_is_that_of_randomized_responses(epsilon: float, count: int, slack: float) -> None:
    (total,) = optimal_epsilons(np.array([epsilon]), count, np.array([slack]))
    assert hockey_stick(epsilon, count, total) <= slack * (1 + 1e-8)
    if total > 1e-6:
        assert hockey_stick(epsilon, count, total - 1e-6) > slack * (1 - 1e-5)


@few(25)
@given(st.floats(1e-3, 0.5), st.integers(1, 10**6), st.floats(1e-12, 0.1))
def test_optimal_is_at_most_basic_and_advanced(epsilon: float, count: int, slack: float) -> None:
    epsilons, slacks = np.array([epsilon]), np.array([slack])
    (optimal,) = optimal_epsilons(epsilons, count, slacks)
    (advanced,) = advanced_epsilons(epsilons, count, slacks)
    assert optimal <= min(count * epsilon, advanced) * (1 + 1e-9)


def test_advanced_composition_is_the_formula() -> None:
    (found,) = advanced_epsilons(np.array([0.1]), 100, np.array([1e-5]))
    assert found == pytest.approx(0.1 * sqrt(200 * 11.512925464970229) + 10 * 0.10517091807564763, rel=1e-12)


def test_the_textbook_fails_above_one_so_nothing_is_proven_there() -> None:
    # sigma = sqrt(2 ln(1.25 / delta)) / epsilon (Dwork & Roth 2014, Theorem 3.22) is proven for epsilon < 1 only.
    mu = 1 / sqrt(2 * np.log(1.25 / 1e-5))
    assert [gaussian_epsilon(nominal * mu, 1e-5) > nominal for nominal in (1.0, 8.3, 8.5)] == [False, False, True]
    assert gaussian_epsilon(20.0 * mu, 1e-5) == pytest.approx(25.4, abs=0.05)
    assert textbook_gaussian_epsilon(8.5 * mu, 1e-5) == inf


def test_one_release_costs_what_it_costs() -> None:
    found = compose_releases(dp.Gaussian(5.0), 1, 1e-5, ADD)
    assert found is not None
    assert found.basic == gaussian_epsilon(0.2, 1e-5) == pytest.approx(found.optimal, rel=1e-3)
    assert found.textbook == pytest.approx(sqrt(2 * np.log(1.25e5)) / 5, rel=1e-12)


def test_samples_amplify_each_step() -> None:
    events = (dp.Gaussian(5.0), dp.PoissonSampled(0.1, dp.Gaussian(5.0)))
    whole, sampled = (compose_releases(event, 100, 1e-5, ADD) for event in events)
    assert whole is not None
    assert sampled is not None
    # ln(1 + q (e^epsilon - 1)) with the delta of a step divided by q.
    assert sampled.basic == pytest.approx(100 * np.log1p(0.1 * np.expm1(gaussian_epsilon(0.2, 1e-6))), rel=1e-12)
    assert sampled.optimal < sampled.advanced < sampled.basic
    assert (sampled.optimal, sampled.basic) < (whole.optimal, whole.basic)


def test_a_replaced_record_counts_twice_and_batches_have_a_fixed_size() -> None:
    fixed = compose_releases(dp.SampledWithoutReplacement(1000, 100, dp.Gaussian(10.0)), 100, 1e-5, REPLACE)
    assert fixed == compose_releases(dp.PoissonSampled(0.1, dp.Gaussian(5.0)), 100, 1e-5, ADD)
    assert compose_releases(dp.PoissonSampled(0.1, dp.Gaussian(5.0)), 100, 1e-5, REPLACE) is None


@pytest.mark.parametrize(
    "event",
    [
        *(dp.Laplace(2.0), dp.DiscreteGaussian(5.0), dp.DiscreteLaplace(0.5, 2), dp.PermuteAndFlip(0.5)),
        *(dp.MixtureOfGaussians(5.0, (1.0,), (1.0,)), dp.Composed((dp.Gaussian(5.0), dp.Laplace(2.0)))),
        dp.TruncatedPoissonSampled(1000, 0.1, 120, dp.Gaussian(5.0)),
        dp.SampledWithReplacement(1000, 100, dp.Gaussian(20.0)),
    ],
    ids=str,
)
def test_composition_theorems_of_other_events_are_none(event: DpEvent) -> None:
    for relation in NeighboringRelation:
        assert compose_releases(event, 10, 1e-5, relation) is None


@pytest.mark.parametrize(
    ("event", "count"), [(dp.Gaussian(1e-3), 10**9), (dp.PoissonSampled(1e-9, dp.Gaussian(1e6)), 10**9)]
)
def test_composition_theorems_at_extremes_are_numbers(event: dp.Gaussian | dp.PoissonSampled, count: int) -> None:
    found = compose_releases(event, count, 1e-30, ADD)
    assert found is not None
    assert 0 <= found.optimal <= found.basic < inf
    assert not np.isnan(found.advanced)


MUS = (1e-6, 1e-3, 0.03, 0.3, 0.999, 1.0, 1.001, 2.0, 5.0, 20.0, 100.0)
DELTAS = (0.3, 1e-2, 1e-5, 1e-10, 1e-20, 1e-30)


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Balle & Wang 2018, Theorem 8, as it is printed."""
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def excess(mu: float, epsilon: float) -> float:
    """How far the computed delta is above the exact one, relative."""
    with mpmath.workdps(60):
        exact = exact_delta(mu, epsilon)
        return float((mpmath.mpf(gaussian_delta(mu, epsilon)) - exact) / exact)


@for_each(product(MUS, DELTAS))
def test_epsilon_and_delta_are_the_exact_ones_rounded_up(point: tuple[float, float]) -> None:
    mu, delta = point
    epsilon = gaussian_epsilon(mu, delta)
    assert 0 <= excess(mu, max(epsilon, 0.1 * mu)) < 2e-12
    with mpmath.workdps(60):
        if epsilon == 0:
            assert exact_delta(mu, 0) <= delta
        else:
            assert exact_delta(mu, epsilon) <= delta
            assert exact_delta(mu, epsilon * (1 - 1e-12)) > delta * (1 - 1e-11)
            assert exact_delta(mu, epsilon - 1e-12 * max(epsilon, mu)) > delta


@given(mu=st.floats(-6, 3).map(lambda exponent: 10**exponent), place=st.floats(-3, 30))
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


def test_the_least_noise_and_the_most_have_an_answer() -> None:
    assert gaussian_epsilon(0.0, 1e-30) == gaussian_delta(0.0, 0.0) == 0
    for mu in (1e-300, 1e-200, 1e-12, 3e7):
        for delta in (1e-30, 0.4):
            assert gaussian_delta(mu, gaussian_epsilon(mu, delta)) <= delta * (1 + 1e-9)
    assert 0 < gaussian_delta(1e-200, 0.0) < 1e-80
    assert 0 < gaussian_delta(1e-200, 1e4) < 1e-300
