"""Trajectories and sketches: at each point the smallest limit that admits the steps so far, and never less."""

from functools import cache
from math import inf
from typing import Any

import pytest

from app.accounting import events
from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.pricing_effort import bounded
from app.ledger.step_events import StepEvent, first_steps
from app.planning.assumptions import PlanAssumptions
from app.planning.calibration import CalibrationGoal, most_steps, smallest_noise
from app.planning.costs import plan_epsilon
from app.planning.estimator import POINTS, PlanDraft, estimate
from app.planning.trajectories import KNOTS, plan_trajectory

DELTA = 1e-5
ADD, ONE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
SETTING, FIXED = PlanAssumptions(), PlanAssumptions(ONE)

Plan = tuple[StepEvent, ...]


def sampled(q: float, inner: DpEvent, count: int) -> StepEvent:
    return StepEvent(PoissonSampled(q, inner), count)


SCHEDULE = events.Decay(mode="exp", decay_rate=0.06, steps=20, event=PoissonSampled(0.05, Gaussian(2.0)))
PLANS: dict[str, Plan] = {
    "a training": (sampled(0.01, Gaussian(1.1), 5000),),
    "own deltas": (StepEvent(EpsilonDelta(0.1, 1e-8), 100), sampled(0.01, Gaussian(1.1), 500)),
    "a schedule, then Laplace noise": (StepEvent(SCHEDULE, 1), StepEvent(events.Laplace(20.0), 30)),
}
QUERIES = (StepEvent(Gaussian(30.0), 400),)
FIXED_BATCH = events.SampledWithoutReplacement(60_000, 600, Gaussian(4.0))


@cache
def needed(plan: Plan, count: int) -> float:
    """What the endpoint of epsilon answers for the first steps."""
    found: Any = plan_epsilon(first_steps(plan, count), DELTA, SETTING).limit_needed
    return float(found.with_plan)


@pytest.mark.parametrize("name", PLANS)
def test_point_needs_what_its_steps_need(name: str) -> None:
    plan = PLANS[name]
    points = plan_trajectory(plan, DELTA, 12, SETTING).points
    assert len(points) == 12
    for point in points[::6]:
        assert needed(plan, point.step) <= point.limit_needed_with_plan <= needed(plan, point.step) * 1.001
    assert needed(plan, points[-1].step) <= points[-1].limit_needed_with_plan <= needed(plan, points[-1].step) * 1.0001


@pytest.mark.parametrize("max_points", [1, 2, 33, 500])
def test_trajectory_has_as_many_points_as_asked_and_each_has_a_limit(max_points: int) -> None:
    points = plan_trajectory(QUERIES, DELTA, max_points, SETTING).points
    assert len(points) == min(max_points, 400)
    values = [point.limit_needed_with_plan for point in points]
    assert len(set(values)) == min(max_points, KNOTS)
    assert values[-1] == pytest.approx(needed(QUERIES, 400), rel=1e-5)


@pytest.mark.parametrize(
    ("step", "setting", "reason"),
    [
        (sampled(0.01, events.DiscreteGaussian(4.0), 3000), SETTING, "cannot hold discrete_gaussian"),
        (StepEvent(FIXED_BATCH, 2000), FIXED, "cannot hold a batch of fixed"),
    ],
)
def test_event_without_a_plan_needs_what_the_orders_say(step: StepEvent, setting: PlanAssumptions, reason: str) -> None:
    found = plan_trajectory((step,), DELTA, 10, setting)
    (warning,) = [each for each in found.warnings if "account without a plan" in each]
    assert reason in warning
    for point in found.points:
        whole: Any = plan_epsilon(first_steps((step,), point.step), DELTA, setting)
        assert point.limit_needed_with_plan == whole.limit_needed.without_plan
        assert point.epsilon == whole.epsilon
        assert point.limit_needed_with_plan > point.epsilon


def test_plan_over_the_bound_of_work_needs_what_the_orders_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.accounting.pricing_effort.MAX_PLAN_WORK", 100_000)
    schedule = events.Decay(mode="time", decay_rate=0.0578, steps=400, event=PoissonSampled(1e-4, Gaussian(4.0)))
    plan = (StepEvent(schedule, 1), sampled(0.01, Gaussian(1.5), 300))
    with bounded():
        found = plan_trajectory(plan, DELTA, 20, SETTING)
    (warning,) = [each for each in found.warnings if "account without a plan" in each]
    assert "more work" in warning
    with bounded():
        limit: Any = plan_epsilon(plan, DELTA, SETTING).limit_needed
    assert found.points[-1].limit_needed_with_plan == limit.without_plan
    values = [point.limit_needed_with_plan for point in found.points]
    assert values == sorted(values)
    assert len(set(values)) > 10


