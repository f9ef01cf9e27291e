"""Planning: what it promises is what the ledger does, and a careful reader is told what there is to know."""

from math import floor, inf, log10

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.events import (
    Composed,
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    SelfComposed,
)
from app.accounting.rdp import event_curve
from app.accounting.work import bounded
from app.ledger.accounts import Account, AccountKind, zero_curve
from app.ledger.admission import Admission, admit
from app.ledger.filters import FilterKind, Limit
from app.ledger.step_events import StepEvent
from app.service.planning.assumptions import Batches, PlanAssumptions
from app.service.planning.calibration import CalibrationGoal, largest_sampling, most_steps, smallest_noise
from app.service.planning.costs import LaplaceNoise, plan_delta, plan_epsilon, plan_laplace, plan_trajectory

SETTING = PlanAssumptions()
STEP = PoissonSampled(0.01, Gaussian(1.1))
TRAINING = (StepEvent(STEP, 5000),)
KINDS = st.sampled_from(list(FilterKind))
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


def goal(epsilon: float, kind: FilterKind, others: tuple[StepEvent, ...] = (), delta: float = 1e-5) -> CalibrationGoal:
    return CalibrationGoal(epsilon, delta, kind, others, SETTING)


def admits(plan: tuple[StepEvent, ...], asked: CalibrationGoal) -> bool:
    """Whether an account that was told the plan lets all of it through, step event by step event."""
    account = Account(
        id="bud_plan",
        kind=AccountKind.BUDGET,
        parent_id=None,
        population_id="pop_plan",
        name="plan",
        path="plan",
        depth=1,
        relation=asked.setting.relation,
        limit=Limit(asked.epsilon, asked.delta),
        filter=asked.filter,
        planned=plan,
        weights=None,
        spent=zero_curve(),
        held=zero_curve(),
    )
    for step in plan:
        outcome = admit([account], [account.price(step)], search=lambda path, steps: None)  # noqa: ARG005
        if not isinstance(outcome, Admission):
            return False
        (account,) = outcome.accounts
    return True


@settings(max_examples=30)
@given(event=SAMPLED, kind=KINDS, others=OTHERS, epsilon=st.floats(0.3, 10))
def test_an_account_admits_the_most_steps_and_not_one_more(
    event: DpEvent, kind: FilterKind, others: tuple[StepEvent, ...], epsilon: float
) -> None:
    asked = goal(epsilon, kind, others)
    found = most_steps(event, asked)
    if 0 < found.steps <= 10**9:
        assert admits((*others, StepEvent(event, found.steps)), asked)
    if found.steps < 10**9:
        assert not admits((*others, StepEvent(event, found.steps + 1)), asked)


@settings(max_examples=20)
@given(event=SAMPLED, kind=KINDS, others=OTHERS, epsilon=st.floats(0.3, 10), count=st.integers(1, 20_000))
def test_an_account_admits_a_plan_with_the_least_noise(
    event: DpEvent, kind: FilterKind, others: tuple[StepEvent, ...], epsilon: float, count: int
) -> None:
    asked = goal(epsilon, kind, others)
    for found in (smallest_noise(event, count, asked), largest_sampling(event, count, asked)):
        if found.event is None:
            assert found.value is None
            assert found.warnings
        else:
            assert found.epsilon is not None
            assert found.epsilon <= epsilon
            assert admits((*others, StepEvent(found.event, count)), asked)


def test_an_adaptive_filter_takes_a_little_more_noise_and_a_few_steps_less() -> None:
    noise = {kind: smallest_noise(STEP, 10_000, goal(2.0, kind)).value for kind in FilterKind}
    steps = {kind: most_steps(STEP, goal(2.0, kind)).steps for kind in FilterKind}
    declared, adaptive = noise[FilterKind.DECLARED], noise[FilterKind.ADAPTIVE]
    assert declared is not None
    assert adaptive is not None
    assert declared < adaptive < 1.01 * declared
    assert steps[FilterKind.ADAPTIVE] < steps[FilterKind.DECLARED] < 1.01 * steps[FilterKind.ADAPTIVE]


@pytest.mark.parametrize("steps_per_epoch", [1, 7, 100, 1404, 1405, 10**9])
def test_epochs_are_whole_and_within_the_target(steps_per_epoch: int) -> None:
    found = most_steps(STEP, goal(2.0, FilterKind.DECLARED), steps_per_epoch)
    assert found.steps == 1404
    assert found.epochs == 1404 // steps_per_epoch
    assert found.epsilon_after_epochs is not None
    assert found.epsilon is not None
    assert found.epsilon_after_epochs <= found.epsilon <= 2.0
    if found.epochs:
        whole = plan_epsilon((StepEvent(STEP, found.epochs * steps_per_epoch),), 1e-5, SETTING)
        assert found.epsilon_after_epochs == whole.epsilon


def test_more_steps_than_one_event_may_count_are_told() -> None:
    hardly_anything = PoissonSampled(1e-9, Gaussian(100.0))
    found = most_steps(hardly_anything, goal(8.0, FilterKind.DECLARED))
    assert found.steps > 10**9
    assert found.epsilon is not None
    assert found.epsilon <= 8.0


def test_not_even_one_step_is_an_answer() -> None:
    for kind in FilterKind:
        found = most_steps(Gaussian(1.0), goal(0.1, kind), steps_per_epoch=10)
        assert (found.steps, found.epochs, found.epsilon, found.epsilon_after_epochs) == (0, 0, 0.0, 0.0)
        assert "Not even one step" in found.warnings[0]


