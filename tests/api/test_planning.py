"""Stateless planning: what a plan costs, what fits a target, and what is too much; without a trace in the ledger."""

import json
from typing import Any

import httpx2
import pytest

from app.accounting.conversion import epsilon_from_rdp
from app.accounting.curves import GRID_VERSION, orders
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import NeighboringRelation, event_from_dict
from app.accounting.rdp import event_curve
from app.accounting.work import bounded
from app.api import strict_json
from app.api.plans import BYTES_PER_MICROSECOND, PLANS, answer_plan
from app.api.routers.planning import MOST_READ_HERE, routes
from app.api.schemas import planning_responses
from app.ledger.errors import InvalidInputError
from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.operations import DOCUMENT
from tests.api.trainer import is_refused
from tests.conftest import SAMPLED

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}
PLAN: list[dict[str, Any]] = [{"event": SAMPLED, "count": 900}, {"event": GAUSSIAN, "count": 2}]
TARGET: dict[str, Any] = {"event": SAMPLED, "epsilon": 2.0, "delta": 1e-5}
SHORT: dict[str, Any] = {"events": [{"event": SAMPLED, "count": 10}]}
GOOD: dict[str, dict[str, Any]] = {
    "epsilon": SHORT | {"delta": 1e-5},
    "delta": SHORT | {"epsilon": 2.0},
    "trajectory": SHORT | {"delta": 1e-5, "max_points": 5},
    "noise-multiplier": TARGET | {"count": 10},
    "steps": TARGET | {"steps_per_epoch": 10},
    "sampling-probability": TARGET | {"count": 10},
    "laplace": {"scale": 1.0, "probability": 0.9, "l1_sensitivity": 2.0, "releases": 3, "delta": 1e-5},
}
WITH_EVENTS = [name for name in GOOD if name != "laplace"]


def ask(shared: SeededLedger, what: str, body: dict[str, Any], role: str = "viewer") -> dict[str, Any]:
    before = shared.rows()
    reply = shared.ledger.post(f"/v1/accounting/{what}", body, role)
    assert reply.status_code == 200, reply.text
    assert shared.rows() == before
    answer: dict[str, Any] = reply.json()
    return answer


def send(shared: SeededLedger, what: str, content: object) -> httpx2.Response:
    headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
    sent = content if isinstance(content, bytes) else json.dumps(content).encode()
    return shared.ledger.http.post(f"/v1/accounting/{what}", content=sent, headers=headers)


@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_plan_costs_what_the_accountant_says_in_any_order(shared: SeededLedger, delta: float) -> None:
    events = [*PLAN, {"event": SAMPLED}]
    cost = ask(shared, "epsilon", {"events": events, "delta": delta})
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    curves = [event_curve(event_from_dict(item["event"]), relation).times(item.get("count", 1)) for item in events]
    best = epsilon_from_rdp(orders(GRID_VERSION), sum(curves[1:], start=curves[0]).nats(), delta)
    assert (cost["epsilon"], cost["optimal_order"], cost["delta"]) == (best.epsilon, best.order, delta)
    split = [{"event": SAMPLED, "count": 451}, *reversed(events[1:2]), {"event": SAMPLED, "count": 450}]
    assert ask(shared, "epsilon", {"events": split, "delta": delta}) == cost


TEXTBOOKS = ["optimal_composition", "advanced_composition", "basic_composition", "textbook"]


def test_epsilon_of_a_plan_comes_with_other_accountants(shared: SeededLedger) -> None:
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


def test_trajectory_beyond_every_bound_is_infinite(shared: SeededLedger) -> None:
    loud = {"event": {"type": "gaussian", "noise_multiplier": 1e-3}, "count": 10**9}
    answer = ask(shared, "trajectory", {"events": [{"event": GAUSSIAN}, loud], "delta": 1e-5, "max_points": 2})
    for name in ("epsilon", "required_epsilon"):
        assert [point[name] == "Infinity" for point in answer["points"]] == [False, True]
    assert answer["warnings"]


def test_event_that_cannot_be_planned_is_answered_as_without_a_plan(shared: SeededLedger) -> None:
    target = TARGET | {"event": {"type": "discrete_gaussian", "noise_multiplier": 2.0}, "count": 100}
    answer = ask(shared, "noise-multiplier", target)
    assert answer["noise_multiplier"] == answer["noise_multiplier_without_plan"]
    (warning,) = answer["warnings"]
    assert "A plan cannot hold discrete_gaussian" in warning
    whole = ask(shared, "epsilon", {"events": [{"event": answer["event"], "count": 100}], "delta": 1e-5})
    assert whole["required_epsilon"] <= 2.0
    assert whole["warnings"] == [warning]
    assert "plan_filter" not in {item["name"] for item in whole["accountants"]}


def test_unreachable_target_is_null_with_a_reason(shared: SeededLedger) -> None:
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
def test_examples_of_the_document_are_answered(shared: SeededLedger, schema: str) -> None:
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