def test_few_knots_are_warned_of_and_the_last_is_that_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS["a training"]
    monkeypatch.setattr("app.accounting.pricing_effort.MAX_PLAN_WORK", 22_000)
    with bounded():
        found = plan_trajectory(plan, DELTA, 100, SETTING)
    (warning,) = found.warnings
    assert "few of the points" in warning
    values = [point.limit_needed_with_plan for point in found.points]
    assert values == sorted(values)
    assert needed(plan, 5000) <= values[-1] <= needed(plan, 5000) * 1.0001
    assert values[0] < values[-1] / 2
    for point in found.points[::40]:
        assert point.limit_needed_with_plan >= needed(plan, point.step)


def test_own_deltas_that_leave_nothing_need_an_infinite_limit() -> None:
    plan = (StepEvent(EpsilonDelta(0.1, 1e-7), 300),)
    points = plan_trajectory(plan, DELTA, 30, SETTING).points
    assert [point.limit_needed_with_plan < inf for point in points] == [point.step < 100 for point in points]
    for point in points[:8:3]:
        assert needed(plan, point.step) <= point.limit_needed_with_plan <= needed(plan, point.step) * 1.001
    quiet = (StepEvent(Gaussian(1e6), 1),)
    points = plan_trajectory(quiet, DELTA, 5, SETTING).points
    assert [(point.epsilon, point.limit_needed_with_plan) for point in points] == [(0.0, needed(quiet, 1))]


SKETCH = PlanDraft(noise=1.1, probability=0.01, steps=5000, epsilon=3.0, delta=1e-5)
BATCHES = PlanDraft(4.0, 0.01, 5000, 3.0, 1e-5, ONE, batch=600, size=60_000)
SPECIAL = PlanDraft(2.0, 0.01, 10, 3.0, 1e-5, NeighboringRelation.REPLACE_SPECIAL, batch=600, size=60_000)


@pytest.mark.parametrize(
    ("sketch", "event"),
    [
        pytest.param(SKETCH, PoissonSampled(0.01, Gaussian(1.1)), marks=pytest.mark.soak),
        (BATCHES, FIXED_BATCH),
        (PlanDraft(40.0, 1.0, 10, 3.0, 1e-5, ONE), Gaussian(40.0)),
        (SPECIAL, PoissonSampled(0.01, Gaussian(2.0))),
    ],
)
def test_estimate_is_the_answer_of_the_planner(sketch: PlanDraft, event: Gaussian) -> None:
    found: Any = estimate(sketch)
    setting, plan = PlanAssumptions(sketch.relation, sketch.size), (StepEvent(event, sketch.steps),)
    cost = plan_epsilon(plan, sketch.delta, setting)
    goal = CalibrationGoal(sketch.epsilon, sketch.delta, (), setting)
    assert (found.event, found.cost, found.limit_needed) == (event, cost, cost.limit_needed)
    assert found.fits == (found.limit_needed.with_plan <= sketch.epsilon)
    assert found.noise == smallest_noise(event, sketch.steps, goal)
    assert found.most == most_steps(event, goal)
    epsilons, limits = dict(found.epsilons.points), dict(found.limits.points)
    for point in plan_trajectory(plan, sketch.delta, 2, setting).points:
        assert (epsilons[point.step], limits[point.step]) == (point.epsilon, point.limit_needed_with_plan)
    assert min(POINTS, sketch.steps) - 1 <= len(epsilons) == len(limits) <= POINTS
    for step in list(epsilons)[::6]:
        least: Any = plan_epsilon((StepEvent(event, step),), sketch.delta, setting)
        assert least.limit_needed.with_plan <= limits[step] <= least.limit_needed.with_plan * 1.001
        assert epsilons[step] == least.epsilon
    assert [curve.noise for curve in found.others] == [0.75 * sketch.noise, 1.5 * sketch.noise, 2 * sketch.noise]
    for curve in found.others:
        step, epsilon = curve.points[-1]
        assert step == sketch.steps
        assert epsilon == plan_epsilon((StepEvent(sketch.event(curve.noise), step),), sketch.delta, setting).epsilon


def test_sketch_under_replace_one_or_at_the_ends_of_the_bounds_is_answered() -> None:
    found = estimate(PlanDraft(1.1, 0.01, 5000, 3.0, 1e-5, ONE))
    assert found.costs[ADD] == plan_epsilon(PLANS["a training"], 1e-5, SETTING)
    assert found.cost.epsilon < found.limit_needed.with_plan < found.limit_needed.without_plan
    loud = estimate(PlanDraft(1e-3, 1.0, 10**9, 1e-9, 1e-30))
    assert (loud.limit_needed.with_plan, loud.fits, loud.most.steps.with_plan) == (inf, False, 0)
    quiet = estimate(PlanDraft(1e6, 1e-12, 1, 10_000.0, 0.49))
    assert quiet.fits
    assert [curve.noise for curve in (quiet.epsilons, *quiet.others)] == [1e6, 750_000.0]
