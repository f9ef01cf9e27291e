"""Thresholds and epsilons are each other's inverse, on the safe side; a plan fits exactly where its epsilon does."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.accounting import conversion
from app.accounting.conversion import Rule, delta_from_rdp, delta_of_curve, epsilon_from_rdp, epsilon_of_curve
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, UNIT, RdpCurve, finite_orders, orders
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve

GRID = finite_orders(1)
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE

LIMITS = st.floats(-3, 3).map(lambda exponent: 10**exponent)
DELTAS = st.floats(-30, -0.31).map(lambda exponent: 10**exponent)


def _curve(event: DpEvent) -> RdpCurve:
    """The curve of an event over the finite orders."""
    whole = event_curve(event, RELATION)
    return RdpCurve(whole.values[:-1], whole.delta)


def exact_threshold(order: float, epsilon: float, delta: float) -> mpmath.mpf:
    a = mpmath.mpf(order)
    return mpmath.mpf(epsilon) - mpmath.log(1 - 1 / a) + mpmath.log(mpmath.mpf(delta) * a) / (a - 1)


def allowance(order: float, epsilon: float, delta: float) -> float:
    """Return how far below the exact threshold the documented rounding may go, in units."""
    price = (np.log(order) - np.log(delta)) / (order - 1)
    return float(2 * conversion.ROUNDING * (epsilon + np.log1p(1 / (order - 1)) + price) / UNIT + 1)


@given(epsilon=LIMITS, delta=DELTAS, index=st.integers(0, len(GRID) - 1))
def test_a_threshold_is_never_above_the_exact_one_and_just_below_it(epsilon: float, delta: float, index: int) -> None:
    order = float(GRID[index])
    units = int(conversion.threshold_units(GRID, epsilon, delta)[index])
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
    units = conversion.threshold_units(some, 3.0, deltas)
    assert units.dtype == np.int64
    assert units[:2].tolist() == [-1, -1]  # the second: no delta, no proof
    assert units[2] == conversion.threshold_units(some, 3.0, 1e-5)[2] > 0
    epsilons = conversion.epsilon_at_orders(some, units.astype(np.float64) * UNIT, deltas)
    assert np.isinf(epsilons[1])
    assert epsilons[2] == pytest.approx(3.0, rel=1e-12)


def test_an_enormous_limit_stays_below_exhausted() -> None:
    units = conversion.threshold_units(GRID, 1e9, 1e-5)
    assert np.all((units > EXHAUSTED - 2048) & (units < EXHAUSTED))


def test_the_epsilon_of_a_gaussian_is_the_one_worked_by_hand() -> None:
    # Noise multiplier 1, order 8: 4 + ln(7/8) - (ln 1e-5 + ln 8) / 7.
    by_hand = 4 - 0.13353139262452263 + (11.512925464970229 - 2.0794415416798357) / 7
    assert conversion.epsilon_at_orders(np.array([8.0]), np.array([4.0]), 1e-5) == pytest.approx([by_hand], rel=1e-14)
    assert epsilon_from_rdp(np.array([8.0]), np.array([4.0]), 1e-5).epsilon == pytest.approx(by_hand, rel=1e-14)


def test_the_classic_conversion_is_mironovs_and_looser() -> None:
    classic, at_orders = epsilon_from_rdp(GRID, GRID / 2, 1e-5, method="classic"), GRID / 2 + np.log(1e5) / (GRID - 1)
    assert classic.order == GRID[np.argmin(at_orders)]
    assert classic.epsilon == pytest.approx(at_orders.min(), rel=1e-14)
    assert classic.epsilon > epsilon_from_rdp(GRID, GRID / 2, 1e-5).epsilon
    least, exponents = delta_from_rdp(GRID, GRID / 50, 2.0, "classic"), (GRID - 1) * (GRID / 50 - 2.0)
    assert least.order == GRID[np.argmin(exponents)]
    assert least.delta == pytest.approx(np.exp(exponents.min()), rel=1e-12)
    assert least.delta > delta_from_rdp(GRID, GRID / 50, 2.0).delta


def test_epsilon_is_never_negative_and_zero_if_nothing_was_released() -> None:
    assert epsilon_from_rdp(GRID, np.zeros_like(GRID), 1e-12).epsilon == 0
    assert conversion.epsilon_at_orders(GRID, np.full_like(GRID, 1e-9), 0.4).min() < 0
    assert epsilon_from_rdp(GRID, np.full_like(GRID, 1e-9), 0.4).epsilon == 0


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


def test_delta_is_zero_only_if_nothing_was_released_and_one_if_every_order_is_exhausted() -> None:
    assert delta_from_rdp(GRID, np.zeros_like(GRID), 0.0).delta == 0
    assert delta_from_rdp(GRID, np.full_like(GRID, 1e-13), 10_000.0).delta > 0
    lost = np.full_like(GRID, np.inf)
    assert epsilon_from_rdp(GRID, lost, 1e-5).epsilon == np.inf
    assert [delta_from_rdp(GRID, lost, 5.0, method).delta for method in ("improved", "classic")] == [1, 1]


@given(delta=DELTAS)
def test_divergence_that_delta_covers_costs_no_epsilon(delta: float) -> None:
    covered = conversion.rdp_covered_by_delta(delta)
    with mpmath.workdps(80):
        exact = -mpmath.log(1 - mpmath.mpf(delta) ** 2)
        assert exact * (1 - 1e-14) <= covered <= exact
    wide = np.full_like(GRID, 600.0)
    wide[700] = covered
    assert epsilon_from_rdp(GRID, wide, delta).epsilon == 0
    wide[700] = covered * (1 + 1e-12)
    assert epsilon_from_rdp(GRID, wide, delta).epsilon > 0 or conversion.epsilon_at_orders(GRID, wide, delta).min() <= 0


@given(delta=st.floats(1e-30, 0.5), own=st.integers(0, 2**62))
def test_remaining_delta_is_rounded_down(delta: float, own: int) -> None:
    left = conversion.remaining_delta(delta, own)
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


ALL_ORDERS = orders(GRID_VERSION)
STEP, RELEASE = (event_curve(each, RELATION) for each in (PoissonSampled(0.01, Gaussian(1.1)), Gaussian(20.0)))
OWN_DELTAS = st.integers(0, int(2e-5 / DELTA_UNIT))


@given(
    steps=st.integers(0, 100_000),
    releases=st.integers(0, 50),
    own=OWN_DELTAS,
    delta=st.floats(-8, -0.5).map(lambda exponent: 10**exponent),
    room=st.floats(0.9, 1.1),
)
def test_a_plan_fits_exactly_where_its_epsilon_is_within_the_target(
    steps: int, releases: int, own: int, delta: float, room: float
) -> None:
    exact = STEP.times(steps) + RELEASE.times(releases)
    total = RdpCurve(exact.values, own)
    epsilon = epsilon_of_curve(ALL_ORDERS, total, delta).epsilon
    assume(0 < epsilon < np.inf)
    assume(abs(room - 1) > 1e-9)
    assert Rule(epsilon * room, delta).fits(total) == (room > 1)


def test_delta_alone_covers_what_costs_no_epsilon_and_bounds_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        conversion.declared_bounds(1.0, 1e-5, 1)[0] = 1
    tiny = event_curve(Gaussian(1e3), NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert Rule(0.0, 0.01).fits(tiny)
    assert epsilon_of_curve(ALL_ORDERS, tiny, 0.01).epsilon == 0


def test_nothing_fits_once_the_orders_are_exhausted_or_own_deltas_have_taken_all() -> None:
    assert not Rule(1e4, 0.4).fits(RdpCurve(np.full(ALL_ORDERS.size, EXHAUSTED)))
    for own in (int(1e-5 / DELTA_UNIT) + 1, EXHAUSTED):
        assert not Rule(1e4, 1e-5).fits(RdpCurve(np.zeros(ALL_ORDERS.size, dtype=np.int64), own))


STEPS = [event_curve(PoissonSampled(0.01, Gaussian(z)), RELATION) for z in (1.1, 0.8, 2.0)]
LOUD = RdpCurve(event_curve(Gaussian(10.0), RELATION).values, 10**11 + 1)
PARTS = st.lists(st.tuples(st.sampled_from([*STEPS, LOUD]), st.integers(1, 30)), min_size=1, max_size=6)


def trajectory(parts: list[tuple[RdpCurve, int]], max_points: int) -> list[conversion.TrajectoryPoint]:
    """The epsilons at delta 1e-5 after evenly spaced steps."""
    steps = conversion.spread(1, 1 + sum(count for _, count in parts), max_points)
    return conversion.epsilon_trajectory(parts, 1e-5, steps)


@given(parts=PARTS, max_points=st.integers(1, 60))
def test_points_are_few_increasing_and_the_epsilons_of_the_plan_up_to_there(
    parts: list[tuple[RdpCurve, int]], max_points: int
) -> None:
    singles = [curve for curve, count in parts for _ in range(count)]
    total, points = len(singles), trajectory(parts, max_points)
    for point in points[:: max(1, len(points) // 8)]:
        best = epsilon_of_curve(ALL_ORDERS, sum(singles[1 : point.step], start=singles[0]), 1e-5)
        assert (point.epsilon, point.order) == (best.epsilon, best.order)
    steps = [point.step for point in points]
    assert len(steps) == min(total, max_points)
    assert steps[-1] == total
    assert steps[0] == 1 or max_points == 1
    assert steps == sorted(set(steps))
    gaps = np.diff(steps)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1
    assert [point.epsilon for point in points] == sorted(point.epsilon for point in points)


def test_a_billion_steps_are_no_more_work_than_a_hundred() -> None:
    points = trajectory([(STEPS[0], 10**9), (STEPS[1], 10**9)], 100)
    assert [points[0].step, points[-1].step] == [1, 2 * 10**9]
    assert points[-1].epsilon > 1e5


def test_a_trajectory_becomes_infinite_where_the_mechanisms_own_deltas_have_taken_all() -> None:
    points = trajectory([(LOUD, 110)], 200)
    assert [point.epsilon < np.inf for point in points] == [point.step < 100 for point in points]


def test_few_points_are_the_first_the_last_and_the_middle() -> None:
    found = [[point.step for point in trajectory([(STEPS[0], 101)], number)] for number in (1, 2, 3)]
    assert found == [[101], [1, 101], [1, 51, 101]]
