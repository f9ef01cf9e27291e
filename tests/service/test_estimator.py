"""A sketch answers as the questions of the API do, one by one."""

from math import inf

import pytest

from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled, SampledWithoutReplacement
from app.ledger.step_events import StepEvent
from app.service.planning.assumptions import PlanAssumptions
from app.service.planning.calibration import CalibrationGoal, most_steps, smallest_noise
from app.service.planning.costs import plan_epsilon
from app.service.planning.estimator import POINTS, PlanDraft, estimate
from app.service.planning.trajectories import plan_trajectory

ADD, ONE, SPECIAL = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)
SKETCH = PlanDraft(noise=1.1, probability=0.01, steps=5000, epsilon=3.0, delta=1e-5)
FIXED = PlanDraft(4.0, 0.01, 5000, 3.0, 1e-5, ONE, batch=600, size=60_000)


@pytest.mark.parametrize(
    ("sketch", "event"),
    [
        (SKETCH, PoissonSampled(0.01, Gaussian(1.1))),
        (FIXED, SampledWithoutReplacement(60_000, 600, Gaussian(4.0))),
        (PlanDraft(40.0, 1.0, 10, 3.0, 1e-5, ONE), Gaussian(40.0)),
        (PlanDraft(2.0, 0.01, 10, 3.0, 1e-5, SPECIAL, batch=600, size=60_000), PoissonSampled(0.01, Gaussian(2.0))),
    ],
)
def test_estimate_is_the_answer_of_the_planner(sketch: PlanDraft, event: Gaussian) -> None:
    found = estimate(sketch)
    setting = PlanAssumptions(sketch.relation, sketch.size)
    plan = (StepEvent(event, sketch.steps),)
    cost = plan_epsilon(plan, sketch.delta, setting)
    goal = CalibrationGoal(sketch.epsilon, sketch.delta, (), setting)
    assert found.event == event
    assert found.cost == cost
    assert found.required_epsilon == cost.required
    assert found.required_without_plan == next(each.value for each in cost.accountants if each.name == "renyi_filter")
    assert found.required_epsilon is not None
    assert found.fits == (found.required_epsilon <= sketch.epsilon)
    assert found.noise == smallest_noise(event, sketch.steps, goal)
    assert found.most == most_steps(event, goal)
    (own,) = (curve for curve in found.curves if curve.noise == sketch.noise)
    first, last = plan_trajectory(plan, sketch.delta, 2, setting).points
    assert (own.points[0], own.points[-1]) == (first, last)
    assert min(POINTS, sketch.steps) - 1 <= len(own.points) <= POINTS
    for point in own.points[::24]:
        needed = plan_epsilon((StepEvent(event, point.step),), sketch.delta, setting).required
        assert needed is not None
        assert needed <= point.required_epsilon <= needed * 1.001


def test_estimate_fits_up_to_the_most_steps() -> None:
    most = estimate(SKETCH).most
    assert most is not None
    for steps, fits in ((most.steps, True), (most.steps + 1, False)):
        assert estimate(PlanDraft(1.1, 0.01, steps, 3.0, 1e-5)).fits is fits


def test_poisson_samples_have_no_bound_under_replace_one() -> None:
    found = estimate(PlanDraft(1.1, 0.01, 5000, 3.0, 1e-5, ONE))
    assert (found.event, found.cost, found.fits, found.curves) == (None, None, False, ())
    assert (found.required_epsilon, found.required_without_plan) == (None, None)
    assert found.costs[ADD] == estimate(SKETCH).cost
    assert estimate(SKETCH).costs[ONE] is None
    assert estimate(FIXED).costs[ONE] is not None


def test_ends_of_the_bounds_are_answered() -> None:
    loud = estimate(PlanDraft(1e-3, 1.0, 10**9, 1e-9, 1e-30))
    assert (loud.required_epsilon, loud.fits, loud.most and loud.most.steps) == (inf, False, 0)
    quiet = estimate(PlanDraft(1e6, 1e-12, 1, 10_000.0, 0.49))
    assert quiet.fits
    assert {curve.noise for curve in quiet.curves} == {750_000.0, 1e6}
