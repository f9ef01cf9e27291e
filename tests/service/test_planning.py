"""Planning: what it promises is what the ledger does, and a careful reader is told what there is to know."""

from dataclasses import replace
from math import inf

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
    assert (found.steps, found.steps_without_plan) == (pytest.approx(1716, rel=2e-3), 1397)
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


def test_privacy_loss_distributions_are_not_read_over_the_bound_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(steps: int) -> list[str]:
        schedule = Decay("time", 0.001, steps, PoissonSampled(0.01, Gaussian(2.0)))
        return [each.name for each in plan_epsilon((StepEvent(schedule, 1),), 1e-5, SETTING).accountants]

    with monkeypatch.context() as patch, bounded():
        patch.setattr("app.accounting.work.MAX_PLAN_WORK", 100_000)
        assert names(900) == ["renyi_filter", "rdp", "rdp_classic"]
    assert names(20) == ["plan_filter", "renyi_filter", "rdp", "pld", "rdp_classic"]


@pytest.mark.parametrize(
    ("plan", "delta"),
    thinned(
        [
            ((StepEvent(PoissonSampled(0.2, Gaussian(0.7)), 7),), 1e-3),
            ((StepEvent(STEP, 7),), 1e-9),
            ((StepEvent(EpsilonDelta(0.3, 1e-13), 7),), 1e-9),
            ((StepEvent(Gaussian(20.0), 7),), 1e-5),
            ((*QUERIES, StepEvent(STEP, 900)), 1e-5),
        ],
        2,
    ),
)
def test_smallest_limits_admit_the_plan_and_the_next_smaller_ones_do_not(plan: Plan, delta: float) -> None:
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
    ("plan", "epsilon"), thinned([(QUERIES, 0.5), (TRAINING, 4.0), ((*FAILING, StepEvent(STEP, 100)), 2.0)], 3)
)
def test_smallest_deltas_of_limits_admit_the_plan_and_the_next_smaller_ones_do_not(plan: Plan, epsilon: float) -> None:
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


def test_no_limit_is_large_enough_for_an_event_without_protection() -> None:
    for event in (Gaussian(1e-3), Gaussian(1e-2), EpsilonDelta(0.1, 1e-4)):
        cost = plan_epsilon((StepEvent(event, 9),), 1e-5, SETTING)
        assert reading(cost, "renyi_filter") == cost.required == inf
        if event == Gaussian(1e-3):
            assert any("lose everything at every order" in warning for warning in cost.warnings)
        else:
            assert reading(cost, "plan_filter") == inf
    assert plan_delta((StepEvent(Gaussian(1e-3), 9),), 1.0, SETTING).required == 1


NESTED = Composed((Gaussian(9.0), SelfComposed(STEP, 3)))
DECAYING = Decay(mode="time", decay_rate=6e-4, steps=10, event=STEP)
CUT = TruncatedPoissonSampled(1000, 0.01, 30, Gaussian(9.0))
FIXED, SHUFFLED = PlanAssumptions(batches=Batches.FIXED), PlanAssumptions(batches=Batches.SHUFFLED)
IN_TURN = PlanAssumptions(NeighboringRelation.REPLACE_ONE, batches=Batches.SHUFFLED)
DRAWN = (SampledWithoutReplacement(100, 10, Gaussian(9.0)), SampledWithReplacement(100, 10, Gaussian(20.0)))


@pytest.mark.parametrize(
    ("event", "count", "setting", "words"),
    [
        (STEP, 5000, PlanAssumptions(population_size=60_000), ""),
        (STEP, 5000, PlanAssumptions(population_size=100_000), "one whole record"),
        (STEP, 5000, PlanAssumptions(population_size=10**12), "one whole record"),
        *(
            (event, 2, batches, "Poisson samples")
            for event in (STEP, NESTED, DECAYING, CUT)
            for batches in (FIXED, SHUFFLED)
        ),
        *((event, 2, FIXED, "") for event in (Gaussian(9.0), PoissonSampled(1.0, Gaussian(9.0)))),
        *((event, 2, IN_TURN, "batches drawn anew") for event in DRAWN),
        *((event, 2, IN_TURN, f"but {type_name(event)} events") for event in DRAWN),
        *(
            (event, 2, replace(IN_TURN, batches=batches), "")
            for event in DRAWN
            for batches in (Batches.POISSON, Batches.FIXED)
        ),
        (Gaussian(0.1), 1, SETTING, "vacuous"),
        (Gaussian(5000.0), 1, SETTING, "edge of the grid"),
        (Gaussian(1e6), 1, SETTING, ""),
        (Gaussian(1e-3), 10**9, SETTING, "exhausted"),
        (EpsilonDelta(0.01, 1e-6), 20, SETTING, "own deltas"),
    ],
)
def test_careful_reader_is_warned(event: DpEvent, count: int, setting: PlanAssumptions, words: str) -> None:
    found = plan_epsilon((StepEvent(event, count),), 1e-5, setting)
    assert words in "\n".join(found.warnings) if words else found.warnings == ()


def test_every_answer_has_the_warnings_of_its_plan() -> None:
    sampled = CalibrationGoal(2.0, 1e-5, TRAINING, FIXED)
    large, small = PlanAssumptions(population_size=10**6), PlanAssumptions(population_size=10**5)
    for found, words in (
        (smallest_noise(Gaussian(9.0), 1, sampled), "Poisson samples"),
        (most_steps(Gaussian(9.0), sampled), "Poisson samples"),
        (smallest_noise(STEP, 100, goal(30.0)), "vacuous"),
        (plan_laplace(LaplaceNoise(0.9, 2.0, 0.05), 1, None), "vacuous"),
        (plan_delta(TRAINING, 21.0, SETTING), "vacuous"),
        (plan_delta(TRAINING, 4.0, large), "one whole record"),
        (plan_delta((StepEvent(Gaussian(5000.0), 1),), 1.0, SETTING), "edge"),
        (plan_delta((StepEvent(Gaussian(1e-3), 10**9),), 5.0, SETTING), "Nothing is proven"),
    ):
        assert any(words in warning for warning in found.warnings), found  # type: ignore[attr-defined]
    assert plan_delta(TRAINING, 4.0, small).warnings == ()


def test_plan_without_a_bound_is_infinite() -> None:
    loud, failing = (StepEvent(Gaussian(1e-3), 10**9),), (StepEvent(EpsilonDelta(0.01, 1e-6), 20),)
    cost, by_delta = plan_epsilon(loud, 1e-5, SETTING), plan_delta(loud, 5.0, SETTING)
    assert (cost.epsilon, cost.optimal_order, by_delta.delta, by_delta.optimal_order) == (inf, None, 1.0, None)
    assert plan_epsilon(failing, 1e-5, SETTING).epsilon == inf
    assert plan_epsilon(failing, 1e-3, SETTING).warnings == ()
    assert plan_delta(failing, 1.0, SETTING).delta > 2e-5
    assert plan_epsilon((StepEvent(Gaussian(1e6), 1),), 1e-5, SETTING).epsilon == 0


def test_laplace_noise_is_described_either_way() -> None:
    by_bound = plan_laplace(LaplaceNoise(0.9, 2.0, bound=1e-5), 1, 1e-5)
    by_scale = plan_laplace(LaplaceNoise(0.9, 2.0, scale=by_bound.scale), 1, 1e-5)
    assert by_scale.bound == pytest.approx(1e-5, rel=1e-14)
    assert by_bound.epsilon == by_bound.epsilon_basic == pytest.approx(460_517.0186, rel=1e-9)
    assert by_bound.epsilon_rdp == pytest.approx(460_517, rel=1e-6)
