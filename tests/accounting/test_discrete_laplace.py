"""Discrete Laplace noise against the sum over its outputs at 60 digits, and what its module says of distances."""

from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.curves import finite_orders
from app.accounting.formulas.amplification import sampled_laplace_rdp, sampled_pure_dp_rdp
from app.accounting.formulas.discrete_laplace import (
    MAX_SUMMED,
    discrete_laplace_rdp,
    sampled_discrete_laplace_rdp,
)
from app.accounting.formulas.mechanisms import laplace_rdp, pure_dp_rdp
from tests.soak import thinned

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


@pytest.mark.parametrize(("parameter", "shift"), list(product(PARAMETERS, (1, 2, 3, 17, 200))))
def test_discrete_laplace_is_the_sum_over_its_outputs(parameter: float, shift: int) -> None:
    assert_close(discrete_laplace_rdp(parameter, shift, ORDERS), parameter, shift)


@pytest.mark.parametrize(
    ("q", "parameter", "shift"), list(product((1e-9, 0.01, 0.5), (1e-9, 1e-3, 0.1, 1.0), (1, 2, MAX_SUMMED)))
)
def test_a_sample_is_the_sum_over_its_outputs(q: float, parameter: float, shift: int) -> None:
    assert_close(sampled_discrete_laplace_rdp(q, parameter, shift, ORDERS), parameter, shift, q)


@pytest.mark.parametrize(
    ("q", "parameter", "shift"), thinned(list(product((0.01, 0.5), (1e-3, 0.1, 1.0), (65, 200, 1000))), 4)
)
def test_a_sample_with_many_losses_costs_little_more_than_the_sum(q: float, parameter: float, shift: int) -> None:
    found = sampled_discrete_laplace_rdp(q, parameter, shift, ORDERS)
    for order, nats in zip(ORDERS, found, strict=True):
        exact = summed(parameter, shift, float(order), q)
        assert exact * (1 - TOLERANCE) <= nats <= exact * 1.005


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
