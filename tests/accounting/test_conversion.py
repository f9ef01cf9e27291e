"""Thresholds and epsilons are each other's inverse, and every rounding is on the safe side."""

from copy import deepcopy
from fractions import Fraction
from functools import cache
from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import example, given
from hypothesis import strategies as st

from app.accounting.conversion import (
    ROUNDING,
    delta_from_rdp,
    delta_of_curve,
    epsilon_at_orders,
    epsilon_from_rdp,
    epsilon_of_curve,
    rdp_covered_by_delta,
    remaining_delta,
    threshold_units,
)
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, UNIT, RdpCurve, finite_orders
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import curve_over, event_curve
from tests.soak import thinned

GRID = finite_orders(1)
INTEGERS = GRID[np.floor(GRID) == GRID]
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
PARITY = list(product((1e-4, 0.01, 0.1, 0.5, 1.0), (0.7, 1.1, 4.0), (1, 1000, 14040)))

LIMITS = st.floats(-3, 3).map(lambda exponent: 10**exponent)
DELTAS = st.floats(-30, -0.31).map(lambda exponent: 10**exponent)


def _curve(event: DpEvent) -> RdpCurve:
    """The curve of an event over the finite orders."""
    whole = event_curve(event, RELATION)
    return RdpCurve(whole.values[:-1], whole.delta)


@cache
def composed_once(q: float, z: float, *, at_integers: bool) -> rdp_privacy_accountant.RdpAccountant:
    """Their accountant after one event: that is what takes it so long."""
    theirs = rdp_privacy_accountant.RdpAccountant(INTEGERS if at_integers else None)
    theirs.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)))
    return theirs


def composed(q: float, z: float, count: int, *, at_integers: bool) -> rdp_privacy_accountant.RdpAccountant:
    """Their accountant after so many events."""
    theirs = deepcopy(composed_once(q, z, at_integers=at_integers))
    theirs._rdp = theirs._rdp * count  # as it does itself
    return theirs


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


def test_epsilon_is_never_negative_and_zero_if_nothing_was_released() -> None:
    assert epsilon_from_rdp(GRID, np.zeros_like(GRID), 1e-12).epsilon == 0
    assert epsilon_at_orders(GRID, np.full_like(GRID, 1e-9), 0.4).min() < 0
    assert epsilon_from_rdp(GRID, np.full_like(GRID, 1e-9), 0.4).epsilon == 0


def test_epsilon_is_infinite_if_every_order_is_exhausted() -> None:
    assert epsilon_from_rdp(GRID, np.full_like(GRID, np.inf), 1e-5).epsilon == np.inf


def exact_delta(order: float, rdp: float, epsilon: float) -> mpmath.mpf:
    """Canonne, Kamath, Steinke 2020, Proposition 12; and Bretagnolle & Huber, which holds at every epsilon."""
    a, r = mpmath.mpf(order), mpmath.mpf(rdp)
    renyi = (1 / a) * (1 - 1 / a) ** (a - 1) * mpmath.exp((a - 1) * (r - mpmath.mpf(epsilon)))
    return min(renyi, mpmath.sqrt(-mpmath.expm1(-r)))


@given(
    rdp=st.floats(-15, 3).map(lambda exponent: 10**exponent),
    epsilon=LIMITS,
    index=st.integers(0, len(GRID) - 1),
)
@example(rdp=1000.0, epsilon=1000.0, index=1215)
def test_delta_at_an_order_is_the_exact_one_rounded_up(rdp: float, epsilon: float, index: int) -> None:
    order = GRID[index : index + 1]
    found = delta_from_rdp(order, np.array([rdp]), epsilon).delta
    with mpmath.workdps(50):
        exact = exact_delta(float(order[0]), rdp, epsilon)
        assert 0 < found <= 1
        assert found >= min(exact, 1)
        if 1e-290 < exact < 1:
            # Logarithms are rounded up by 2^-49 of their terms, which lie as far off themselves at the most.
            terms = (mpmath.mpf(float(order[0])) - 1) * (mpmath.mpf(rdp) + mpmath.mpf(epsilon)) + 10
            assert found <= exact * mpmath.exp(terms * mpmath.mpf(2) ** -48)


@given(count=st.integers(1, 100_000), delta=st.floats(-12, -1).map(lambda exponent: 10**exponent))
def test_delta_for_the_epsilon_of_a_delta_is_that_delta(count: int, delta: float) -> None:
    rdp = _curve(PoissonSampled(0.01, Gaussian(1.1))).times(count).nats()
    for method in ("improved", "classic"):
        found = epsilon_from_rdp(GRID, rdp, delta, method)
        assert delta_from_rdp(GRID, rdp, found.epsilon, method).delta <= delta * (1 + 1e-9)
        if found.epsilon > 0:
            assert delta_from_rdp(GRID, rdp, found.epsilon * (1 - 1e-6), method).delta > delta


def test_the_classic_delta_is_mironovs_and_looser() -> None:
    rdp = GRID / 50
    classic = delta_from_rdp(GRID, rdp, 2.0, "classic")
    best = int(np.argmin((GRID - 1) * (GRID / 50 - 2.0)))
    assert classic.order == GRID[best]
    assert classic.delta == pytest.approx(np.exp((GRID[best] - 1) * (GRID[best] / 50 - 2.0)), rel=1e-12)
    assert classic.delta > delta_from_rdp(GRID, rdp, 2.0).delta


