"""Laplace noise: from a statement about its size to scale and epsilon, and back."""

from math import exp, expm1, log

import numpy as np
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


def test_the_noise_is_below_the_bound_as_often_as_it_is_said() -> None:
    noise = np.random.default_rng(1).laplace(scale=scale_of_tail(0.5, 0.9), size=400_000)
    assert np.mean(np.abs(noise) < 0.5) == pytest.approx(0.9, abs=2e-3)


@given(scale=st.floats(0.1, 10), distance=st.floats(0, 2))
def test_the_loss_never_exceeds_epsilon(scale: float, distance: float) -> None:
    outputs = np.linspace(-30, 30, 301)
    loss = (np.abs(outputs - distance) - np.abs(outputs)) / scale
    assert np.abs(loss).max() <= epsilon_of_laplace(scale, distance) + 1e-12
    assert exp(-np.abs(loss).max()) > 0
