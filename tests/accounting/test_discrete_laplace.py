"""Discrete Laplace noise against the sum over its outputs at 60 digits; permute and flip against Laplace noise."""

from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.curves import finite_orders
from app.accounting.formulas.amplification import sampled_laplace_rdp, sampled_pure_dp_rdp
from app.accounting.formulas.discrete_laplace import MAX_SUMMED, discrete_laplace_rdp, sampled_discrete_laplace_rdp
from app.accounting.formulas.mechanisms import bounded_range_rdp, laplace_rdp, permute_and_flip_rdp, pure_dp_rdp
from app.accounting.pld.pairs import LaplacePair
from tests.each import for_each
from tests.soak import few, thinned

DIGITS = 60
GRID = finite_orders(1)
ORDERS = np.array([1.0003, 1.0625, 1.5, 2.0, 11.75, 60.5, 1024.0])
PARAMETERS = (1e-9, 1e-3, 0.1, 1.0, 10.0, 500.0)
TOLERANCE = 1e-12


def summed(parameter: float, shift: int, order: float, q: float = 1.0) -> mpmath.mpf:
    """Sum the definition over the outputs, those beyond either centre together; the larger of both directions."""
    c, a, share = mpmath.mpf(parameter), mpmath.mpf(order), mpmath.mpf(q)
    far = mpmath.exp(-c)
    without = [mpmath.mpf(1), *((1 - far) * far**x for x in range(1, shift)), far**shift]
    without = [each / (1 + far) for each in without]
    mixed = [(1 - share) * x + share * y for x, y in zip(without, without[::-1], strict=True)]
    moments = (
        mpmath.fsum(x**a * y ** (1 - a) for x, y in zip(one, other, strict=True))
        for one, other in ((mixed, without), (without, mixed))
    )
    return max(mpmath.log(moment) / (a - 1) for moment in moments)


def assert_close(computed: NDArray[np.float64], parameter: float, shift: int, q: float = 1.0) -> None:
    for order, nats in zip(ORDERS, computed, strict=True):
        exact = summed(parameter, shift, float(order), q)
        assert abs(mpmath.mpf(float(nats)) - exact) <= TOLERANCE * exact


@for_each(product(PARAMETERS, (1, 2, 3, 40)))
def test_discrete_laplace_is_the_sum_over_its_outputs(case: tuple[float, int]) -> None:
    assert_close(discrete_laplace_rdp(*case, ORDERS), *case)


@for_each(
    [*product((1e-9, 0.01, 0.5), (1e-9, 1e-3, 0.1, 1.0), (1, 2)), (0.01, 0.1, MAX_SUMMED), (0.5, 1e-3, MAX_SUMMED)]
)
def test_a_sample_is_the_sum_over_its_outputs(case: tuple[float, float, int]) -> None:
    q, parameter, shift = case
    assert_close(sampled_discrete_laplace_rdp(q, parameter, shift, ORDERS), parameter, shift, q)


@pytest.mark.parametrize(
    ("q", "parameter", "shift"), thinned(list(product((0.01, 0.5), (1e-3, 0.1, 1.0), (65, 200))), 5)
)
def test_a_sample_with_many_losses_costs_little_more_than_the_sum(q: float, parameter: float, shift: int) -> None:
    found = sampled_discrete_laplace_rdp(q, parameter, shift, ORDERS)
    for order, nats in zip(ORDERS, found, strict=True):
        exact = summed(parameter, shift, float(order), q)
        assert exact * (1 - TOLERANCE) <= nats <= exact * 1.005


@few(20)
@given(exponent=st.floats(-9, 3), shift=st.integers(1, 10**6))
def test_discrete_laplace_costs_between_continuous_and_pure_mechanisms(exponent: float, shift: int) -> None:
    parameter = 10**exponent
    found = discrete_laplace_rdp(parameter, shift, GRID)
    assert np.all(found >= laplace_rdp(1 / (parameter * shift), GRID) * (1 - TOLERANCE))
    assert np.all(found <= pure_dp_rdp(parameter * shift, GRID) * (1 + TOLERANCE))
    sampled = sampled_discrete_laplace_rdp(0.1, parameter, shift, ORDERS)
    if parameter * shift <= 20:
        assert np.all(sampled >= sampled_laplace_rdp(0.1, 1 / (parameter * shift), ORDERS) * (1 - TOLERANCE))
    assert np.all(sampled <= sampled_pure_dp_rdp(0.1, parameter * shift, ORDERS) * (1 + TOLERANCE))


def chosen(lead: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the probabilities of the first of two candidates, by its lead in units of 2 sensitivity / epsilon.

    One of them comes first at random, and is accepted with a probability that falls with what it lacks.
    """
    accepted, other = np.exp(np.minimum(lead, 0)), np.exp(np.minimum(-lead, 0))
    return accepted / 2 + (1 - other) * accepted / 2


@pytest.mark.parametrize("epsilon", [0.1, 4.0])
def test_two_candidates_attain_every_point_of_the_divergence_of_laplace_noise(epsilon: float) -> None:
    # The difference of the scores moves by epsilon, from any start: each start is the best test of one false positive.
    tails = LaplacePair(1 / epsilon).tails(losses := np.linspace(-epsilon, epsilon, 21)[:-1])
    bound = tails.p_above - np.exp(losses) * tails.q_above
    starts = np.linspace(-epsilon, 0, 4001)
    p, q = (chosen(starts + moved) for moved in (epsilon, 0.0))
    found = [(p - np.exp(loss) * q).max() for loss in losses]
    assert found == pytest.approx(bound, rel=1e-5)


def test_permute_and_flip_costs_between_exponential_and_pure_mechanisms() -> None:
    for epsilon in (1e-6, 0.1, 1.0, 10.0, 1e3):
        found = permute_and_flip_rdp(epsilon, GRID)
        assert found == pytest.approx(laplace_rdp(1 / epsilon, GRID), rel=1e-13)
        assert np.all(found >= bounded_range_rdp(epsilon, GRID))
        assert np.all(found <= pure_dp_rdp(epsilon, GRID) * (1 + 1e-13))