def test_a_plan_that_is_too_much_already_leaves_nothing() -> None:
    others = (StepEvent(Gaussian(1.0), 1),)
    for kind in FilterKind:
        steps = most_steps(STEP, goal(0.1, kind, others), steps_per_epoch=10)
        assert (steps.steps, steps.epochs, steps.epsilon) == (0, 0, None)
        noise = smallest_noise(STEP, 10, goal(0.1, kind, others))
        sampling = largest_sampling(STEP, 10, goal(0.1, kind, others))
        for found in (steps, noise, sampling):
            assert any("events alone exceed" in warning for warning in found.warnings)
        assert (noise.value, noise.event, noise.epsilon) == (None, None, None)
        assert sampling.value is None


def test_noise_that_cannot_be_had_is_an_answer() -> None:
    found = smallest_noise(Gaussian(1.0), 10**9, goal(1e-5, FilterKind.ADAPTIVE))
    assert found.value is None
    assert "Not even a noise multiplier of 1e+06" in found.warnings[0]
    assert "adaptive" in found.warnings[0]


def test_the_other_accountants_are_shown_where_they_apply() -> None:
    def names(event: DpEvent) -> list[str]:
        return [reading.name for reading in plan_epsilon((StepEvent(event, 3),), 1e-5, SETTING).accountants]

    sampled = ["rdp", "pld", "adaptive", "rdp_classic"]
    assert names(STEP) == names(EpsilonDelta(0.1, 1e-6)) == names(Composed((Gaussian(5.0), STEP))) == sampled
    assert names(Gaussian(5.0)) == [*sampled, "zcdp", "analytic_gaussian"]
    assert names(EpsilonDelta(0.1)) == [*sampled, "zcdp"]
    assert names(DiscreteGaussian(5.0)) == ["rdp", "adaptive", "rdp_classic", "zcdp"]  # no pair is proven for it


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


def test_privacy_loss_distributions_are_not_read_where_they_take_too_long() -> None:
    schedule = Decay("time", 0.001, 900, PoissonSampled(0.01, Gaussian(2.0)))
    with bounded():
        readings = plan_epsilon((StepEvent(schedule, 1),), 1e-5, SETTING).accountants
    assert [each.name for each in readings] == ["rdp", "adaptive", "rdp_classic"]
    names = [each.name for each in plan_epsilon((StepEvent(schedule, 1),), 1e-5, SETTING).accountants]
    assert names == ["rdp", "pld", "adaptive", "rdp_classic"]


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("event", [STEP, Gaussian(20.0), PoissonSampled(0.2, Gaussian(0.7)), EpsilonDelta(0.3, 1e-11)])
def test_the_smallest_adaptive_limit_admits_the_plan_and_the_next_smaller_one_does_not(
    event: DpEvent, delta: float
) -> None:
    plan = (StepEvent(event, 7),)
    readings = {each.name: each.value for each in plan_epsilon(plan, delta, SETTING).accountants}
    found = readings["adaptive"]
    last_digit = 10.0 ** (floor(log10(found)) - 5)
    assert admits(plan, goal(found, FilterKind.ADAPTIVE, delta=delta))
    assert not admits(plan, goal(found - last_digit, FilterKind.ADAPTIVE, delta=delta))
    assert readings["rdp"] < found < 1.1 * readings["rdp"]


def test_no_adaptive_limit_is_large_enough_for_what_protects_nobody() -> None:
    for event in (Gaussian(1e-3), EpsilonDelta(0.1, 1e-4)):
        readings = {each.name: each.value for each in plan_epsilon((StepEvent(event, 9),), 1e-5, SETTING).accountants}
        assert readings["adaptive"] == inf


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
    sampled: tuple[DpEvent, ...] = (STEP, nested, decaying)
    unsampled: tuple[DpEvent, ...] = (Gaussian(9.0), PoissonSampled(1.0, Gaussian(9.0)))
    for event in sampled:
        assert "Poisson samples" in warnings_of((StepEvent(event, 2),), setting=setting)
    for event in unsampled:
        assert warnings_of((StepEvent(event, 2),), setting=setting) == ""
    sampled_too = CalibrationGoal(2.0, 1e-5, FilterKind.DECLARED, TRAINING, setting)
    for found in (smallest_noise(Gaussian(9.0), 1, sampled_too), most_steps(Gaussian(9.0), sampled_too)):
        assert any("Poisson samples" in warning for warning in found.warnings)


def test_an_epsilon_that_protects_nobody_is_warned_of() -> None:
    assert "vacuous" in warnings_of((StepEvent(Gaussian(0.1), 1),))
    assert any("vacuous" in warning for warning in plan_delta(TRAINING, 21.0, SETTING).warnings)
    wanted = smallest_noise(STEP, 100, goal(30.0, FilterKind.DECLARED))
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
    twice = smallest_noise(Gaussian(1.0), 1, CalibrationGoal(1.0, 1e-5, FilterKind.DECLARED, (), replaced))
    once = smallest_noise(Gaussian(1.0), 1, goal(1.0, FilterKind.DECLARED))
    assert once.value is not None
    assert twice.value == pytest.approx(2 * once.value, rel=1e-5)
    assert twice.event is not None
    assert event_curve(twice.event, NeighboringRelation.REPLACE_ONE).nats()[0] > 0
