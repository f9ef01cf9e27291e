"""Trajectories: at each point the smallest limit that admits the steps so far, and never less."""

from functools import cache
from itertools import pairwise
from math import inf

import pytest

from app.accounting.events import (
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
)
from app.accounting.work import bounded
from app.ledger.step_events import StepEvent, first_steps
from app.service.planning.assumptions import PlanAssumptions
from app.service.planning.costs import plan_epsilon
from app.service.planning.trajectories import KNOTS, plan_trajectory
from tests.soak import thinned

SETTING = PlanAssumptions()
DELTA = 1e-5

Plan = tuple[StepEvent, ...]


def sampled(q: float, inner: DpEvent, count: int) -> StepEvent:
    return StepEvent(PoissonSampled(q, inner), count)


SCHEDULE = Decay(mode="exp", decay_rate=0.06, steps=20, event=PoissonSampled(0.05, Gaussian(2.0)))
PLANS: dict[str, Plan] = {
    "a training": (sampled(0.01, Gaussian(1.1), 5000),),
    "two stages": (sampled(256 / 60000, Gaussian(1.1), 50_000), sampled(0.01, Gaussian(1.5), 10_000)),
    "a query, then a training": (StepEvent(Gaussian(8.0), 3), sampled(0.01, Gaussian(1.1), 700)),
    "a training, then a loud query": (sampled(0.01, Gaussian(2.0), 700), StepEvent(Gaussian(0.8), 1)),
    "a schedule, then a training": (StepEvent(SCHEDULE, 1), sampled(0.01, Gaussian(1.1), 100)),
    "Gaussian noise": (StepEvent(Gaussian(30.0), 400),),
    "Laplace noise on samples": (sampled(0.05, Laplace(3.0), 200), StepEvent(Laplace(20.0), 30)),
    "own deltas": (StepEvent(EpsilonDelta(0.1, 1e-8), 100), sampled(0.01, Gaussian(1.1), 500)),
    "own deltas at the end": (sampled(0.01, Gaussian(1.1), 500), StepEvent(EpsilonDelta(0.1, 1e-7), 60)),
}


@cache
def needed(plan: Plan, count: int) -> float:
    """What the endpoint of epsilon answers for the first steps."""
    required = plan_epsilon(first_steps(plan, count), DELTA, SETTING).required
    assert required is not None
    return required


@pytest.mark.parametrize("name", thinned([*PLANS], 4))
def test_point_needs_what_its_steps_need(name: str) -> None:
    plan = PLANS[name]
    points = plan_trajectory(plan, DELTA, 12, SETTING).points
    assert len(points) == 12
    for point in points[::6]:
        assert needed(plan, point.step) <= point.required_epsilon <= needed(plan, point.step) * 1.001
    assert needed(plan, points[-1].step) <= points[-1].required_epsilon <= needed(plan, points[-1].step) * 1.0001


def test_point_between_knots_needs_what_the_next_knot_needs() -> None:
    plan = PLANS["two stages"]
    points = plan_trajectory(plan, DELTA, 200, SETTING).points
    assert len(points) == 200
    values = [point.required_epsilon for point in points]
    assert values == sorted(values)
    assert len(set(values)) == KNOTS
    knots = [before for before, after in pairwise(points) if before.required_epsilon < after.required_epsilon]
    for knot in [*knots[::10], points[-1]]:
        assert needed(plan, knot.step) <= knot.required_epsilon <= needed(plan, knot.step) * 1.001
    assert max(after - before for before, after in pairwise(values)) <= 0.06 * values[-1]


@pytest.mark.parametrize("max_points", thinned([1, 33, 2, 500, 3, 31, 32, 64], 2))
def test_trajectory_has_as_many_points_as_asked_and_each_has_a_limit(max_points: int) -> None:
    points = plan_trajectory(PLANS["Gaussian noise"], DELTA, max_points, SETTING).points
    assert len(points) == min(max_points, 400)
    values = [point.required_epsilon for point in points]
    assert len(set(values)) == min(max_points, KNOTS)
    assert values[-1] == pytest.approx(needed(PLANS["Gaussian noise"], 400), rel=1e-5)


