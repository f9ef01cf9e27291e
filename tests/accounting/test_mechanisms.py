"""The basic mechanisms against sums and integrals of their distributions at 60 digits."""

from collections.abc import Callable, Sequence
from itertools import product
from math import expm1, log

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import epsilon_ledger as sdk
from app.accounting.curves import finite_orders
from app.accounting.events import NeighboringRelation, TreeAggregation, event_from_dict
from app.accounting.formulas import mechanisms
from app.accounting.formulas.mechanisms import bounded_range_rdp, laplace_rdp, pure_dp_rdp, randomized_response_rdp
from app.accounting.rdp import curve_over
from tests.each import for_each
from tests.soak import few, thinned

DIGITS = 60
GRID = finite_orders(1)
ORDERS = np.array([1.0625, 1.5, 2.0, 11.75, 60.5, 1024.0])
TOLERANCE = 1e-13
NOISES = (1e-3, 0.05, 0.9, 7.0, 1e3, 1e6)
EPSILONS = (1e-9, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e5)


def divergence(p: Sequence[mpmath.mpf], q: Sequence[mpmath.mpf], order: float) -> mpmath.mpf:
    """Sum the definition over outputs."""
    a = mpmath.mpf(order)
    return mpmath.log(mpmath.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1)


def assert_close(
    computed: NDArray[np.float64], truth: Callable[[float], mpmath.mpf], at: NDArray[np.float64] = ORDERS
) -> None:
    for order, nats in zip(at, computed, strict=True):
        exact = truth(float(order))
        assert abs(mpmath.mpf(float(nats)) - exact) <= TOLERANCE * exact


def binary(epsilon: float) -> list[mpmath.mpf]:
    odds = mpmath.exp(mpmath.mpf(epsilon))
    return [odds / (1 + odds), 1 / (1 + odds)]


def two_point(t: mpmath.mpf, epsilon: float) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
    """Return the pair whose losses are t and t - epsilon."""
    epsilon = mpmath.mpf(epsilon)
    high = mpmath.expm1(t - epsilon) / mpmath.expm1(-epsilon) * mpmath.exp(-t)
    second = [high, 1 - high]
    return [high * mpmath.exp(t), (1 - high) * mpmath.exp(t - epsilon)], second


@pytest.mark.parametrize("z", thinned([0.9, 0.05, 7.0], 3))
def test_laplace_is_the_integral_of_its_densities(z: float) -> None:
    def integral(order: float) -> mpmath.mpf:
        a, v = mpmath.mpf(order), 1 / mpmath.mpf(z)
        # Both densities, over the scale; split where the slope changes and finely before the larger peak.
        cuts = [0, *(v - v * mpmath.mpf(2) ** -i for i in range(1, 14)), v]
        between = mpmath.quad(lambda x: mpmath.exp((2 * a - 1) * x - a * v) / 2, cuts)
        outside = (mpmath.exp(-a * v) + mpmath.exp((a - 1) * v)) / 2
        return mpmath.log(between + outside) / (a - 1)

    with mpmath.workdps(30):
        assert_close(laplace_rdp(z, ORDERS[1:4:2]), integral, ORDERS[1:4:2])


@for_each(NOISES)
def test_laplace_loses_no_digits_at_any_noise(z: float) -> None:
    def closed_form(order: float) -> mpmath.mpf:
        a, v = mpmath.mpf(order), 1 / mpmath.mpf(z)
        moment = (a * mpmath.exp((a - 1) * v) + (a - 1) * mpmath.exp(-a * v)) / (2 * a - 1)
        return mpmath.log(moment) / (a - 1)

    assert_close(laplace_rdp(z, ORDERS), closed_form)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_pure_dp_is_binary_randomized_response(epsilon: float) -> None:
    p = binary(epsilon)
    assert_close(pure_dp_rdp(epsilon, ORDERS), lambda order: divergence(p, p[::-1], order))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bounded_range_is_the_worst_two_point_pair(epsilon: float) -> None:
    def largest(order: float) -> mpmath.mpf:
        b, e = mpmath.mpf(order) - 1, mpmath.mpf(epsilon)
        c = -mpmath.expm1(-b * e) / mpmath.expm1(e)
        best = mpmath.log(b * (1 + c) / (c * (1 + b)))
        nearby = [divergence(*two_point(t, epsilon), order) for t in (best * 0.99, best, best + (e - best) / 100)]
        assert nearby[1] == max(nearby)
        return nearby[1]

    assert_close(bounded_range_rdp(epsilon, ORDERS), largest)