def test_laplace_noise_with_scale_and_bound_or_neither_is_refused(shared: SeededLedger) -> None:
    for body in ({"l1_sensitivity": 1}, {"l1_sensitivity": 1, "scale": 1, "bound": 1}):
        assert "`scale` or `bound`" in is_refused(send(shared, "laplace", body), 422, "invalid_request")["detail"]


@pytest.mark.parametrize("what", WITH_EVENTS)
def test_plan_without_a_bound_or_with_too_much_work_is_refused(shared: SeededLedger, what: str) -> None:
    body = GOOD[what] | {"neighboring_relation": "replace_one"}
    assert "replace_one" in is_refused(send(shared, what, body), 422, "unsupported_event")["detail"]
    decay = {"type": "decay", "mode": "time", "decay_rate": 1e-4, "steps": 1000, "event": SAMPLED}
    events = [{"event": decay | {"first_step": index}} for index in range(10)]
    body = GOOD[what] | {"other_events" if "event" in GOOD[what] else "events": events}
    is_refused(send(shared, what, body), 422, "computation_limit_exceeded")
    if what in {"noise-multiplier", "sampling-probability"}:
        body = GOOD[what] | {"event": {"type": "exponential", "epsilon": 0.1}}
        assert "no single" in is_refused(send(shared, what, body), 422, "unsupported_event")["detail"]


def test_many_selections_are_too_much_work_for_one_request(shared: SeededLedger) -> None:
    events: list[dict[str, object]] = [{"type": "gaussian", "noise_multiplier": 5.0 + index} for index in range(100)]
    for _ in range(13):
        events = [{"type": "repeat_and_select", "mean": 2.0, "shape": None, "event": event} for event in events]
    body = {"events": [{"event": event} for event in events], "delta": 1e-5}
    is_refused(send(shared, "epsilon", body), 422, "computation_limit_exceeded")


VAIN: dict[str, dict[str, Any]] = {
    "a survey without noise": {"type": "randomized_response", "noise_parameter": 5e-324, "num_buckets": 2},
    "a release of everything": {"type": "gaussian", "noise_multiplier": 1e-3},
}


@pytest.mark.parametrize("name", VAIN)
def test_plan_that_protects_nothing_is_answered_with_a_warning(shared: SeededLedger, name: str) -> None:
    events = [{"event": VAIN[name], "count": 10**9 if VAIN[name]["type"] == "gaussian" else 1}]
    body = {"events": events, "neighboring_relation": "replace_one"}
    for what, more in (("epsilon", {"delta": 1e-5}), ("delta", {"epsilon": 10_000.0}), ("delta", {"epsilon": 0.0})):
        assert ask(shared, what, body | more)["warnings"]


BAD: dict[str, Any] = {
    "no JSON": b'{"delta" 1}',
    "a key twice": b'{"delta": 1, "delta": 2}',
    "no object": b"[1]",
    "nothing": b"{}",
    "an unknown event": json.dumps({"delta": 1e-5, "events": [{"event": {"type": "gausian"}}]}).encode(),
    "a wrong number": json.dumps({"delta": 2, "events": [{"event": {"type": "zcdp", "rho": -1}}]}).encode(),
    "too many events": json.dumps({"delta": 1e-5, "events": [{}] * 1001}).encode(),
    "nested too deep": b'{"delta": 1e-5, "events": [{"event": '
    + b'{"type": "group_privacy", "event": ' * 20
    + b"1"
    + b"}" * 21
    + b"]}",
}


def _long(content: bytes) -> bytes:
    return content + b" " * MOST_READ_HERE


@pytest.mark.parametrize("what", GOOD)
def test_long_plan_is_answered_as_a_short_one_by_another_process(
    shared: SeededLedger, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps(GOOD[what]).encode()
    short = send(shared, what, content)
    monkeypatch.setattr(strict_json, "strict_loads", None)  # whatever this process reads fails
    long = send(shared, what, _long(content))
    assert (long.status_code, long.headers["Content-Type"], long.json()) == (
        200,
        short.headers["Content-Type"],
        short.json(),
    )


@pytest.mark.parametrize("wrong", BAD)
def test_wrong_long_plan_is_refused_as_a_short_one(shared: SeededLedger, wrong: str) -> None:
    short, long = (send(shared, "epsilon", content) for content in (BAD[wrong], _long(BAD[wrong])))
    assert 400 <= short.status_code < 500
    assert (long.status_code, long.headers["Content-Type"]) == (short.status_code, short.headers["Content-Type"])
    assert without_request_id(long) == without_request_id(short)


def test_reading_counts_as_work() -> None:
    content = json.dumps(GOOD["epsilon"]).encode()
    with bounded(50_000):
        assert json.loads(answer_plan("computeEpsilon", content))["epsilon"] > 0
        with pytest.raises(PlanTooExpensiveError):
            answer_plan("computeEpsilon", content + b" " * 50_000 * BYTES_PER_MICROSECOND)
    with pytest.raises(InvalidInputError):
        answer_plan("computeEpsilon", b"{}")


def test_operations_of_the_planner_are_those_of_its_processes() -> None:
    assert {getattr(each, "unique_id", None) for each in routes.routes} == set(PLANS)
