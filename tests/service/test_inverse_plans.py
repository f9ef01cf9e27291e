"""What a search answers costs at most what was asked, and a little more of it would cost more."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events
from app.accounting.events import DpEvent, Exponential, Gaussian, Laplace, NeighboringRelation, PoissonSampled
from app.accounting.pld.accountant import pld_epsilon
from app.ledger.governance.filter_weights import DECLARED_SHARE
from app.ledger.step_events import StepEvent
from app.planning.assumptions import ByPlan, PlanAssumptions
from app.planning.calibration import CalibrationGoal, largest_sampling, most_steps, smallest_noise
from app.planning.costs import plan_epsilon
from app.planning.trajectories import plan_trajectory
from tests.soak import few

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
SETTING = PlanAssumptions()

LATTICE = 1e-4
"""By how much two epsilons by loss distributions differ, relatively, since their lattices do."""

KEPT = 1 / DECLARED_SHARE - 1
"""Share of the steps that an account with a plan keeps off, at most, beside one step: its plan has less than delta."""

epsilons = st.floats(0.3, 8.0)
deltas = st.floats(-9.0, -4.0).map(lambda power: 10**power)
sampled = st.builds(lambda q, z: PoissonSampled(10**q, Gaussian(z)), st.floats(-3.0, -0.7), st.floats(0.8, 4.0))
other_events = st.sampled_from([(), (StepEvent(Gaussian(30.0), 5),), (StepEvent(Laplace(40.0), 3),)])


def goal(epsilon: float, delta: float, others: tuple[StepEvent, ...] = ()) -> CalibrationGoal:
    return CalibrationGoal(epsilon, delta, others, SETTING)


def tightest(event: DpEvent, count: int, asked: CalibrationGoal, share: float = 1.0) -> float:
    """The smaller epsilon of orders and loss distributions, fixed in advance, at a share of delta."""
    return plan_epsilon((*asked.other_events, StepEvent(event, count)), share * asked.delta, SETTING).epsilon


@few(5)
@given(sampled, epsilons, deltas, other_events)
def test_most_steps_cost_at_most_what_was_asked_and_one_more_would_cost_more(
    event: PoissonSampled, epsilon: float, delta: float, others: tuple[StepEvent, ...]
) -> None:
    asked = goal(epsilon, delta, others)
    found = most_steps(event, asked, steps_per_epoch=10)
    steps = found.steps.with_plan
    assert 0 <= found.steps.without_plan <= steps
    if found.epsilon is None:
        assert steps == 0
        return
    assert found.epsilon_after_epochs is not None
    assert found.epsilon_after_epochs <= found.epsilon <= epsilon
    if steps:
        assert found.epsilon == min(tightest(event, steps, asked), epsilon)
    assert tightest(event, steps + 1, asked, DECLARED_SHARE) > epsilon * (1 - LATTICE)
    assert tightest(event, int(steps * (1 + KEPT)) + 2, asked) > epsilon * (1 - LATTICE)


@few(5)
@given(sampled, st.integers(1, 3000), epsilons, deltas)
def test_least_noise_and_most_sampling_cost_at_most_what_was_asked(
    event: PoissonSampled, count: int, epsilon: float, delta: float
) -> None:
    asked = goal(epsilon, delta)
    noise, sampling = smallest_noise(event, count, asked), largest_sampling(event, count, asked)
    least, most = noise.value.with_plan, sampling.value.with_plan
    assert least is not None
    assert noise.epsilon is not None
    assert noise.epsilon <= epsilon
    assert least <= (noise.value.without_plan or inf)
    assert tightest(events.with_noise_multiplier(event, 0.98 * least), count, asked) > epsilon
    if most is not None:
        assert sampling.epsilon is not None
        assert sampling.epsilon <= epsilon
        assert most >= (sampling.value.without_plan or 0)
        if most < 0.98:
            assert tightest(events.with_sampling_probability(event, most / 0.98), count, asked) > epsilon


@few(5)
@given(sampled, st.integers(1, 3000), deltas)
def test_trajectory_rises_to_the_epsilon_of_the_plan_and_each_limit_is_above(
    event: PoissonSampled, count: int, delta: float
) -> None:
    plan = (StepEvent(event, count),)
    points = plan_trajectory(plan, delta, 6, SETTING).points
    assert points[-1].epsilon == plan_epsilon(plan, delta, SETTING).epsilon
    assert [point.epsilon for point in points] == sorted(point.epsilon for point in points)
    for point in points:
        assert point.epsilon <= point.limit_needed_with_plan * (1 + LATTICE)
        assert point.epsilon <= pld_epsilon({event: point.step}, ADD, delta)


def test_two_never_answers_with_more_than_two() -> None:
    found = most_steps(PoissonSampled(0.01, Gaussian(1.1)), goal(2.0, 1e-5))
    assert found.epsilon is not None
    assert 1.99 < found.epsilon <= 2.0


@pytest.mark.parametrize(("epsilon", "limit", "steps"), [(0.1, 3.0, 179), (0.02, 3.0, 4469), (0.1, 1.0, 25)])
def test_plan_of_exponential_admits_no_fewer_steps_than_none(epsilon: float, limit: float, steps: int) -> None:
    assert most_steps(Exponential(epsilon), goal(limit, 1e-5)).steps == ByPlan(steps, steps)
