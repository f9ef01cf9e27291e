"""Searches of the planner, and what a plan costs by each accountant: what they promise is what the ledger does."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from app.accounting import events
from app.accounting.calibration.monotone_search import decimal, index_at_or_below
from app.accounting.calibration.solvers import DIGITS
from app.accounting.curves import GRID_VERSION
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import DiscreteGaussian, DpEvent, EpsilonDelta, Gaussian, Laplace, NoOp, PoissonSampled
from app.accounting.pricing_effort import bounded
from app.ledger.accounts.account import Account, AccountKind, with_usage, zero_curve
from app.ledger.admission.admission import Admission, admit
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, planned_weights
from app.ledger.governance.registered_steps import tuned_weights
from app.ledger.step_events import StepEvent
from app.planning.assumptions import Batches, ByPlan, PlanAssumptions
from app.planning.calibration import CalibrationGoal, largest_sampling, most_steps, smallest_noise
from app.planning.costs import LaplaceNoise, PlanCost, plan_delta, plan_epsilon, plan_laplace

Plan = tuple[StepEvent, ...]

SETTING = PlanAssumptions()
STEP = PoissonSampled(0.01, Gaussian(1.1))
TRAINING = (StepEvent(STEP, 5000),)
QUERIES = (StepEvent(Gaussian(30.0), 7), StepEvent(PoissonSampled(0.02, Gaussian(2.0)), 20))
LOUD = DiscreteGaussian(1e-3)
FAILING = (StepEvent(EpsilonDelta(0.05, 1e-9), 20),)


def goal(epsilon: float, others: Plan = (), delta: float = 1e-5) -> CalibrationGoal:
    return CalibrationGoal(epsilon, delta, others, SETTING)


def admits(plan: Plan, asked: CalibrationGoal, *, declared: bool) -> bool:
    """Whether an account lets all of a plan through, step event by step event."""
    limit, relation = Limit(asked.epsilon, asked.delta), asked.setting.relation
    weights = planned_weights(limit, plan, relation, GRID_VERSION, DECLARED_SHARE) if declared else None
    place: Any = {"parent_id": None, "population_id": "pop_plan", "name": "plan", "path": "plan", "depth": 1}
    terms: Any = {"relation": relation, "limit": limit, "planned": plan if declared else (), "weights": weights}
    terms |= {"spent": zero_curve(), "held": zero_curve()}
    account = Account(id="bud_plan", kind=AccountKind.BUDGET, **place, **terms)
    if not declared:  # its runs have registered these events
        account = replace(account, weights=tuned_weights(account, [[account.price(step) for step in plan]]))
    if account.plan is not None:
        account = replace(account, spent=zero_curve().using({account.id: (0,) * len(account.plan.capacity)}))
    for step in plan:
        outcome = admit([account], with_usage([account], [account.price(step)]))
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


def reading(cost: PlanCost, name: str) -> float:
    (found,) = [each.value for each in cost.comparisons if each.name == name]
    return found


@pytest.mark.parametrize(
    ("event", "count", "delta", "others"), [(STEP, 500, 1e-5, FAILING), (Gaussian(1.0), 1, 1e-9, QUERIES)]
)
def test_least_noise_and_most_sampling_fit_and_their_neighbours_do_not(
    event: DpEvent, count: int, delta: float, others: Plan
) -> None:
    asked = goal(2.0, others, delta)
    noise: Any = smallest_noise(event, count, asked)
    assert noise.value.with_plan < noise.value.without_plan
    for value, fits in ((noise.value.with_plan, True), (next_digit(noise.value.with_plan, -1), False)):
        assert held((*others, StepEvent(events.with_noise_multiplier(event, value), count)), asked) is fits
    for value, fits in ((noise.value.without_plan, True), (next_digit(noise.value.without_plan, -1), False)):
        plan = (*others, StepEvent(events.with_noise_multiplier(event, value), count))
        assert admits(plan, asked, declared=False) is fits
    if isinstance(event, PoissonSampled):
        sampling: Any = largest_sampling(event, count, asked)
        assert sampling.value.with_plan > sampling.value.without_plan
        for value, fits in ((sampling.value.with_plan, True), (next_digit(sampling.value.with_plan, 1), False)):
            assert held((*others, StepEvent(events.with_sampling_probability(event, value), count)), asked) is fits


def test_most_steps_fit_and_one_more_does_not() -> None:
    asked = goal(2.0)
    found: Any = most_steps(STEP, asked, 7)
    assert found.steps.with_plan == pytest.approx(1716, rel=2e-3)
    assert found.steps.without_plan == 1397
    for more, fits in ((0, True), (1, False)):
        assert admits((StepEvent(STEP, found.steps.with_plan + more),), asked, declared=True) is fits
        assert admits((StepEvent(STEP, found.steps.without_plan + more),), asked, declared=False) is fits
    assert found.epochs == found.steps.with_plan // 7
    whole: Any = plan_epsilon((StepEvent(STEP, found.epochs * 7),), 1e-5, SETTING)
    assert found.epsilon_after_epochs == whole.epsilon == reading(whole, "pld") < found.epsilon <= 2.0
    assert whole.limit_needed.with_plan <= 2.0 < reading(whole, "rdp")
    assert most_steps(STEP, asked, 10**9).epochs == 0
    failing = EpsilonDelta(0.05, 1e-9)  # the share of delta for the plan depends on the number
    steps = most_steps(failing, asked).steps.with_plan
    for more, fits in ((0, True), (1, False)):
        assert held((StepEvent(failing, steps + more),), asked) is fits


def test_search_without_a_solution_says_so() -> None:
    found = most_steps(Gaussian(1.0), goal(0.1), steps_per_epoch=10)
    assert (found.steps, found.epochs) == (ByPlan(0, 0), 0)
    assert (found.epsilon, found.epsilon_after_epochs) == (0.0, 0.0)
    assert "Not even one step" in found.warnings[0]
    loudest = smallest_noise(Gaussian(1.0), 10**9, goal(1e-5))
    assert loudest.value == ByPlan(None, None)
    assert "Not even a noise multiplier of 1e+06" in loudest.warnings[0]
    others = goal(0.1, (StepEvent(Gaussian(1.0), 1),))
    steps = most_steps(STEP, others, steps_per_epoch=10)
    assert (steps.steps, steps.epochs, steps.epsilon) == (ByPlan(0, 0), 0, None)
    noise, sampling = smallest_noise(STEP, 10, others), largest_sampling(STEP, 10, others)
    for each in (steps, noise, sampling):
        assert any("events alone exceed" in warning for warning in each.warnings)
    assert (noise.event, noise.epsilon, noise.value, sampling.value) == (None, None, *[ByPlan(None, None)] * 2)


@pytest.mark.parametrize("others", [(), (StepEvent(DiscreteGaussian(40.0), 1),)])
def test_event_without_a_plan_gets_the_answer_of_the_orders_with_a_warning(others: Plan) -> None:
    event: DpEvent = STEP if others else DiscreteGaussian(1.0)
    found: Any = smallest_noise(event, 100, goal(2.0, others))
    assert found.value.with_plan == found.value.without_plan
    plan = (*others, StepEvent(found.event, 100))
    assert admits(plan, goal(2.0), declared=False)
    cost: Any = plan_epsilon(plan, 1e-5, SETTING)
    steps = most_steps(found.event, goal(2.0, others))
    assert steps.steps == ByPlan(100, 100)
    assert cost.limit_needed.with_plan == cost.limit_needed.without_plan <= 2.0
    for each in (found, cost, steps, plan_delta(plan, 2.0, SETTING)):
        (warning,) = each.warnings
        assert "A plan cannot hold discrete_gaussian under add_or_remove_one" in warning
        assert "an account without a plan" in warning


def test_search_over_the_bound_of_work_is_answered_by_the_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, bounded():
        patch.setattr("app.accounting.pricing_effort.MAX_PLAN_WORK", 10_000)
        found = smallest_noise(STEP, 10_000, goal(2.0))
    assert found.value.with_plan == found.value.without_plan
    (warning,) = found.warnings
    assert "more work than a request may take" in warning
    with bounded(1000), pytest.raises(PlanTooExpensiveError):
        smallest_noise(STEP, 10, goal(2.0))


def test_plan_is_compared_with_other_accountants_where_they_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(event: DpEvent, count: int = 3) -> list[str]:
        return [each.name for each in plan_epsilon((StepEvent(event, count),), 1e-5, SETTING).comparisons]

    sampled = ["rdp", "pld", "rdp_classic"]
    textbooks = ["optimal_composition", "advanced_composition", "basic_composition", "textbook"]
    assert names(EpsilonDelta(0.1, 1e-6)) == names(events.Composed((Gaussian(5.0), STEP))) == sampled
    assert names(STEP) == [*sampled, *textbooks]
    assert names(Gaussian(5.0)) == [*sampled, "zcdp", "analytic_gaussian", *textbooks]
    assert names(EpsilonDelta(0.1)) == names(DiscreteGaussian(5.0, 3)) == [*sampled, "zcdp"]
    assert names(DiscreteGaussian(5.0)) == ["rdp", "rdp_classic", "zcdp"]  # no pair is proven for it
    schedule = events.Decay("time", 0.001, 20, PoissonSampled(0.01, Gaussian(2.0)))
    assert names(schedule, 1) == sampled
    with bounded():
        monkeypatch.setattr("app.accounting.pricing_effort.MAX_PLAN_WORK", 100_000)
        assert names(replace(schedule, steps=900), 1) == ["rdp", "rdp_classic"]


@pytest.mark.parametrize(
    ("plan", "delta"),
    [((*QUERIES, StepEvent(STEP, 900)), 1e-5), ((StepEvent(STEP, 300), StepEvent(EpsilonDelta(0.3, 1e-13), 7)), 1e-9)],
)
def test_smallest_limits_admit_the_plan_and_the_next_smaller_ones_do_not(plan: Plan, delta: float) -> None:
    cost = plan_epsilon(plan, delta, SETTING)
    assert cost.limit_needed is not None
    planned, by_orders = cost.limit_needed.with_plan, cost.limit_needed.without_plan
    assert cost.epsilon < planned < by_orders
    assert held(plan, goal(planned, delta=delta))
    assert not held(plan, goal(next_digit(planned, -1), delta=delta))
    assert admits(plan, goal(by_orders, delta=delta), declared=False)
    assert not admits(plan, goal(next_digit(by_orders, -1), delta=delta), declared=False)
    assert cost.epsilon == reading(cost, "pld") < reading(cost, "rdp") < by_orders < 1.2 * reading(cost, "rdp")
    by_delta = plan_delta(plan, planned, SETTING)
    assert by_delta.limit_needed is not None
    assert by_delta.delta < by_delta.limit_needed.with_plan < by_delta.limit_needed.without_plan
    assert held(plan, goal(planned, delta=by_delta.limit_needed.with_plan))
    assert not held(plan, goal(planned, delta=next_digit(by_delta.limit_needed.with_plan, -1)))
    assert admits(plan, goal(planned, delta=by_delta.limit_needed.without_plan), declared=False)


def test_no_limit_is_smaller_than_the_proven_delta_of_a_plan_fixed_in_advance() -> None:
    cost = plan_delta((StepEvent(PoissonSampled(0.2, Laplace(0.5)), 3),), 2.46964, SETTING)
    assert cost.limit_needed is not None
    assert 1.8e-8 < cost.delta == reading(cost, "pld") < cost.limit_needed.with_plan


def test_own_deltas_are_composed_where_fixed_in_advance() -> None:
    cost = plan_delta((StepEvent(EpsilonDelta(1, 0.1), 1), StepEvent(EpsilonDelta(2, 0.2), 1)), 3.0, SETTING)
    assert cost.delta == pytest.approx(0.28, rel=1e-8)
    cost = plan_epsilon((StepEvent(EpsilonDelta(0.1, 1e-7), 100),), 1e-5, SETTING)
    assert cost.epsilon == pytest.approx(6.378, rel=1e-4)


def test_no_limit_is_large_enough_for_an_event_without_protection() -> None:
    cost = plan_delta(TRAINING, 0.0, SETTING)  # nor has a limit an epsilon of zero
    assert cost.limit_needed is None
    for event in (Gaussian(1e-3), Gaussian(1e-2), EpsilonDelta(0.1, 1e-4)):
        cost = plan_epsilon((StepEvent(event, 9),), 1e-5, SETTING)
        assert cost.limit_needed == ByPlan(inf, inf)
        if event == Gaussian(1e-3):
            assert any("lose everything at every order" in warning for warning in cost.warnings)
    assert plan_delta((StepEvent(Gaussian(1e-3), 9),), 1.0, SETTING).limit_needed == ByPlan(1.0, 1.0)
    loud, failing = (StepEvent(LOUD, 10**9),), (StepEvent(EpsilonDelta(0.01, 1e-6), 20),)
    assert plan_epsilon(loud, 1e-5, SETTING).epsilon == inf
    assert plan_delta(loud, 5.0, SETTING).delta == 1.0
    assert plan_epsilon(failing, 1e-5, SETTING).epsilon == inf
    assert plan_epsilon(failing, 1e-3, SETTING).warnings == ()
    assert plan_delta(failing, 1.0, SETTING).delta == pytest.approx(1 - (1 - 1e-6) ** 20, rel=1e-9)
    assert plan_epsilon((StepEvent(Gaussian(1e6), 1),), 1e-5, SETTING).epsilon == 0


NESTED = events.Composed((Gaussian(9.0), events.SelfComposed(STEP, 3)))
DECAYING = events.Decay(mode="time", decay_rate=6e-4, steps=10, event=STEP)
REPLACE = events.NeighboringRelation.REPLACE_ONE
DRAWN = events.SampledWithoutReplacement(100, 10, Gaussian(9.0))
CUT = events.TruncatedPoissonSampled(1000, 0.01, 30, Gaussian(9.0))
FIXED, SHUFFLED = PlanAssumptions(batches=Batches.FIXED), PlanAssumptions(batches=Batches.SHUFFLED)


@pytest.mark.parametrize(
    ("event", "count", "setting", "words"),
    [
        (STEP, 5000, PlanAssumptions(population_size=60_000), ""),
        (STEP, 5000, PlanAssumptions(population_size=100_000), "one whole record"),
        *((event, 2, FIXED, "Poisson samples") for event in (STEP, NESTED, DECAYING, CUT)),
        (NESTED, 2, SHUFFLED, "Poisson samples"),
        (DRAWN, 2, PlanAssumptions(REPLACE, batches=Batches.SHUFFLED), "batches drawn anew at every step"),
        *((event, 2, FIXED, "") for event in (Gaussian(9.0), PoissonSampled(1.0, Gaussian(9.0)))),
        (Gaussian(0.1), 1, SETTING, "vacuous"),
        (DiscreteGaussian(5000.0), 1, SETTING, "edge of the grid"),
        (Gaussian(5000.0), 1, SETTING, ""),
        (Gaussian(1e6), 1, SETTING, ""),
        (LOUD, 10**9, SETTING, "exhausted"),
        (EpsilonDelta(0.01, 1e-6), 20, SETTING, "own deltas"),
        *((event, 1, SETTING, "they cost 0") for event in (NoOp(), PoissonSampled(0, STEP), EpsilonDelta(0))),
        (events.Composed((events.SelfComposed(NoOp(), 3), Gaussian(9.0))), 1, SETTING, "they cost 0"),
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
        (plan_delta(TRAINING, 3.5, large), "one whole record"),
        (plan_delta((StepEvent(DiscreteGaussian(5000.0), 1),), 1.0, SETTING), "edge"),
        (plan_delta((StepEvent(Gaussian(1e-3), 10**9),), 5.0, SETTING), "Nothing is proven"),
    ):
        assert any(words in warning for warning in found.warnings), found
    assert plan_delta(TRAINING, 4.0, small).warnings == ()
