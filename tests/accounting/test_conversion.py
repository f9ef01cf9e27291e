"""Thresholds and epsilons are each other's inverse, and every rounding is on the safe side."""

from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.conversion import ROUNDING, epsilon_at_orders, epsilon_from_rdp, threshold_units
from app.accounting.curves import EXHAUSTED, UNIT
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.orders import orders
from app.accounting.rdp import event_curve

GRID = orders(1)
INTEGERS = GRID[np.floor(GRID) == GRID]
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
PARITY = list(product((1e-4, 0.01, 0.1, 0.5, 1.0), (0.7, 1.1, 4.0), (1, 1000, 14040)))

LIMITS = st.floats(-3, 3).map(lambda exponent: 10**exponent)
DELTAS = st.floats(-30, -0.31).map(lambda exponent: 10**exponent)


def exact_threshold(order: float, epsilon: float, delta: float) -> mpmath.mpf:
    a = mpmath.mpf(order)
    return mpmath.mpf(epsilon) - mpmath.log(1 - 1 / a) + mpmath.log(mpmath.mpf(delta) * a) / (a - 1)


def allowance(order: float, epsilon: float, delta: float) -> float:
    """Return how far below the exact threshold the documented rounding may go, in units."""
    price = (np.log(order) - np.log(delta)) / (order - 1)
    return float(2 * ROUNDING * (epsilon + np.log1p(1 / (order - 1)) + price) / UNIT + 1)


@given(epsilon=LIMITS, delta=DELTAS, index=st.integers(0, len(GRID) - 1))
def test_a_threshold_is_never_above_the_exact_one_and_just_below_it(epsilon: float, delta: float, index: int) -> None:
    order = float(GRID[index])
    units = int(threshold_units(GRID, epsilon, delta)[index])
    with mpmath.workdps(50):
        exact = exact_threshold(order, epsilon, delta) * 2**44
        lost = allowance(order, epsilon, delta)
        if units == -1:
            assert exact < lost
        else:
            assert units <= exact <= units + lost


def test_a_usual_limit_loses_less_than_three_units_at_any_usual_order() -> None:
    usual = GRID[GRID >= 1.5]
    units = threshold_units(usual, 3.0, 1e-5)
    with mpmath.workdps(50):
        for order, unit in zip(usual[::7], units[::7], strict=True):
            assert unit <= exact_threshold(float(order), 3.0, 1e-5) * 2**44 <= unit + 3 or unit == -1


@given(epsilon=LIMITS, delta=DELTAS, index=st.integers(0, len(GRID) - 1))
def test_what_fills_a_threshold_proves_the_limit_and_more_does_not(epsilon: float, delta: float, index: int) -> None:
    order = float(GRID[index])
    units = int(threshold_units(GRID, epsilon, delta)[index])
    with mpmath.workdps(50):
        price = epsilon - exact_threshold(order, epsilon, delta)
        if units >= 0:
            assert units * mpmath.mpf(UNIT) + price <= epsilon
        assert (units + allowance(order, epsilon, delta) + 1) * mpmath.mpf(UNIT) + price > epsilon


def test_thresholds_take_a_delta_for_every_order() -> None:
    some = np.array([2.0, 8.0, 32.0])
    deltas = np.array([1e-6, 0.0, 1e-5])
    units = threshold_units(some, 3.0, deltas)
    assert units.dtype == np.int64
    assert units[0] == -1
    assert units[1] == -1  # no delta, no proof
    assert units[2] == threshold_units(some, 3.0, 1e-5)[2] > 0
    epsilons = epsilon_at_orders(some, units.astype(np.float64) * UNIT, deltas)
    assert np.isinf(epsilons[1])
    assert epsilons[2] == pytest.approx(3.0, rel=1e-12)


def test_an_enormous_limit_stays_below_exhausted() -> None:
    units = threshold_units(GRID, 1e9, 1e-5)
    assert np.all((units > EXHAUSTED - 2048) & (units < EXHAUSTED))


def test_no_limit_at_all_admits_nothing_at_a_delta_too_small() -> None:
    assert np.all(threshold_units(GRID, 0.0, 1e-5) == -1)


def test_the_epsilon_of_a_gaussian_is_the_one_worked_by_hand() -> None:
    # Noise multiplier 1, order 8: 4 + ln(7/8) - (ln 1e-5 + ln 8) / 7.
    by_hand = 4 - 0.13353139262452263 + (11.512925464970229 - 2.0794415416798357) / 7
    assert epsilon_at_orders(np.array([8.0]), np.array([4.0]), 1e-5) == pytest.approx([by_hand], rel=1e-14)
    assert epsilon_from_rdp(np.array([8.0]), np.array([4.0]), 1e-5).epsilon == pytest.approx(by_hand, rel=1e-14)


def test_the_classic_conversion_is_mironovs_and_looser() -> None:
    rdp = GRID / 2
    classic = epsilon_from_rdp(GRID, rdp, 1e-5, method="classic")
    best = int(np.argmin(GRID / 2 + np.log(1e5) / (GRID - 1)))
    assert classic.order == GRID[best]
    assert classic.epsilon == pytest.approx(GRID[best] / 2 + np.log(1e5) / (GRID[best] - 1), rel=1e-14)
    assert classic.epsilon > epsilon_from_rdp(GRID, rdp, 1e-5).epsilon


def test_the_smallest_epsilon_over_the_orders_is_reported_with_its_order() -> None:
    rdp = event_curve(PoissonSampled(0.01, Gaussian(1.1)), RELATION).times(1000).nats()
    found = epsilon_from_rdp(GRID, rdp, 1e-5)
    at_orders = epsilon_at_orders(GRID, rdp, 1e-5)
    assert found.epsilon == at_orders.min()
    assert at_orders[np.flatnonzero(found.order == GRID)[0]] == found.epsilon


def test_epsilon_is_never_negative_and_zero_if_nothing_was_released() -> None:
    assert epsilon_from_rdp(GRID, np.zeros_like(GRID), 1e-12).epsilon == 0
    assert epsilon_at_orders(GRID, np.full_like(GRID, 1e-9), 0.4).min() < 0
    assert epsilon_from_rdp(GRID, np.full_like(GRID, 1e-9), 0.4).epsilon == 0


def test_epsilon_is_infinite_if_every_order_is_exhausted() -> None:
    assert epsilon_from_rdp(GRID, np.full_like(GRID, np.inf), 1e-5).epsilon == np.inf


@pytest.mark.parametrize(("q", "z", "count"), PARITY)
def test_epsilon_is_dp_accountings_at_integer_orders(q: float, z: float, count: int) -> None:
    theirs = rdp_privacy_accountant.RdpAccountant(orders=INTEGERS)
    theirs.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)), count)
    spent = event_curve(PoissonSampled(q, Gaussian(z)), RELATION).times(count).nats()[np.isin(GRID, INTEGERS)]
    for delta in (1e-5, 1e-9):
        expected = theirs.get_epsilon(delta)
        assert expected > 0
        assert epsilon_from_rdp(INTEGERS, spent, delta).epsilon == pytest.approx(expected, rel=1e-6)
