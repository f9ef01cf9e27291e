"""Stateless planning: what a plan costs, what fits a target, and what is too much; without a trace in the ledger."""

import json
from typing import Any

import httpx2
import pytest

from app.accounting.conversion import epsilon_from_rdp
from app.accounting.curves import GRID_VERSION, orders
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import NeighboringRelation, event_from_dict
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.pricing_effort import bounded
from app.accounting.rdp import event_curve
from app.api import strict_json
from app.api.planning_jobs import BYTES_PER_MICROSECOND, PLANNER_JOBS, run_planner_job
from app.api.routers.planning import MOST_READ_HERE, routes
from app.ledger.errors import InvalidInputError
from tests.api.conftest import SeededLedger
from tests.api.test_endpoints import unchanged
from tests.api.trainer import is_refused
from tests.conftest import SAMPLED

__all__ = ["unchanged"]

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}
PLAN: list[dict[str, Any]] = [{"event": SAMPLED, "count": 90}, {"event": GAUSSIAN, "count": 2}]
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


def ask(shared: SeededLedger, what: str, body: dict[str, Any], role: str = "viewer") -> dict[str, Any]:
    return dict(shared.ledger.post(f"/v1/accounting/{what}", body, role).raise_for_status().json())


def send(shared: SeededLedger, what: str, content: object) -> httpx2.Response:
    headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
    sent = content if isinstance(content, bytes) else json.dumps(content).encode()
    return shared.ledger.http.post(f"/v1/accounting/{what}", content=sent, headers=headers)


def test_plan_costs_what_the_accountant_says_in_any_order(shared: SeededLedger) -> None:
    delta = 1e-9
    events = [*PLAN, {"event": SAMPLED}]
    cost = ask(shared, "epsilon", {"events": events, "delta": delta})
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    counts = {event_from_dict(SAMPLED): 91, event_from_dict(GAUSSIAN): 2}
    curves = [event_curve(event, relation).times(count) for event, count in counts.items()]
    by_orders = epsilon_from_rdp(orders(GRID_VERSION), (curves[0] + curves[1]).nats(), delta).epsilon
    printed = {each["name"]: each["epsilon"] for each in cost["comparisons"]}
    assert cost["epsilon"] == printed["pld"] == pld_epsilon(counts, relation, delta) < by_orders == printed["rdp"]
    assert cost["delta"] == delta
    assert cost["epsilon"] < cost["limit_needed"]["with_plan"] < cost["limit_needed"]["without_plan"]
    split = [{"event": SAMPLED, "count": 46}, *reversed(events[1:2]), {"event": SAMPLED, "count": 45}]
    assert ask(shared, "epsilon", {"events": split, "delta": delta}) == cost


def test_unreachable_target_is_null_with_a_reason(shared: SeededLedger) -> None:
    loud = [{"event": {"type": "gaussian", "noise_multiplier": 0.5}}]
    for what, name in (("noise-multiplier", "noise_multiplier"), ("sampling-probability", "sampling_probability")):
        answer = ask(shared, what, TARGET | {"count": 10, "other_events": loud})
        assert answer[name] == {"with_plan": None, "without_plan": None}
        assert [answer[member] for member in ("event", "epsilon", "reachable")] == [None, None, False]
        assert "alone exceed" in answer["warnings"][0]


def test_warnings_are_part_of_the_answers_about_a_plan(shared: SeededLedger) -> None:
    odd = {"population_size": 1000, "batches": "shuffled"}
    for what in ("epsilon", "delta", "trajectory"):
        more = {"events": PLAN, "epsilon": 0.1} if what == "delta" else {"delta": 0.01}
        found = "\n".join(ask(shared, what, GOOD[what] | odd | more)["warnings"])
        assert ("one whole record" in found, "shuffled" in found) == (True, True), what


