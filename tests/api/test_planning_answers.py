"""Stateless planning over HTTP: each question's answer, with and without what may be left out."""

from typing import Any

import pytest

from app.accounting.events import event_from_dict
from app.api.schemas import planning_responses
from app.ledger.step_events import StepEvent
from app.service.planning.assumptions import PlanAssumptions
from app.service.planning.calibration import CalibrationGoal, largest_sampling, most_steps, smallest_noise
from app.service.planning.costs import plan_delta
from app.service.planning.trajectories import plan_trajectory
from tests.api.conftest import SeededLedger
from tests.api.operations import DOCUMENT
from tests.conftest import SAMPLED

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}
PLAN: list[dict[str, Any]] = [{"event": SAMPLED, "count": 900}, {"event": GAUSSIAN, "count": 2}]
STEPS = tuple(StepEvent(event_from_dict(item["event"]), item["count"]) for item in PLAN)
TARGET = {"event": SAMPLED, "epsilon": 2.0, "delta": 1e-5}
STEP = event_from_dict(SAMPLED)


def ask(shared: SeededLedger, what: str, body: dict[str, Any], role: str = "viewer") -> dict[str, Any]:
    before = shared.rows()
    reply = shared.ledger.post(f"/v1/accounting/{what}", body, role)
    assert reply.status_code == 200, reply.text
    assert shared.rows() == before
    answer: dict[str, Any] = reply.json()
    return answer


GOAL = CalibrationGoal(2.0, 1e-5, (), PlanAssumptions())


TEXTBOOKS = ["optimal_composition", "advanced_composition", "basic_composition", "textbook"]


def test_the_epsilon_of_a_plan_comes_with_other_accountants(shared: SeededLedger) -> None:
    sampled = ask(shared, "epsilon", {"events": [{"event": SAMPLED}], "delta": 1e-5})
    assert [item["name"] for item in sampled["accountants"]] == [
        "plan_filter",
        "renyi_filter",
        "rdp",
        "pld",
        "rdp_classic",
        *TEXTBOOKS,
    ]
    answer = ask(shared, "epsilon", {"events": [{"event": GAUSSIAN, "count": 10}], "delta": 1e-5})
    found = {item["name"]: item for item in answer["accountants"]}
    without_sampling = ["zcdp", "analytic_gaussian"]
    assert list(found) == ["plan_filter", "renyi_filter", "rdp", "pld", "rdp_classic", *without_sampling, *TEXTBOOKS]
    assert found["rdp"]["epsilon"] == answer["epsilon"]
    assert found["plan_filter"]["epsilon"] == answer["required_epsilon"] < found["renyi_filter"]["epsilon"]
    assert found["zcdp"]["epsilon"] == pytest.approx(3.234854, abs=1e-6)
    assert found["analytic_gaussian"]["epsilon"] == pytest.approx(2.594383, abs=1e-6)
    assert found["pld"]["epsilon"] == pytest.approx(found["analytic_gaussian"]["epsilon"], rel=1e-9)
    assert found["zcdp"]["optimal_order"] is None
    assert found["rdp"]["epsilon"] < found["optimal_composition"]["epsilon"] <= found["basic_composition"]["epsilon"]
    assert found["textbook"]["epsilon"] == "Infinity"
    assert all(item["note"] for item in answer["accountants"])
    assert all(item["epsilon"] == "Infinity" or item["epsilon"] > 0 for item in answer["accountants"])


def test_an_accountant_that_proves_nothing_answers_infinity(shared: SeededLedger) -> None:
    loud = {"event": {"type": "gaussian", "noise_multiplier": 1e-3}, "count": 10**9}
    answer = ask(shared, "epsilon", {"events": [loud], "delta": 1e-5})
    found = {item["name"]: item for item in answer["accountants"]}
    assert found["rdp"]["epsilon"] == found["renyi_filter"]["epsilon"] == answer["required_epsilon"] == "Infinity"
    assert found["pld"]["epsilon"] > 1e14
    assert found["zcdp"]["epsilon"] > 1e14