FIXED = PlanAssumptions(NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize(
    ("plan", "setting", "reason"),
    [
        ((sampled(0.01, DiscreteGaussian(4.0), 3000),), SETTING, "cannot hold discrete_gaussian"),
        (
            (StepEvent(SampledWithoutReplacement(60_000, 600, Gaussian(4.0)), 2000),),
            FIXED,
            "cannot hold a batch of fixed size",
        ),
    ],
)
def test_event_without_a_plan_needs_what_the_orders_say(plan: Plan, setting: PlanAssumptions, reason: str) -> None:
    found = plan_trajectory(plan, DELTA, 10, setting)
    (warning,) = [each for each in found.warnings if "account without a plan" in each]
    assert reason in warning
    for point in found.points:
        whole = plan_epsilon(first_steps(plan, point.step), DELTA, setting)
        assert point.required_epsilon == whole.required
        assert point.required_epsilon > point.epsilon


def test_plan_over_the_bound_of_work_needs_what_the_orders_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.accounting.work.MAX_PLAN_WORK", 100_000)
    schedule = Decay(mode="time", decay_rate=0.0578, steps=400, event=PoissonSampled(1e-4, Gaussian(4.0)))
    plan = (StepEvent(schedule, 1), sampled(0.01, Gaussian(1.5), 300))
    with bounded():
        found = plan_trajectory(plan, DELTA, 20, SETTING)
    (warning,) = [each for each in found.warnings if "account without a plan" in each]
    assert "more work" in warning
    with bounded():
        readings = plan_epsilon(plan, DELTA, SETTING).accountants
    by_orders = next(each.value for each in readings if each.name == "renyi_filter")
    assert found.points[-1].required_epsilon == by_orders
    values = [point.required_epsilon for point in found.points]
    assert values == sorted(values)
    assert len(set(values)) > 10


def test_few_knots_are_warned_of_and_the_last_is_that_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS["a training"]
    monkeypatch.setattr("app.accounting.work.MAX_PLAN_WORK", 22_000)
    with bounded():
        found = plan_trajectory(plan, DELTA, 100, SETTING)
    (warning,) = found.warnings
    assert "few of the points" in warning
    values = [point.required_epsilon for point in found.points]
    assert values == sorted(values)
    assert needed(plan, 5000) <= values[-1] <= needed(plan, 5000) * 1.0001
    assert values[0] < values[-1] / 2
    for point in found.points[::20]:
        assert point.required_epsilon >= needed(plan, point.step)


def test_own_deltas_that_leave_nothing_need_an_infinite_limit() -> None:
    points = plan_trajectory((StepEvent(EpsilonDelta(0.1, 1e-7), 300),), DELTA, 30, SETTING).points
    assert [point.required_epsilon < inf for point in points] == [point.step < 100 for point in points]
    for point in points[:8:3]:
        alone = needed((StepEvent(EpsilonDelta(0.1, 1e-7), 300),), point.step)
        assert alone <= point.required_epsilon <= alone * 1.001


def test_event_without_a_cost_needs_nothing() -> None:
    points = plan_trajectory((StepEvent(Gaussian(1e6), 1),), DELTA, 5, SETTING).points
    assert [(point.epsilon, point.required_epsilon) for point in points] == [
        (0.0, needed((StepEvent(Gaussian(1e6), 1),), 1))
    ]


@pytest.mark.soak
def test_steps_of_tiny_samples_take_no_more_work_than_is_allowed() -> None:
    """A lattice for their epsilon would have millions of places."""
    plan = (sampled(4.37e-6, Gaussian(0.322), 30),)
    with bounded():
        found = plan_trajectory(plan, 4.36e-5, 30, SETTING)
    assert found.warnings
    assert found.points[-1].required_epsilon < inf
