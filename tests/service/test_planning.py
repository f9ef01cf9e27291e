"""Planning: what it promises is what the ledger does, and a careful reader is told what there is to know."""

from dataclasses import replace
from math import inf, sqrt

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.calibration.monotone_search import decimal, index_at_or_below
from app.accounting.calibration.solvers import DIGITS
from app.accounting.curves import GRID_VERSION
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import (
    Composed,
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TruncatedPoissonSampled,
    type_name,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.formulas.analytic_gaussian import gaussian_delta
from app.accounting.rdp import event_curve
from app.accounting.work import bounded
from app.ledger.accounts import Account, AccountKind, with_usage, zero_curve
from app.ledger.admission import Admission, admit
from app.ledger.filters import Limit
from app.ledger.step_events import StepEvent
from app.ledger.tuning import DECLARED_SHARE, planned_weights
from app.service.planning.assumptions import Batches, PlanAssumptions
from app.service.planning.calibration import CalibrationGoal, largest_sampling, most_steps, smallest_noise
from app.service.planning.costs import LaplaceNoise, PlanCost, plan_delta, plan_epsilon, plan_laplace
from app.service.planning.declared_plans import DeclaredPlan
from app.service.planning.trajectories import plan_trajectory
from tests.soak import few, thinned

SETTING = PlanAssumptions()
STEP = PoissonSampled(0.01, Gaussian(1.1))
TRAINING = (StepEvent(STEP, 5000),)
QUERIES = (StepEvent(Gaussian(30.0), 7), StepEvent(PoissonSampled(0.02, Gaussian(2.0)), 20))
FAILING = (StepEvent(EpsilonDelta(0.05, 1e-9), 20),)
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

Plan = tuple[StepEvent, ...]


def goal(epsilon: float, others: Plan = (), delta: float = 1e-5) -> CalibrationGoal:
    return CalibrationGoal(epsilon, delta, others, SETTING)


def admits(plan: Plan, asked: CalibrationGoal, *, declared: bool) -> bool:
    """Whether an account lets all of a plan through, step event by step event."""
    limit, relation = Limit(asked.epsilon, asked.delta), asked.setting.relation
    weights = planned_weights(limit, plan, relation, GRID_VERSION, DECLARED_SHARE) if declared else None
    account = Account(
        id="bud_plan",
        kind=AccountKind.BUDGET,
        parent_id=None,
        population_id="pop_plan",
        name="plan",
        path="plan",
        depth=1,
        relation=relation,
        limit=limit,
        planned=plan if declared else (),
        weights=weights,
        spent=zero_curve(),
        held=zero_curve(),
    )
    if account.plan is not None:
        account = replace(account, spent=zero_curve().using({account.id: (0,) * len(account.plan.capacity)}))
    for step in plan:
        priced = with_usage([account], [account.price(step)])
        outcome = admit([account], priced)
        if not isinstance(outcome, Admission):
            return False
        (account,) = outcome.accounts
    return True


def held(plan: Plan, asked: CalibrationGoal) -> bool:
    """Whether the plan that an account with this limit freezes holds all of a plan, and the reserve its own deltas."""
    limit = Limit(asked.epsilon, asked.delta)
    weights = planned_weights(limit, plan, asked.setting.relation, GRID_VERSION, DECLARED_SHARE)
    assert weights.plan is not None
    whole = weights.plan.steps == sum(step.count for step in plan)
    return whole and asked.setting.curve(plan).delta <= weights.set_aside()


def next_digit(value: float, digits: int) -> float:
    """The neighbour of a number of six digits, so many digits of its last place away."""
    return decimal(index_at_or_below(value, DIGITS) + digits, DIGITS)


@few(2)
@given(event=SAMPLED, others=OTHERS, epsilon=st.floats(0.3, 10))
def test_an_account_admits_the_most_steps_and_not_one_more(event: DpEvent, others: Plan, epsilon: float) -> None:
    asked = goal(epsilon, others)
    found = most_steps(event, asked)
    assert found.steps_without_plan <= found.steps
    for declared, steps in ((True, found.steps), (False, found.steps_without_plan)):
        if 0 < steps < 10**9:
            assert admits((*others, StepEvent(event, steps)), asked, declared=declared)
        if steps < 10**9 - 1:
            assert not admits((*others, StepEvent(event, steps + 1)), asked, declared=declared)


@few(2)
@given(event=SAMPLED, others=OTHERS, epsilon=st.floats(0.3, 10), count=st.integers(1, 20_000))
def test_an_account_admits_a_plan_with_the_least_noise(
    event: DpEvent, others: Plan, epsilon: float, count: int
) -> None:
    asked = goal(epsilon, others)
    for found in (smallest_noise(event, count, asked), largest_sampling(event, count, asked)):
        if found.event is None:
            assert (found.value, found.value_without_plan) == (None, None)
            assert found.warnings
        else:
            assert admits((*others, StepEvent(found.event, count)), asked, declared=True)


@pytest.mark.parametrize(
    ("event", "count", "delta", "others"),
    [
        (STEP, 10_000, 1e-5, ()),
        (PoissonSampled(0.2, Gaussian(0.7)), 40, 1e-6, QUERIES),
        (PoissonSampled(0.1, Laplace(1.0)), 300, 1e-5, ()),
        (STEP, 500, 1e-5, FAILING),
        (Gaussian(1.0), 1, 1e-9, QUERIES),
    ],
)
def test_answers_fit_a_declared_plan_and_their_neighbours_do_not(
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


@pytest.mark.parametrize(
    ("q", "count", "epsilon", "delta"),
    thinned([(0.2, 100, 4.0, 1e-5), (0.01, 2_000, 2.0, 1e-6), (256 / 60_000, 14_040, 3.0, 1e-5)], 3),
)
def test_the_noise_of_a_declared_plan_is_that_of_dp_accounting(
    q: float, count: int, epsilon: float, delta: float
) -> None:
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


def test_the_steps_of_gaussians_are_those_of_their_closed_form() -> None:
    event = Gaussian(40.0)
    found = most_steps(event, goal(3.0))
    most = max(n for n in range(700, 1000) if gaussian_delta(sqrt(n) / 40.0, 3.0) <= DECLARED_SHARE * 1e-5)
    assert found.steps == most > 1.1 * found.steps_without_plan


def test_less_noise_and_more_steps_fit_a_declared_plan() -> None:
    noise, steps = smallest_noise(STEP, 10_000, goal(2.0)), most_steps(STEP, goal(2.0))
    assert noise.value == pytest.approx(2.1316, rel=1e-3)
    assert steps.steps == pytest.approx(1716, rel=2e-3)
    assert (noise.value_without_plan, steps.steps_without_plan) == (2.28222, 1397)


@pytest.mark.parametrize("steps_per_epoch", [1, 7, 100, 1700, 1750, 10**9])
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


def test_more_steps_than_one_event_may_count_are_told() -> None:
    hardly_anything = PoissonSampled(1e-9, Gaussian(100.0))
    found = most_steps(hardly_anything, goal(8.0))
    assert found.steps == found.steps_without_plan > 10**9
    assert found.epsilon is not None
    assert found.epsilon <= 8.0


def test_not_even_one_step_is_an_answer() -> None:
    found = most_steps(Gaussian(1.0), goal(0.1), steps_per_epoch=10)
    assert (found.steps, found.steps_without_plan, found.epochs) == (0, 0, 0)
    assert (found.epsilon, found.epsilon_after_epochs) == (0.0, 0.0)
    assert "Not even one step" in found.warnings[0]


def test_a_plan_that_is_too_much_already_leaves_nothing() -> None:
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


def test_noise_that_cannot_be_had_is_an_answer() -> None:
    found = smallest_noise(Gaussian(1.0), 10**9, goal(1e-5))
    assert (found.value, found.value_without_plan) == (None, None)
    assert "Not even a noise multiplier of 1e+06" in found.warnings[0]


@pytest.mark.parametrize("others", [(), (StepEvent(DiscreteGaussian(40.0), 1),)])
def test_what_cannot_be_planned_gets_the_answer_of_the_orders_with_a_warning(others: Plan) -> None:
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


@pytest.mark.parametrize("event", [DiscreteGaussian(1.0, 3), PoissonSampled(0.01, DiscreteGaussian(1.0, 50))])
def test_noise_on_integers_is_searched_for_a_plan(event: DpEvent) -> None:
    found = smallest_noise(event, 100, goal(2.0))
    assert found.value is not None
    assert found.value_without_plan is not None
    assert (found.value < found.value_without_plan, found.warnings) == (True, ())
    assert admits((StepEvent(with_noise_multiplier(event, found.value), 100),), goal(2.0), declared=True)


def test_a_search_that_takes_too_much_work_answers_by_the_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, bounded():
        patch.setattr("app.accounting.work.MAX_PLAN_WORK", 10_000)
        found = smallest_noise(STEP, 10_000, goal(2.0))
    assert found.value == found.value_without_plan
    (warning,) = found.warnings
    assert "more work than a request may take" in warning
    with bounded():
        more = smallest_noise(STEP, 10_000, goal(2.0))
    assert more.value is not None
    assert found.value is not None
    assert more.value < found.value
    assert not more.warnings
    with bounded(1000), pytest.raises(PlanTooExpensiveError):
        smallest_noise(STEP, 10, goal(2.0))


def test_steps_of_tiny_samples_take_no_more_work_than_is_allowed() -> None:
    """A lattice for their epsilon has a million places: its work is counted when its size is known."""
    with bounded():
        cost = plan_epsilon((StepEvent(PoissonSampled(4.37e-6, Gaussian(0.322)), 30),), 4.36e-5, SETTING)
    assert cost.required == reading(cost, "renyi_filter")
    (warning,) = cost.warnings
    assert "more work than a request may take" in warning


def test_many_schedules_take_no_more_work_than_is_allowed() -> None:
    """Their steps are taken apart and compared one by one; what they cost makes no difference to that."""
    step = PoissonSampled(0.01, Gaussian(500.0))
    same = (StepEvent(Decay("time", 1e-4, 100, step), 1),) * 900
    different = tuple(StepEvent(Decay("time", 1e-4 + place * 1e-6, 100, step), 1) for place in range(100))
    for plan in (same, different):
        curves = dict.fromkeys((each.event for each in plan), event_curve(step, SETTING.relation))
        with bounded(), pytest.raises(PlanTooExpensiveError):
            DeclaredPlan.of(plan, SETTING.relation, curves)


def reading(cost: PlanCost, name: str) -> float:
    (found,) = [each.value for each in cost.accountants if each.name == name]
    return found


def test_the_other_accountants_are_shown_where_they_apply() -> None:
    def names(event: DpEvent) -> list[str]:
        return [reading.name for reading in plan_epsilon((StepEvent(event, 3),), 1e-5, SETTING).accountants]

    sampled = ["plan_filter", "renyi_filter", "rdp", "pld", "rdp_classic"]
    textbooks = ["optimal_composition", "advanced_composition", "basic_composition", "textbook"]
    assert names(EpsilonDelta(0.1, 1e-6)) == names(Composed((Gaussian(5.0), STEP))) == sampled
    assert names(STEP) == [*sampled, *textbooks]
    assert names(Gaussian(5.0)) == [*sampled, "zcdp", "analytic_gaussian", *textbooks]
    assert names(EpsilonDelta(0.1)) == [*sampled, "zcdp"]
    assert names(DiscreteGaussian(5.0, 3)) == [*sampled, "zcdp"]
    assert names(DiscreteGaussian(5.0)) == ["renyi_filter", "rdp", "rdp_classic", "zcdp"]  # no pair is proven for it


def test_privacy_loss_distributions_leave_out_own_deltas() -> None:
    def reading(delta: float) -> float:
        plan = (StepEvent(EpsilonDelta(0.1, 1e-6), 3), StepEvent(Gaussian(5.0), 4))
        return {each.name: each.value for each in plan_epsilon(plan, delta, SETTING).accountants}["pld"]

    plan = (StepEvent(EpsilonDelta(0.1), 3), StepEvent(Gaussian(5.0), 4))
    without = {each.name: each.value for each in plan_epsilon(plan, 7e-6, SETTING).accountants}["pld"]
    assert reading(1e-5) == pytest.approx(without, rel=1e-6)
    assert reading(3e-6) == inf
    guarantees = (StepEvent(EpsilonDelta(0.1, 1e-6), 3),)
    by_delta = {each.name: each.value for each in plan_delta(guarantees, 0.31, SETTING).accountants}
    assert by_delta["pld"] == pytest.approx(3e-6, rel=1e-9)


def test_privacy_loss_distributions_are_not_read_where_they_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Decay("time", 0.001, 900, PoissonSampled(0.01, Gaussian(2.0)))
    with monkeypatch.context() as patch, bounded():
        patch.setattr("app.accounting.work.MAX_PLAN_WORK", 100_000)
        readings = plan_epsilon((StepEvent(schedule, 1),), 1e-5, SETTING).accountants
    assert [each.name for each in readings] == ["renyi_filter", "rdp", "rdp_classic"]
    names = [each.name for each in plan_epsilon((StepEvent(schedule, 1),), 1e-5, SETTING).accountants]
    assert names == ["plan_filter", "renyi_filter", "rdp", "pld", "rdp_classic"]


@pytest.mark.parametrize(
    ("plan", "delta"),
    [
        ((StepEvent(STEP, 7),), 1e-9),
        ((StepEvent(Gaussian(20.0), 7),), 1e-5),
        ((StepEvent(PoissonSampled(0.2, Gaussian(0.7)), 7),), 1e-3),
        ((StepEvent(EpsilonDelta(0.3, 1e-13), 7),), 1e-9),
        ((*QUERIES, StepEvent(STEP, 900)), 1e-5),
    ],
)
def test_the_smallest_limits_admit_the_plan_and_the_next_smaller_ones_do_not(plan: Plan, delta: float) -> None:
    cost = plan_epsilon(plan, delta, SETTING)
    planned, by_orders = reading(cost, "plan_filter"), reading(cost, "renyi_filter")
    assert cost.required == planned < by_orders
    assert held(plan, goal(planned, delta=delta))
    assert not held(plan, goal(next_digit(planned, -1), delta=delta))
    assert admits(plan, goal(by_orders, delta=delta), declared=False)
    assert not admits(plan, goal(next_digit(by_orders, -1), delta=delta), declared=False)
    assert reading(cost, "pld") < planned
    assert reading(cost, "rdp") < by_orders < 1.2 * reading(cost, "rdp")


@pytest.mark.parametrize(
    ("plan", "epsilon"), [(TRAINING, 4.0), (QUERIES, 0.5), ((*FAILING, StepEvent(STEP, 100)), 2.0)]
)
def test_the_smallest_deltas_of_limits_admit_the_plan_and_the_next_smaller_ones_do_not(
    plan: Plan, epsilon: float
) -> None:
    cost = plan_delta(plan, epsilon, SETTING)
    planned, by_orders = reading(cost, "plan_filter"), reading(cost, "renyi_filter")
    assert cost.required == min(planned, by_orders)
    assert held(plan, goal(epsilon, delta=planned))
    assert not held(plan, goal(epsilon, delta=next_digit(planned, -1)))
    assert admits(plan, goal(epsilon, delta=by_orders), declared=False)
    assert not admits(plan, goal(epsilon, delta=next_digit(by_orders, -1)), declared=False)
    assert reading(cost, "pld") < planned


def test_no_limit_has_an_epsilon_of_zero() -> None:
    cost = plan_delta(TRAINING, 0.0, SETTING)
    assert cost.required is None
    assert [each.name for each in cost.accountants] == ["rdp", "pld", "rdp_classic"]


def test_no_limit_is_large_enough_for_what_protects_nobody() -> None:
    for event in (Gaussian(1e-3), Gaussian(1e-2), EpsilonDelta(0.1, 1e-4)):
        cost = plan_epsilon((StepEvent(event, 9),), 1e-5, SETTING)
        assert reading(cost, "renyi_filter") == cost.required == inf
        if event == Gaussian(1e-3):
            assert any("lose everything at every order" in warning for warning in cost.warnings)
        else:
            assert reading(cost, "plan_filter") == inf
    assert plan_delta((StepEvent(Gaussian(1e-3), 9),), 1.0, SETTING).required == 1


@pytest.mark.parametrize("count", [1, 40])
def test_the_other_accountants_bracket_the_ledgers(count: int) -> None:
    plan = (StepEvent(Gaussian(20.0), count), StepEvent(Gaussian(10.0), 2))
    by_epsilon = {reading.name: reading.value for reading in plan_epsilon(plan, 1e-5, SETTING).accountants}
    by_delta = {reading.name: reading.value for reading in plan_delta(plan, 1.0, SETTING).accountants}
    for found in (by_epsilon, by_delta):
        assert 0 < found["analytic_gaussian"] < found["rdp"] < found["zcdp"]
        assert found["zcdp"] == pytest.approx(found["rdp_classic"], rel=1e-3)


def test_a_trajectory_ends_where_the_plan_ends() -> None:
    plan = (StepEvent(STEP, 700), StepEvent(Gaussian(8.0), 3), StepEvent(STEP, 1))
    found = plan_trajectory(plan, 1e-5, 50, SETTING)
    assert found.steps == found.points[-1].step == 704
    assert found.points[-1].epsilon == plan_epsilon(plan, 1e-5, SETTING).epsilon
    assert len(found.points) == 50
    assert found.warnings == ()


def warnings_of(plan: tuple[StepEvent, ...], delta: float = 1e-5, setting: PlanAssumptions = SETTING) -> str:
    return "\n".join(plan_epsilon(plan, delta, setting).warnings)


def test_a_usual_plan_has_no_warnings() -> None:
    assert warnings_of(TRAINING, setting=PlanAssumptions(population_size=60_000)) == ""


def test_a_delta_that_publishes_a_record_is_warned_of() -> None:
    assert "one whole record" in warnings_of(TRAINING, setting=PlanAssumptions(population_size=100_000))
    assert "one whole record" in warnings_of(TRAINING, setting=PlanAssumptions(population_size=10**12))
    found = plan_delta(TRAINING, 4.0, PlanAssumptions(population_size=10**6))
    assert any("one whole record" in warning for warning in found.warnings)
    assert plan_delta(TRAINING, 4.0, PlanAssumptions(population_size=10**5)).warnings == ()


@pytest.mark.parametrize("batches", [Batches.FIXED, Batches.SHUFFLED])
def test_other_batches_than_poisson_samples_are_warned_of(batches: Batches) -> None:
    setting = PlanAssumptions(batches=batches)
    nested = Composed((Gaussian(9.0), SelfComposed(STEP, 3)))
    decaying = Decay(mode="time", decay_rate=6e-4, steps=10, event=STEP)
    cut = TruncatedPoissonSampled(1000, 0.01, 30, Gaussian(9.0))
    sampled: tuple[DpEvent, ...] = (STEP, nested, decaying, cut)
    unsampled: tuple[DpEvent, ...] = (Gaussian(9.0), PoissonSampled(1.0, Gaussian(9.0)))
    for event in sampled:
        assert "Poisson samples" in warnings_of((StepEvent(event, 2),), setting=setting)
    for event in unsampled:
        assert warnings_of((StepEvent(event, 2),), setting=setting) == ""
    sampled_too = CalibrationGoal(2.0, 1e-5, TRAINING, setting)
    for found in (smallest_noise(Gaussian(9.0), 1, sampled_too), most_steps(Gaussian(9.0), sampled_too)):
        assert any("Poisson samples" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "event", [SampledWithoutReplacement(100, 10, Gaussian(9.0)), SampledWithReplacement(100, 10, Gaussian(20.0))]
)
def test_batches_in_turn_are_no_batches_that_are_drawn_anew(event: DpEvent) -> None:
    replaced = NeighboringRelation.REPLACE_ONE
    for batches, warned in ((Batches.POISSON, False), (Batches.FIXED, False), (Batches.SHUFFLED, True)):
        found = warnings_of((StepEvent(event, 2),), setting=PlanAssumptions(replaced, batches=batches))
        assert ("batches drawn anew" in found) is warned
        assert (f"but {type_name(event)} events" in found) is warned


def test_an_epsilon_that_protects_nobody_is_warned_of() -> None:
    assert "vacuous" in warnings_of((StepEvent(Gaussian(0.1), 1),))
    assert any("vacuous" in warning for warning in plan_delta(TRAINING, 21.0, SETTING).warnings)
    wanted = smallest_noise(STEP, 100, goal(30.0))
    assert any("vacuous" in warning for warning in wanted.warnings)
    assert any("vacuous" in warning for warning in plan_laplace(LaplaceNoise(0.9, 2.0, 0.05), 1, None).warnings)


def test_an_order_at_the_edge_of_the_grid_is_warned_of() -> None:
    assert "edge of the grid" in warnings_of((StepEvent(Gaussian(5000.0), 1),))
    assert any("edge" in warning for warning in plan_delta((StepEvent(Gaussian(5000.0), 1),), 1.0, SETTING).warnings)


def test_what_costs_nothing_has_no_edge() -> None:
    assert plan_epsilon((StepEvent(Gaussian(1e6), 1),), 1e-5, SETTING).epsilon == 0
    assert warnings_of((StepEvent(Gaussian(1e6), 1),)) == ""


def test_a_plan_without_any_bound_is_infinite_and_warned_of() -> None:
    loud = (StepEvent(Gaussian(1e-3), 10**9),)
    cost = plan_epsilon(loud, 1e-5, SETTING)
    assert (cost.epsilon, cost.optimal_order) == (inf, None)
    assert "exhausted" in warnings_of(loud)
    by_delta = plan_delta(loud, 5.0, SETTING)
    assert (by_delta.delta, by_delta.optimal_order) == (1.0, None)
    assert any("Nothing is proven" in warning for warning in by_delta.warnings)


def test_a_plan_whose_own_deltas_take_all_of_delta_is_infinite_and_says_why() -> None:
    failing = (StepEvent(EpsilonDelta(0.01, 1e-6), 20),)
    assert plan_epsilon(failing, 1e-5, SETTING).epsilon == inf
    assert "own deltas" in warnings_of(failing)
    assert warnings_of(failing, delta=1e-3) == ""
    assert plan_delta(failing, 1.0, SETTING).delta > 2e-5


def test_laplace_noise_is_described_either_way() -> None:
    by_bound = plan_laplace(LaplaceNoise(0.9, 2.0, bound=1e-5), 1, 1e-5)
    by_scale = plan_laplace(LaplaceNoise(0.9, 2.0, scale=by_bound.scale), 1, 1e-5)
    assert by_scale.bound == pytest.approx(1e-5, rel=1e-14)
    assert by_bound.epsilon == by_bound.epsilon_basic == pytest.approx(460_517.0186, rel=1e-9)
    assert by_bound.epsilon_rdp == pytest.approx(460_517, rel=1e-6)


def test_many_releases_are_cheaper_by_renyi_than_by_their_sum() -> None:
    cost = plan_laplace(LaplaceNoise(0.9, 1.0, scale=20.0), 1000, 1e-5)
    assert cost.epsilon_basic == pytest.approx(50.0)
    assert cost.epsilon_rdp is not None
    assert cost.epsilon_rdp < 10
    assert not cost.warnings
    event = plan_epsilon((StepEvent(EpsilonDelta(0.05), 1000),), 1e-5, SETTING)
    assert cost.epsilon_rdp <= event.epsilon


@pytest.mark.parametrize(("scale", "sensitivity"), [(1e-12, 1e12), (1e12, 1e-12), (1e-12, 1e-12), (1e12, 1e12)])
def test_the_extremes_of_laplace_noise_have_an_answer(scale: float, sensitivity: float) -> None:
    cost = plan_laplace(LaplaceNoise(1 - 1e-16, sensitivity, scale=scale), 10**9, 1e-30)
    assert cost.epsilon == pytest.approx(sensitivity / scale)
    assert cost.epsilon_rdp is not None
    assert cost.epsilon_rdp >= 0


def test_relations_are_respected() -> None:
    replaced = PlanAssumptions(NeighboringRelation.REPLACE_ONE)
    twice = smallest_noise(Gaussian(1.0), 1, CalibrationGoal(1.0, 1e-5, (), replaced))
    once = smallest_noise(Gaussian(1.0), 1, goal(1.0))
    assert once.value is not None
    assert twice.value == pytest.approx(2 * once.value, rel=1e-5)
    assert twice.event is not None
    assert event_curve(twice.event, NeighboringRelation.REPLACE_ONE).nats()[0] > 0