def test_the_delta_of_a_plan(shared: SeededLedger) -> None:
    for epsilon in (0, 0.5, 4.0, 10_000):
        answer = ask(shared, "delta", {"events": PLAN, "epsilon": epsilon})
        expected = plan_delta(STEPS, epsilon, PlanAssumptions())
        assert (answer["delta"], answer["optimal_order"]) == (expected.delta, expected.optimal_order)
        assert (answer["epsilon"], answer["required_delta"]) == (epsilon, expected.required)
    assert ask(shared, "delta", {"events": PLAN, "epsilon": 0})["required_delta"] is None
    back = ask(shared, "epsilon", {"events": PLAN, "delta": 1e-5})
    assert ask(shared, "delta", {"events": PLAN, "epsilon": back["epsilon"]})["delta"] == pytest.approx(1e-5, rel=1e-9)


def test_the_delta_of_a_gaussian_comes_with_the_exact_one(shared: SeededLedger) -> None:
    answer = ask(shared, "delta", {"events": [{"event": GAUSSIAN, "count": 10}], "epsilon": 4.0})
    found = {item["name"]: item["delta"] for item in answer["accountants"]}
    assert 0 < found["analytic_gaussian"] < found["rdp"] == answer["delta"] < found["zcdp"]


def test_a_trajectory_is_the_epsilon_at_each_of_its_steps(shared: SeededLedger) -> None:
    answer = ask(shared, "trajectory", {"events": PLAN, "delta": 1e-5, "max_points": 7})
    expected = plan_trajectory(STEPS, 1e-5, 7, PlanAssumptions())
    assert [(point["step"], point["epsilon"], point["required_epsilon"]) for point in answer["points"]] == [
        (point.step, point.epsilon, point.required_epsilon) for point in expected.points
    ]
    assert answer["steps"] == answer["points"][-1]["step"] == 902
    whole = ask(shared, "epsilon", {"events": PLAN, "delta": 1e-5})
    assert answer["points"][-1]["epsilon"] == whole["epsilon"]
    needed = whole["required_epsilon"]
    assert needed <= answer["points"][-1]["required_epsilon"] <= 1.0001 * needed < whole["epsilon"]
    half = ask(shared, "epsilon", {"events": [{"event": SAMPLED, "count": 451}], "delta": 1e-5})
    middle = answer["points"][3]
    assert middle["step"] == 451
    assert half["required_epsilon"] <= middle["required_epsilon"] <= 1.001 * half["required_epsilon"]
    assert len(ask(shared, "trajectory", {"events": PLAN, "delta": 1e-5})["points"]) == 200


def test_a_trajectory_beyond_every_bound_is_infinite(shared: SeededLedger) -> None:
    loud = {"event": {"type": "gaussian", "noise_multiplier": 1e-3}, "count": 10**9}
    answer = ask(shared, "trajectory", {"events": [{"event": GAUSSIAN}, loud], "delta": 1e-5, "max_points": 2})
    for name in ("epsilon", "required_epsilon"):
        assert [point[name] == "Infinity" for point in answer["points"]] == [False, True]
    assert answer["warnings"]


def test_the_noise_for_a_target(shared: SeededLedger) -> None:
    answer = ask(shared, "noise-multiplier", TARGET | {"count": 10_000})
    expected = smallest_noise(STEP, 10_000, GOAL)
    assert answer["noise_multiplier"] == expected.value == answer["event"]["event"]["noise_multiplier"]
    assert answer["noise_multiplier_without_plan"] == expected.value_without_plan > 1.05 * answer["noise_multiplier"]
    assert (answer["reachable"], answer["warnings"]) == (True, [])
    whole = ask(shared, "epsilon", {"events": [{"event": answer["event"], "count": 10_000}], "delta": 1e-5})
    assert whole["required_epsilon"] <= 2.0 < whole["epsilon"] == answer["epsilon"]


