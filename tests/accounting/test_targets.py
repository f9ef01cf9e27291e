"""The rule of a plan, which fits exactly where its epsilon is within the target; and its epsilon step by step."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.accounting.conversion import (
    Rule,
    TrajectoryPoint,
    declared_bounds,
    epsilon_of_curve,
    epsilon_trajectory,
    spread,
)
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, RdpCurve, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve

GRID = orders(GRID_VERSION)
STEP = event_curve(PoissonSampled(0.01, Gaussian(1.1)), NeighboringRelation.ADD_OR_REMOVE_ONE)
RELEASE = event_curve(Gaussian(20.0), NeighboringRelation.ADD_OR_REMOVE_ONE)
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
    epsilon = epsilon_of_curve(GRID, total, delta).epsilon
    assume(0 < epsilon < np.inf)
    assume(abs(room - 1) > 1e-9)
    assert Rule(epsilon * room, delta).fits(total) == (room > 1)


@given(steps=st.integers(1, 10_000), delta=st.floats(1e-8, 0.4), epsilon=st.floats(1e-3, 10))
def test_fitting_plan_reads_as_an_epsilon_within_the_target(steps: int, delta: float, epsilon: float) -> None:
    total = STEP.times(steps)
    if Rule(epsilon, delta).fits(total):
        assert epsilon_of_curve(GRID, total, delta).epsilon <= epsilon


def test_delta_alone_covers_what_costs_no_epsilon() -> None:
    tiny = event_curve(Gaussian(1e3), NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert Rule(0.0, 0.01).fits(tiny)
    assert epsilon_of_curve(GRID, tiny, 0.01).epsilon == 0


@pytest.mark.parametrize("own", [int(1e-5 / DELTA_UNIT) + 1, EXHAUSTED])
def test_nothing_fits_once_the_mechanisms_own_deltas_have_taken_all(own: int) -> None:
    assert not Rule(1e4, 1e-5).fits(RdpCurve(np.zeros(GRID.size, dtype=np.int64), own))


def test_an_exhausted_order_never_fits() -> None:
    assert not Rule(1e4, 0.4).fits(RdpCurve(np.full(GRID.size, EXHAUSTED)))


def test_bounds_are_shared_and_cannot_be_written_to() -> None:
    bounds = declared_bounds(1.0, 1e-5, 1)
    assert bounds is declared_bounds(1.0, 1e-5, 1)
    with pytest.raises(ValueError, match="read-only"):
        bounds[0] = 1


RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
STEPS = [event_curve(PoissonSampled(0.01, Gaussian(z)), RELATION) for z in (1.1, 0.8, 2.0)]
LOUD = RdpCurve(event_curve(Gaussian(10.0), RELATION).values, int(1e-7 / DELTA_UNIT) + 1)
PARTS = st.lists(st.tuples(st.sampled_from([*STEPS, LOUD]), st.integers(1, 30)), min_size=1, max_size=6)


def trajectory(parts: list[tuple[RdpCurve, int]], max_points: int) -> list[TrajectoryPoint]:
    """The epsilons at delta 1e-5 after evenly spaced steps."""
    return epsilon_trajectory(parts, 1e-5, spread(1, 1 + sum(count for _, count in parts), max_points))


@given(parts=PARTS, max_points=st.integers(1, 60))
def test_each_point_is_the_epsilon_of_the_plan_up_to_there(parts: list[tuple[RdpCurve, int]], max_points: int) -> None:
    singles = [curve for curve, count in parts for _ in range(count)]
    points = trajectory(parts, max_points)
    for point in points:
        total = sum(singles[1 : point.step], start=singles[0])
        best = epsilon_of_curve(GRID, total, 1e-5)
        assert (point.epsilon, point.order) == (best.epsilon, best.order)


@given(parts=PARTS, max_points=st.integers(1, 60))
def test_the_points_are_few_increasing_and_end_with_the_last_step(
    parts: list[tuple[RdpCurve, int]], max_points: int
) -> None:
    total = sum(count for _, count in parts)
    points = trajectory(parts, max_points)
    steps = [point.step for point in points]
    assert len(steps) == min(total, max_points)
    assert steps[-1] == total
    assert steps[0] == 1 or max_points == 1
    assert steps == sorted(set(steps))
    gaps = np.diff(steps)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1
    epsilons = [point.epsilon for point in points]
    assert epsilons == sorted(epsilons)


def test_a_billion_steps_are_no_more_work_than_a_hundred() -> None:
    points = trajectory([(STEPS[0], 10**9), (STEPS[1], 10**9)], 100)
    assert [points[0].step, points[-1].step] == [1, 2 * 10**9]
    assert points[-1].epsilon > 1e5


def test_a_trajectory_becomes_infinite_where_the_mechanisms_own_deltas_have_taken_all() -> None:
    points = trajectory([(LOUD, 110)], 200)
    assert [point.epsilon < np.inf for point in points] == [point.step < 100 for point in points]


@pytest.mark.parametrize("max_points", [1, 2, 3])
def test_few_points_are_the_first_the_last_and_the_middle(max_points: int) -> None:
    steps = [point.step for point in trajectory([(STEPS[0], 101)], max_points)]
    assert steps == {1: [101], 2: [1, 101], 3: [1, 51, 101]}[max_points]
