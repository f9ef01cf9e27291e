"""What a plan costs by each accountant, and of what a careful reader is warned."""

from math import inf

import pytest

from app.accounting.events import (
    Composed,
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TruncatedPoissonSampled,
    type_name,
)
from app.accounting.work import bounded
from app.ledger.step_events import StepEvent
from app.service.planning.assumptions import Batches, PlanAssumptions
from app.service.planning.calibration import CalibrationGoal, most_steps, smallest_noise
from app.service.planning.costs import LaplaceNoise, plan_delta, plan_epsilon, plan_laplace
from tests.service.plan_checks import (
    FAILING,
    QUERIES,
    SETTING,
    STEP,
    TRAINING,
    Plan,
    admits,
    goal,
    held,
    next_digit,
    reading,
)
from tests.soak import thinned


def test_other_accountants_are_shown_where_they_apply() -> None:
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


@pytest.mark.parametrize(
    "event", [SampledWithoutReplacement(100, 10, Gaussian(9.0)), SampledWithReplacement(100, 10, Gaussian(20.0))]
)
def test_batches_in_turn_are_no_batches_drawn_anew(event: DpEvent) -> None:
    """Of which no plan can hold any, either."""

    def warned(batches: Batches) -> tuple[str, ...]:
        setting = PlanAssumptions(NeighboringRelation.REPLACE_ONE, batches=batches)
        return plan_epsilon((StepEvent(event, 2),), 1e-5, setting).warnings

    [unplanned] = warned(Batches.POISSON)
    assert unplanned.endswith("an account without a plan.")
    assert warned(Batches.FIXED) == (unplanned,)
    [in_turn] = set(warned(Batches.SHUFFLED)) - {unplanned}
    assert "batches drawn anew" in in_turn
    assert f"but {type_name(event)} events" in in_turn


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
        assert any(words in warning for warning in found.warnings), found
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