def test_the_noise_beside_what_else_is_planned(shared: SeededLedger) -> None:
    alone = ask(shared, "noise-multiplier", TARGET | {"count": 1000})
    beside = ask(shared, "noise-multiplier", TARGET | {"count": 1000, "other_events": PLAN[1:]})
    assert beside["noise_multiplier"] > alone["noise_multiplier"]
    plan = {"events": [*PLAN[1:], {"event": beside["event"], "count": 1000}], "delta": 1e-5}
    whole = ask(shared, "epsilon", plan)
    assert whole["epsilon"] == beside["epsilon"]
    assert whole["required_epsilon"] <= 2.0


def test_the_steps_for_a_target(shared: SeededLedger) -> None:
    answer = ask(shared, "steps", TARGET | {"steps_per_epoch": 100})
    expected = most_steps(STEP, GOAL, 100)
    assert (answer["steps"], answer["epochs"]) == (expected.steps, expected.epochs)
    assert answer["steps_without_plan"] == expected.steps_without_plan < answer["steps"] / 1.2
    assert answer["epsilon_after_epochs"] <= answer["epsilon"]
    fits, one_more = (
        {"events": [{"event": SAMPLED, "count": answer["steps"] + more}], "delta": 1e-5} for more in (0, 1)
    )
    needed = [ask(shared, "epsilon", plan)["required_epsilon"] for plan in (fits, one_more)]
    assert needed[0] <= 2.0 < needed[1]
    assert ask(shared, "steps", TARGET)["epochs"] is None


def test_the_sampling_for_a_target(shared: SeededLedger) -> None:
    answer = ask(shared, "sampling-probability", TARGET | {"count": 10_000})
    expected = largest_sampling(STEP, 10_000, GOAL)
    assert answer["sampling_probability"] == expected.value == answer["event"]["sampling_probability"]
    assert answer["sampling_probability_without_plan"] == expected.value_without_plan
    assert answer["sampling_probability_without_plan"] < answer["sampling_probability"]


def test_what_cannot_be_planned_is_answered_as_without_a_plan(shared: SeededLedger) -> None:
    target = TARGET | {"event": {"type": "discrete_gaussian", "noise_multiplier": 2.0}, "count": 100}
    answer = ask(shared, "noise-multiplier", target)
    assert answer["noise_multiplier"] == answer["noise_multiplier_without_plan"]
    (warning,) = answer["warnings"]
    assert "A plan cannot hold discrete_gaussian" in warning
    whole = ask(shared, "epsilon", {"events": [{"event": answer["event"], "count": 100}], "delta": 1e-5})
    assert whole["required_epsilon"] <= 2.0
    assert whole["warnings"] == [warning]
    assert "plan_filter" not in {item["name"] for item in whole["accountants"]}


def test_what_cannot_be_reached_is_null_with_a_reason(shared: SeededLedger) -> None:
    loud = [{"event": {"type": "gaussian", "noise_multiplier": 0.5}}]
    for what, name in (("noise-multiplier", "noise_multiplier"), ("sampling-probability", "sampling_probability")):
        answer = ask(shared, what, TARGET | {"count": 10, "other_events": loud})
        assert (answer[name], answer["event"], answer["epsilon"], answer["reachable"]) == (None, None, None, False)
        assert answer[f"{name}_without_plan"] is None
        assert "alone exceed" in answer["warnings"][0]
    steps = ask(shared, "steps", TARGET | {"other_events": loud})
    assert (steps["steps"], steps["steps_without_plan"], steps["epsilon"]) == (0, 0, None)
    none = ask(shared, "steps", {"event": GAUSSIAN, "epsilon": 0.01, "delta": 1e-5, "steps_per_epoch": 5})
    assert (none["steps"], none["epochs"], none["epsilon"]) == (0, 0, 0)
    assert "Not even one step" in none["warnings"][0]


def test_laplace_noise_for_a_softmax_release(shared: SeededLedger) -> None:
    answer = ask(shared, "laplace", {"bound": 1e-5, "probability": 0.9, "l1_sensitivity": 2})
    assert answer["epsilon"] == pytest.approx(460_517.0186, rel=1e-9)
    assert answer["scale"] == pytest.approx(4.342944819e-6, rel=1e-9)
    assert answer["epsilon_rdp"] is None
    assert "vacuous" in answer["warnings"][0]
    back = ask(shared, "laplace", {"scale": answer["scale"], "l1_sensitivity": 2})
    assert back["bound"] == pytest.approx(1e-5, rel=1e-12)


