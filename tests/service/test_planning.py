"""Searches of the planner: what they promise is what the ledger does."""

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import (
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    Laplace,
    PoissonSampled,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.rdp import event_curve
from app.accounting.work import bounded
from app.ledger.step_events import StepEvent
from app.ledger.tuning import DECLARED_SHARE
from app.service.planning.calibration import largest_sampling, most_steps, smallest_noise
from app.service.planning.costs import plan_delta, plan_epsilon
from app.service.planning.declared_plans import DeclaredPlan
from tests.service.plan_checks import FAILING, QUERIES, SETTING, STEP, Plan, admits, goal, held, next_digit, reading
from tests.soak import few, thinned

OTHERS = st.lists(
    st.builds(
        StepEvent,
        st.sampled_from([Gaussian(30.0), PoissonSampled(0.02, Gaussian(2.0)), EpsilonDelta(0.05, 1e-9)]),
        st.integers(1, 20),
    ),
    max_size=2,
).map(tuple)


SAMPLED = st.builds(
    PoissonSampled, st.floats(-4, -0.5).map(lambda exponent: 10**exponent), st.builds(Gaussian, st.floats(0.5, 20))
)


@pytest.mark.soak
@few(2)
@given(event=SAMPLED, others=OTHERS, epsilon=st.floats(0.3, 10))
def test_account_admits_the_most_steps_and_not_one_more(event: DpEvent, others: Plan, epsilon: float) -> None:
    asked = goal(epsilon, others)
    found = most_steps(event, asked)
    assert found.steps_without_plan <= found.steps
    for declared, steps in ((True, found.steps), (False, found.steps_without_plan)):
        if 0 < steps < 10**9:
            assert admits((*others, StepEvent(event, steps)), asked, declared=declared)
        if steps < 10**9 - 1:
            assert not admits((*others, StepEvent(event, steps + 1)), asked, declared=declared)


@pytest.mark.soak
@few(2)
@given(event=SAMPLED, others=OTHERS, epsilon=st.floats(0.3, 10), count=st.integers(1, 20_000))
def test_account_admits_a_plan_with_the_least_noise(event: DpEvent, others: Plan, epsilon: float, count: int) -> None:
    asked = goal(epsilon, others)
    for found in (smallest_noise(event, count, asked), largest_sampling(event, count, asked)):
        if found.event is None:
            assert (found.value, found.value_without_plan) == (None, None)
            assert found.warnings
        else:
            assert admits((*others, StepEvent(found.event, count)), asked, declared=True)


@pytest.mark.parametrize(
    ("event", "count", "delta", "others"),
    thinned(
        [
            (PoissonSampled(0.2, Gaussian(0.7)), 40, 1e-6, QUERIES),
            (STEP, 10_000, 1e-5, ()),
            (STEP, 500, 1e-5, FAILING),
            (Gaussian(1.0), 1, 1e-9, QUERIES),
            (PoissonSampled(0.1, Laplace(1.0)), 300, 1e-5, ()),
        ],
        3,
    ),
)
def test_least_noise_and_most_sampling_fit_and_their_neighbours_do_not(
    event: DpEvent, count: int, delta: float, others: Plan
) -> None:
    asked = goal(2.0, others, delta)
    noise = smallest_noise(event, count, asked)
    assert noise.value is not None
    assert noise.value_without_plan is not None
    assert noise.value < noise.value_without_plan
    for value, fits in ((noise.value, True), (next_digit(noise.value, -1), False)):
        assert held((*others, StepEvent(with_noise_multiplier(event, value), count)), asked) is fits
    for value, fits in ((noise.value_without_plan, True), (next_digit(noise.value_without_plan, -1), False)):
        plan = (*others, StepEvent(with_noise_multiplier(event, value), count))
        assert admits(plan, asked, declared=False) is fits
    if isinstance(event, PoissonSampled):
        sampling = largest_sampling(event, count, asked)
        assert sampling.value is not None
        assert sampling.value_without_plan is not None
        assert sampling.value > sampling.value_without_plan
        for value, fits in ((sampling.value, True), (next_digit(sampling.value, 1), False)):
            assert held((*others, StepEvent(with_sampling_probability(event, value), count)), asked) is fits


def test_most_steps_fit_and_one_more_does_not() -> None:
    asked = goal(2.0)
    found = most_steps(STEP, asked)
    assert found.steps == pytest.approx(1716, rel=2e-3)
    assert found.steps_without_plan == 1397
    for more, fits in ((0, True), (1, False)):
        assert admits((StepEvent(STEP, found.steps + more),), asked, declared=True) is fits
        assert admits((StepEvent(STEP, found.steps_without_plan + more),), asked, declared=False) is fits
    noise = smallest_noise(STEP, 10_000, asked)
    assert noise.value == pytest.approx(2.1316, rel=1e-3)
    assert noise.value_without_plan == 2.28222


@pytest.mark.parametrize(
    ("q", "count", "epsilon", "delta"),
    thinned([(0.2, 100, 4.0, 1e-5), (0.01, 2_000, 2.0, 1e-6), (256 / 60_000, 14_040, 3.0, 1e-5)], 3),
)
def test_noise_of_a_declared_plan_is_that_of_dp_accounting(q: float, count: int, epsilon: float, delta: float) -> None:
    theirs = dp_accounting.calibrate_dp_mechanism(
        lambda: dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3),
        lambda z: dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), count
        ),
        epsilon,
        DECLARED_SHARE * delta,
        dp_accounting.LowerEndpointAndGuess(0.3, 2.0),
        tol=1e-5,
    )
    ours = smallest_noise(PoissonSampled(q, Gaussian(1.0)), count, goal(epsilon, delta=delta))
    assert ours.value == pytest.approx(theirs, rel=1e-3)
    assert ours.value_without_plan is not None
    assert ours.value_without_plan > 1.02 * theirs


