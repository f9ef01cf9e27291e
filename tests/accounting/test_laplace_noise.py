"""Laplace noise: from a statement about its size to scale and epsilon, and back."""

from math import expm1, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.formulas.mechanisms import bound_of_tail, epsilon_of_laplace, scale_of_tail

SIZES = st.floats(-12, 12).map(lambda exponent: 10**exponent)


def test_a_softmax_release_costs_twice_what_its_guide_says() -> None:
    # Two vectors of probabilities differ by up to 2 in L1, not by 1: 460,517 and not 230,259.
    scale = scale_of_tail(1e-5, 0.9)
    assert scale == pytest.approx(1e-5 / log(10), rel=1e-15)
    assert epsilon_of_laplace(scale, 2.0) == pytest.approx(460_517.0186, rel=1e-9)
    assert epsilon_of_laplace(scale, 1.0) == pytest.approx(230_258.5093, rel=1e-9)


@given(bound=SIZES, probability=st.floats(1e-9, 1 - 1e-9))
def test_scale_and_bound_are_each_others_inverse(bound: float, probability: float) -> None:
    scale = scale_of_tail(bound, probability)
    assert bound_of_tail(scale, probability) == pytest.approx(bound, rel=1e-14)
    assert -expm1(-bound / scale) == pytest.approx(probability, rel=1e-13)