@pytest.mark.parametrize(("q", "z", "count"), thinned(PARITY, 4))
def test_epsilon_and_delta_are_dp_accountings_at_integer_orders(q: float, z: float, count: int) -> None:
    theirs = composed(q, z, count, at_integers=True)
    spent = _curve(PoissonSampled(q, Gaussian(z))).times(count).nats()[np.isin(GRID, INTEGERS)]
    for delta in (1e-5, 1e-9):
        expected = theirs.get_epsilon(delta)
        assert expected > 0
        assert epsilon_from_rdp(INTEGERS, spent, delta).epsilon == pytest.approx(expected, rel=1e-6)
    for epsilon in (0.0, 0.3, 2.0, 10.0):
        expected = theirs.get_delta(epsilon)
        if 0 < expected < 1:
            assert delta_from_rdp(INTEGERS, spent, epsilon).delta == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("q", "z", "count"), thinned(PARITY, 4))
def test_epsilon_is_at_most_dp_accountings_at_its_orders_and_near_it_over_the_grid(
    q: float, z: float, count: int
) -> None:
    event = PoissonSampled(q, Gaussian(z))
    theirs = composed(q, z, count, at_integers=False)
    same = theirs.orders[theirs.orders > 1.01]  # below, it answers infinity
    at_their_orders = curve_over(event, same, RELATION).times(count)
    over_the_grid = _curve(event).times(count)
    for delta in (1e-5, 1e-9):
        expected = theirs.get_epsilon(delta)
        rounded_up = count * UNIT  # each step's divergence, to a whole unit
        assert epsilon_of_curve(same, at_their_orders, delta).epsilon <= expected * (1 + 2e-9) + rounded_up
        # Their 155 orders are not in the grid, so one of them may lie nearer to the best.
        assert epsilon_of_curve(GRID, over_the_grid, delta).epsilon <= expected * (1 + 1e-3)


def test_delta_is_zero_only_if_nothing_was_released() -> None:
    assert delta_from_rdp(GRID, np.zeros_like(GRID), 0.0).delta == 0
    assert delta_from_rdp(GRID, np.full_like(GRID, 1e-13), 10_000.0).delta > 0


def test_delta_is_one_if_every_order_is_exhausted() -> None:
    for method in ("improved", "classic"):
        assert delta_from_rdp(GRID, np.full_like(GRID, np.inf), 5.0, method).delta == 1


@given(delta=DELTAS)
def test_divergence_that_delta_covers_costs_no_epsilon(delta: float) -> None:
    covered = rdp_covered_by_delta(delta)
    with mpmath.workdps(80):
        exact = -mpmath.log(1 - mpmath.mpf(delta) ** 2)
        assert exact * (1 - 1e-14) <= covered <= exact
    wide = np.full_like(GRID, 600.0)
    wide[700] = covered
    assert epsilon_from_rdp(GRID, wide, delta).epsilon == 0
    wide[700] = covered * (1 + 1e-12)
    assert epsilon_from_rdp(GRID, wide, delta).epsilon > 0 or epsilon_at_orders(GRID, wide, delta).min() <= 0


@given(delta=st.floats(1e-30, 0.5), own=st.integers(0, 2**62))
def test_remaining_delta_is_rounded_down(delta: float, own: int) -> None:
    left = remaining_delta(delta, own)
    exact = Fraction(delta) - own * Fraction(DELTA_UNIT)
    assert 0 <= Fraction(left) <= max(exact, Fraction(0))
    if exact > 0:
        assert left >= float(exact) * (1 - 1e-15)


def test_a_curves_own_delta_is_taken_from_delta_and_added_to_it() -> None:
    pure = _curve(PoissonSampled(0.01, Gaussian(1.1))).times(1000)
    own = RdpCurve(pure.values, int(4e-6 / DELTA_UNIT))
    assert epsilon_of_curve(GRID, pure, 1e-5) == epsilon_from_rdp(GRID, pure.nats(), 1e-5)
    assert epsilon_of_curve(GRID, own, 1e-5).epsilon == pytest.approx(
        epsilon_from_rdp(GRID, pure.nats(), 6e-6).epsilon, rel=1e-9
    )
    for method in ("improved", "classic"):
        plain = delta_of_curve(GRID, pure, 2.0, method).delta
        assert delta_of_curve(GRID, own, 2.0, method).delta == pytest.approx(plain + 4e-6, rel=1e-9)
        assert delta_of_curve(GRID, own, 2.0, method).delta >= plain + own.delta_value()


def test_epsilon_is_infinite_if_a_curves_own_delta_leaves_nothing() -> None:
    for own in (int(1e-5 / DELTA_UNIT) + 1, 2**62, EXHAUSTED):
        curve = RdpCurve(np.zeros(GRID.size, dtype=np.int64), own)
        assert epsilon_of_curve(GRID, curve, 1e-5).epsilon == np.inf
    assert delta_of_curve(GRID, RdpCurve(np.zeros(GRID.size, dtype=np.int64), EXHAUSTED), 1.0).delta == 1