@pytest.mark.parametrize("steps_per_epoch", thinned([7, 1, 1750, 100, 1700, 10**9], 2))
def test_epochs_are_whole_and_within_the_target(steps_per_epoch: int) -> None:
    found = most_steps(STEP, goal(2.0), steps_per_epoch)
    assert found.epochs == found.steps // steps_per_epoch
    assert found.epsilon_after_epochs is not None
    assert found.epsilon is not None
    assert found.epsilon_after_epochs <= found.epsilon
    if found.epochs:
        whole = plan_epsilon((StepEvent(STEP, found.epochs * steps_per_epoch),), 1e-5, SETTING)
        assert found.epsilon_after_epochs == whole.epsilon
        assert whole.required is not None
        assert whole.required <= 2.0 < whole.epsilon


def test_no_step_at_all_is_an_answer() -> None:
    found = most_steps(Gaussian(1.0), goal(0.1), steps_per_epoch=10)
    assert (found.steps, found.steps_without_plan, found.epochs) == (0, 0, 0)
    assert (found.epsilon, found.epsilon_after_epochs) == (0.0, 0.0)
    assert "Not even one step" in found.warnings[0]


def test_planned_events_over_the_limit_leave_nothing() -> None:
    others = (StepEvent(Gaussian(1.0), 1),)
    steps = most_steps(STEP, goal(0.1, others), steps_per_epoch=10)
    assert (steps.steps, steps.steps_without_plan, steps.epochs, steps.epsilon) == (0, 0, 0, None)
    noise = smallest_noise(STEP, 10, goal(0.1, others))
    sampling = largest_sampling(STEP, 10, goal(0.1, others))
    for found in (steps, noise, sampling):
        assert any("events alone exceed" in warning for warning in found.warnings)
    assert (noise.value, noise.event, noise.epsilon) == (None, None, None)
    assert sampling.value is None


def test_events_that_fit_only_as_planned_leave_something_to_a_declared_plan() -> None:
    others = (StepEvent(STEP, 1600),)
    found = smallest_noise(STEP, 100, goal(2.0, others))
    assert found.value is not None
    assert found.value_without_plan is None
    steps = most_steps(STEP, goal(2.0, others))
    assert (steps.steps, steps.steps_without_plan) == (most_steps(STEP, goal(2.0)).steps - 1600, 0)
    none = most_steps(Gaussian(1.0), goal(2.0, others))
    assert (none.steps, none.epsilon is None) == (0, False)
    assert "Not even one step" in none.warnings[0]


def test_noise_over_the_largest_is_an_answer() -> None:
    found = smallest_noise(Gaussian(1.0), 10**9, goal(1e-5))
    assert (found.value, found.value_without_plan) == (None, None)
    assert "Not even a noise multiplier of 1e+06" in found.warnings[0]


@pytest.mark.parametrize("others", [(), (StepEvent(DiscreteGaussian(40.0), 1),)])
def test_event_without_a_plan_gets_the_answer_of_the_orders_with_a_warning(others: Plan) -> None:
    event: DpEvent = STEP if others else DiscreteGaussian(1.0)
    found = smallest_noise(event, 100, goal(2.0, others))
    assert found.value == found.value_without_plan
    assert found.event is not None
    plan = (*others, StepEvent(found.event, 100))
    assert admits(plan, goal(2.0), declared=False)
    cost = plan_epsilon(plan, 1e-5, SETTING)
    steps = most_steps(found.event, goal(2.0, others))
    assert steps.steps == steps.steps_without_plan == 100
    assert cost.required == reading(cost, "renyi_filter") <= 2.0
    for each in (found, cost, steps, plan_delta(plan, 2.0, SETTING)):
        (warning,) = each.warnings
        assert "A plan cannot hold discrete_gaussian under add_or_remove_one" in warning
        assert "an account without a plan" in warning


def test_search_over_the_bound_of_work_is_answered_by_the_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, bounded():
        patch.setattr("app.accounting.work.MAX_PLAN_WORK", 10_000)
        found = smallest_noise(STEP, 10_000, goal(2.0))
    assert found.value == found.value_without_plan
    (warning,) = found.warnings
    assert "more work than a request may take" in warning
    with bounded(1000), pytest.raises(PlanTooExpensiveError):
        smallest_noise(STEP, 10, goal(2.0))


def test_many_schedules_take_no_more_work_than_is_allowed() -> None:
    """Their steps are taken apart and compared one by one; what they cost makes no difference to that."""
    step = PoissonSampled(0.01, Gaussian(500.0))
    same = (StepEvent(Decay("time", 1e-4, 100, step), 1),) * 900
    different = tuple(StepEvent(Decay("time", 1e-4 + place * 1e-6, 100, step), 1) for place in range(100))
    for plan in (same, different):
        curves = dict.fromkeys((each.event for each in plan), event_curve(step, SETTING.relation))
        with bounded(), pytest.raises(PlanTooExpensiveError):
            DeclaredPlan.of(plan, SETTING.relation, curves)
