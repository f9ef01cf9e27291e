"""A trajectory: at every shown step the epsilon of the plan up to there, first and last step included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.conversion import TrajectoryPoint, epsilon_of_curve, epsilon_trajectory, spread
from app.accounting.curves import DELTA_UNIT, GRID_VERSION, RdpCurve, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve

GRID = orders(GRID_VERSION)
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
STEPS = [event_curve(PoissonSampled(0.01, Gaussian(z)), RELATION) for z in (1.1, 0.8, 2.0)]
RELEASE = RdpCurve(event_curve(Gaussian(10.0), RELATION).values, int(1e-7 / DELTA_UNIT) + 1)
PARTS = st.lists(st.tuples(st.sampled_from([*STEPS, RELEASE]), st.integers(1, 30)), min_size=1, max_size=6)


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
    points = trajectory([(RELEASE, 110)], 200)
    assert [point.epsilon < np.inf for point in points] == [point.step < 100 for point in points]


@pytest.mark.parametrize("max_points", [1, 2, 3])
def test_few_points_are_the_first_the_last_and_the_middle(max_points: int) -> None:
    steps = [point.step for point in trajectory([(STEPS[0], 101)], max_points)]
    assert steps == {1: [101], 2: [1, 101], 3: [1, 51, 101]}[max_points]