@for_each(product((1e-300, 1e-9, 0.1, 0.5, 0.9, 1 - 1e-9, 1 - 2**-53), (2, 3, 10, 10**6)))
def test_randomized_response_is_the_sum_over_its_outputs(case: tuple[float, int]) -> None:
    p, k = case
    even = mpmath.mpf(p) / k
    kept = 1 - mpmath.mpf(p) + even

    def moments(order: float, first: list[mpmath.mpf], second: list[mpmath.mpf]) -> mpmath.mpf:
        a, times = mpmath.mpf(order), [1, 1, k - 2]
        terms = (n * x**a * y ** (1 - a) for n, x, y in zip(times, first, second, strict=True))
        return mpmath.log(mpmath.fsum(terms)) / (a - 1)

    own, other, special = [kept, even, even], [even, kept, even], [mpmath.mpf(1) / k] * 3
    replaced, specially = (randomized_response_rdp(p, k, ORDERS, special=each) for each in (False, True))
    assert_close(replaced, lambda order: moments(order, own, other))
    assert_close(specially, lambda order: max(moments(order, own, special), moments(order, special, own)))


def test_randomized_response_costs_nothing_without_data_and_everything_without_noise() -> None:
    for special in (False, True):
        assert not randomized_response_rdp(1.0, 5, GRID, special=special).any()
        assert not randomized_response_rdp(0.3, 1, GRID, special=special).any()
        assert np.isinf(randomized_response_rdp(0.0, 5, GRID, special=special)).all()
    assert not pure_dp_rdp(0.0, GRID).any()
    assert not bounded_range_rdp(0.0, GRID).any()


LOGARITHM = st.floats(-9, 5)


@few(25)
@given(exponent=LOGARITHM, step=st.floats(1e-6, 1))
def test_more_epsilon_never_costs_less(exponent: float, step: float) -> None:
    less, more = 10**exponent, 10**exponent * (1 + step)
    for rdp in (pure_dp_rdp, bounded_range_rdp):
        assert np.all(rdp(less, GRID) <= rdp(more, GRID) * (1 + TOLERANCE))
    assert np.all(laplace_rdp(1 / less, GRID) <= laplace_rdp(1 / more, GRID) * (1 + TOLERANCE))


SIZES = st.floats(-12, 12).map(lambda exponent: 10**exponent)


def test_softmax_release_costs_twice_its_guides_epsilon() -> None:
    # Two vectors of probabilities differ by up to 2 in L1, not by 1: 460,517 and not 230,259.
    scale = mechanisms.scale_of_tail(1e-5, 0.9)
    assert scale == pytest.approx(1e-5 / log(10), rel=1e-15)
    assert mechanisms.epsilon_of_laplace(scale, 2.0) == pytest.approx(460_517.0186, rel=1e-9)
    assert mechanisms.epsilon_of_laplace(scale, 1.0) == pytest.approx(230_258.5093, rel=1e-9)


@given(bound=SIZES, probability=st.floats(1e-9, 1 - 1e-9))
def test_scale_and_bound_are_each_others_inverse(bound: float, probability: float) -> None:
    scale = mechanisms.scale_of_tail(bound, probability)
    assert mechanisms.bound_of_tail(scale, probability) == pytest.approx(bound, rel=1e-14)
    assert -expm1(-bound / scale) == pytest.approx(probability, rel=1e-13)


SPECIALLY = NeighboringRelation.REPLACE_SPECIAL
COUNTS = [*range(1, 70), 127, 128, 129, 255, 256, 1000, 1024]


def most_nodes(steps: int, released: int) -> int:
    """Get in how many nodes a record of one of the steps is, of a tree whose nodes end at the latest at `released`."""
    sizes = [1 << level for level in range(released.bit_length())]
    return max(sum((step // size + 1) * size <= released for size in sizes) for step in range(steps))


def nodes_charged(event: TreeAggregation) -> list[float]:
    return list(curve_over(event, ORDERS, SPECIALLY).nats() / mechanisms.gaussian_rdp(event.noise_multiplier, ORDERS))


@for_each(COUNTS)
def test_a_tree_costs_the_nodes_that_hold_a_record_and_completed_those_of_virtual_steps(steps: int) -> None:
    alone = nodes_charged(TreeAggregation(6.0, (steps,)))
    assert alone == pytest.approx([most_nodes(steps, steps)] * ORDERS.size, rel=3e-9)
    event = event_from_dict(sdk.tree_aggregation(6.0, [steps], completed=True))
    assert isinstance(event, TreeAggregation)
    released = event.step_counts[0]
    assert released >= steps > released // 2
    assert released & (released - 1) == 0
    assert nodes_charged(event) == pytest.approx([most_nodes(steps, released)] * ORDERS.size, rel=3e-9)


def test_tree_of_seven_steps_has_three_nodes_and_completed_four() -> None:
    assert (most_nodes(7, 7), most_nodes(7, 8)) == (3, 4)
    assert sdk.tree_aggregation(6.0, [7, 8, 1])["step_counts"] == [7, 8, 1]
    assert sdk.tree_aggregation(6.0, [7, 8, 1], completed=True)["step_counts"] == [8, 8, 1]