@pytest.mark.parametrize("what", [name for name in GOOD if name != "laplace"])
def test_plan_without_a_bound_or_with_too_much_work_is_refused(shared: SeededLedger, what: str) -> None:
    batch = {"type": "sampled_without_replacement", "source_dataset_size": 100, "sample_size": 10, "event": GAUSSIAN}
    event = {"type": "poisson_sampled", "sampling_probability": 0.1, "event": batch}
    body = GOOD[what] | ({"event": event} if "event" in GOOD[what] else {"events": [{"event": event}]})
    assert "add_or_remove_one" in is_refused(send(shared, what, body), 422, "unsupported_event")["detail"]
    decay = {"type": "decay", "mode": "time", "decay_rate": 1e-4, "steps": 1000, "event": SAMPLED}
    events = [{"event": decay | {"first_step": index}} for index in range(10)]
    body = GOOD[what] | {"other_events" if "event" in GOOD[what] else "events": events}
    is_refused(send(shared, what, body), 422, "computation_limit_exceeded")
    if what in {"noise-multiplier", "sampling-probability"}:
        body = GOOD[what] | {"event": {"type": "exponential", "epsilon": 0.1}}
        assert "no single" in is_refused(send(shared, what, body), 422, "unsupported_event")["detail"]


SURVEY = {"type": "randomized_response", "noise_parameter": 5e-324, "num_buckets": 2}


def test_plan_that_protects_nothing_is_answered_with_a_warning(shared: SeededLedger) -> None:
    loud = {"event": {"type": "gaussian", "noise_multiplier": 1e-3}, "count": 10**9}
    for item in ({"event": SURVEY}, loud):
        body = {"events": [item], "neighboring_relation": "replace_one"}
        for what, more in (("epsilon", {"delta": 1e-5}), ("delta", {"epsilon": 10_000.0}), ("delta", {"epsilon": 0.0})):
            assert ask(shared, what, body | more)["warnings"]
    answer = ask(shared, "trajectory", {"events": [{"event": GAUSSIAN}, loud], "delta": 1e-5, "max_points": 2})
    assert [point["limit_needed_with_plan"] == "Infinity" for point in answer["points"]] == [False, True]
    first, last = (point["epsilon"] for point in answer["points"])
    assert first < 1
    assert last > 1e14
    assert answer["warnings"]
    for noise in ({"l1_sensitivity": 1}, {"l1_sensitivity": 1, "scale": 1, "bound": 1}):
        assert "`scale` or `bound`" in is_refused(send(shared, "laplace", noise), 422, "invalid_request")["detail"]


NESTED = b'{"type": "group_privacy", "event": ' * 20 + b"1" + b"}" * 20
BAD: list[bytes] = [
    *(b'{"delta" 1}', b'{"delta": 1, "delta": 2}', b"[1]", b"{}"),
    b'{"delta": 2, "events": [{"event": {"type": "zcdp", "rho": -1}}]}',
    json.dumps({"delta": 1e-5, "events": [{}] * 1001}).encode(),
    b'{"delta": 1e-5, "events": [{"event": %b}]}' % NESTED,
]


def _long(content: bytes) -> bytes:
    return content + b" " * MOST_READ_HERE


def test_long_plan_is_answered_by_another_process(shared: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {what: json.dumps(GOOD[what]).encode() for what in ("epsilon", "steps", "laplace")}
    short = {what: send(shared, what, content) for what, content in contents.items()}
    monkeypatch.setattr(strict_json, "strict_loads", None)  # whatever this process reads fails
    for what, content in contents.items():
        long = send(shared, what, _long(content))
        assert (long.status_code, long.json()) == (200, short[what].json())
        assert long.headers["Content-Type"] == short[what].headers["Content-Type"]


def test_wrong_long_plan_is_refused_as_a_short_one(shared: SeededLedger) -> None:
    for wrong in BAD:
        short, long = (send(shared, "epsilon", content) for content in (wrong, _long(wrong)))
        assert 400 <= short.status_code < 500
        assert (long.status_code, long.headers["Content-Type"]) == (short.status_code, short.headers["Content-Type"])
        assert long.json() | {"request_id": None} == short.json() | {"request_id": None}


def test_reading_counts_as_work() -> None:
    content = json.dumps(GOOD["epsilon"]).encode()
    with bounded(50_000):
        assert json.loads(run_planner_job("computeEpsilon", content))["epsilon"] > 0
        with pytest.raises(PlanTooExpensiveError):
            run_planner_job("computeEpsilon", content + b" " * 50_000 * BYTES_PER_MICROSECOND)
    with pytest.raises(InvalidInputError):
        run_planner_job("computeEpsilon", b"{}")


def test_operations_of_the_planner_are_those_of_its_processes() -> None:
    assert {getattr(each, "unique_id", None) for each in routes.routes} == set(PLANNER_JOBS)