def test_many_laplace_releases_by_sum_and_by_renyi(shared: SeededLedger) -> None:
    answer = ask(shared, "laplace", {"scale": 20, "l1_sensitivity": 1, "releases": 1000, "delta": 1e-5})
    assert answer["epsilon_basic"] == pytest.approx(50.0)
    assert answer["epsilon_rdp"] < 10
    event = {"event": {"type": "laplace", "noise_multiplier": answer["noise_multiplier"]}, "count": 1000}
    assert ask(shared, "epsilon", {"events": [event], "delta": 1e-5})["epsilon"] == answer["epsilon_rdp"]


def test_warnings_are_part_of_every_answer(shared: SeededLedger) -> None:
    odd = {"population_size": 1000, "batches": "shuffled"}
    plan = {"events": PLAN, "delta": 0.01} | odd
    for what, body in (
        ("epsilon", plan),
        ("trajectory", plan),
        ("noise-multiplier", TARGET | odd | {"count": 100, "delta": 0.01}),
        ("sampling-probability", TARGET | odd | {"count": 100, "delta": 0.01}),
        ("steps", TARGET | odd | {"delta": 0.01}),
        ("delta", {"events": PLAN, "epsilon": 0.1} | odd),
    ):
        found = "\n".join(ask(shared, what, body)["warnings"])
        assert "one whole record" in found, what
        assert "shuffled" in found, what


def test_batches_in_turn_are_no_batches_drawn_anew(shared: SeededLedger) -> None:
    batch = {"type": "sampled_without_replacement", "source_dataset_size": 1000, "sample_size": 10, "event": GAUSSIAN}
    plan = {"events": [{"event": batch}], "delta": 1e-5, "neighboring_relation": "replace_one"}
    (unplanned,) = ask(shared, "epsilon", plan | {"batches": "fixed"})["warnings"]
    assert "A plan cannot hold a batch of fixed size under replace_one" in unplanned
    found, last = ask(shared, "epsilon", plan | {"batches": "shuffled"})["warnings"]
    assert "drawn anew at every step" in found
    assert last == unplanned


def test_the_relation_is_that_of_the_question(shared: SeededLedger) -> None:
    target = {"event": GAUSSIAN, "count": 1, "epsilon": 1.0, "delta": 1e-5}
    once = ask(shared, "noise-multiplier", target)["noise_multiplier"]
    twice = ask(shared, "noise-multiplier", target | {"neighboring_relation": "replace_one"})["noise_multiplier"]
    assert twice == pytest.approx(2 * once, rel=1e-5)


EXAMPLES = {
    "ComputeEpsilon": ("epsilon", planning_responses.EPSILON_EXAMPLE),
    "ComputeDelta": ("delta", planning_responses.DELTA_EXAMPLE),
    "ComputeEpsilonTrajectory": ("trajectory", planning_responses.TRAJECTORY_EXAMPLE),
    "FindNoiseMultiplier": ("noise-multiplier", planning_responses.NOISE_MULTIPLIER_EXAMPLE),
    "FindSamplingProbability": ("sampling-probability", planning_responses.SAMPLING_PROBABILITY_EXAMPLE),
    "FindMaxSteps": ("steps", planning_responses.MOST_STEPS_EXAMPLE),
    "ComputeLaplaceCost": ("laplace", planning_responses.LAPLACE_EXAMPLE),
}


@pytest.mark.parametrize("schema", EXAMPLES)
def test_the_documents_examples_are_what_the_service_answers(shared: SeededLedger, schema: str) -> None:
    what, expected = EXAMPLES[schema]
    (question,) = DOCUMENT["components"]["schemas"][schema]["examples"]
    _same(ask(shared, what, question), expected)


def _same(found: object, expected: object) -> None:
    """Compare an answer with an example: numbers to its digits; a null may be left out."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        for name, value in found.items():
            _same(value, expected.get(name))
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-3)
    else:
        assert found == expected
