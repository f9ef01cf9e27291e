"""Policies: who sets and loosens them, what they forbid, and which deviations are flagged."""

from typing import Any

import httpx2
import pytest
from sqlalchemy import event as hooks

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

WHY = "The board has met."
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 60.0}
LAPLACE = {"type": "laplace", "noise_multiplier": 60.0}
LIMIT = {"epsilon": 0.5, "delta": 1e-6}


def put(
    seeded: SeededLedger,
    policy: dict[str, Any],
    account: str | None = None,
    *,
    tag: str = "*",
    role: str = "privacy_officer",
) -> httpx2.Response:
    """Set a policy of the organisation, or of an account."""
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    reply: httpx2.Response = seeded.ledger.http.put(
        path, json={"policy": policy, "reason": WHY}, headers=seeded.ledger.headers(role) | {"If-Match": tag}
    )
    return reply


def _set(seeded: SeededLedger, policy: dict[str, Any], account: str | None = None) -> None:
    reply = put(seeded, policy, account)
    assert reply.status_code == 200, reply.text


def loosen(seeded: SeededLedger, policy: dict[str, Any], account: str | None = None) -> None:
    """Set a looser policy, as two persons can."""
    reply = put(seeded, policy, account)
    assert (reply.status_code, reply.json()["kind"]) == (201, "policy"), reply.text
    approved = seeded.ledger.post(f"/v1/proposals/{reply.json()['id']}/approve", {}, "admin")
    assert approved.status_code == 200, approved.text


def violation(reply: httpx2.Response) -> tuple[object, ...]:
    """What a policy violation names."""
    answer = reply.json()
    assert (reply.status_code, answer["code"]) == (403, "policy_violation"), reply.text
    return answer["policy"], answer["rule"], answer["value"], answer["allowed"]


def _steps(seeded: SeededLedger, body: dict[str, Any], role: str = "trainer") -> httpx2.Response:
    return seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", body, role)


def _run(seeded: SeededLedger, **terms: object) -> httpx2.Response:
    return seeded.ledger.post("/v1/runs", {"name": "model", "budget": "mimic/icu-team", "event": SAMPLED} | terms)


def test_policy_is_set_read_inherited_and_recorded(seeded: SeededLedger) -> None:
    empty = seeded.ledger.get("/v1/policy").json()
    assert (empty["policy"], empty["revision"], empty["account"], empty["path"]) == ({}, 0, None, "organisation")
    assert (empty["effective"]["approvers_to_raise_limit"], empty["effective"]["deviations"]) == (2, "flag")
    _set(seeded, {"max_epsilon": 2.0, "mechanisms": ["laplace", "gaussian"]})
    _set(seeded, {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": "declare"}, seeded.budget)
    reply = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/policy")
    answer = reply.json()
    assert put(seeded, answer["policy"], seeded.budget).headers["ETag"] == reply.headers["ETag"]
    assert answer["policy"] == {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": "declare"}
    holds = {name: answer["effective"][name] for name in ("max_epsilon", "mechanisms", "require_plan", "max_delta")}
    assert holds == {"max_epsilon": 2.0, "mechanisms": ["gaussian"], "require_plan": "declare", "max_delta": None}
    audit_events = seeded.ledger.get("/v1/audit-events?order=oldest&action=policy.replaced", "auditor").json()["items"]
    assert [(audit_event["subject"], audit_event["reason"]) for audit_event in audit_events][1] == (seeded.budget, WHY)
    assert audit_events[0]["before"] == {"policy": {}, "revision": 0}
    assert audit_events[0]["after"] == {
        "policy": {"max_epsilon": 2.0, "mechanisms": ["gaussian", "laplace"]},
        "revision": 1,
    }
    assert verify(seeded.ledger.database).problems == ()


def test_policy_is_changed_under_the_tag_that_was_read(seeded: SeededLedger) -> None:
    tag = seeded.ledger.get("/v1/policy").headers["etag"]
    path = "/v1/policy"
    missing = seeded.ledger.http.put(
        path, json={"policy": {}, "reason": WHY}, headers=seeded.ledger.headers("privacy_officer")
    )
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition_required")
    assert put(seeded, {"max_delta": 1e-4}, tag=tag).status_code == 200
    stale = put(seeded, {"max_delta": 1e-3}, tag=tag)
    assert (stale.status_code, stale.json()["code"], stale.json()["policy_revision"]) == (412, "precondition_failed", 1)
    again = put(seeded, {"max_delta": 1e-4})
    assert (again.status_code, again.json()["revision"]) == (200, 1)


def test_run_has_no_policy_and_a_bound_key_reaches_its_own_part_only(seeded: SeededLedger) -> None:
    assert seeded.ledger.get(f"/v1/accounts/{seeded.run}/policy").status_code == 404
    assert put(seeded, {"require_plan": "declare"}, seeded.run).status_code == 404
    key = seeded.ledger.post("/v1/api-keys", {"role": "privacy_officer", "scope": seeded.budget}).json()["key"]
    headers = {"Authorization": f"Bearer {key}", "If-Match": "*"}
    body = {"policy": {"require_plan": "declare"}, "reason": WHY}
    for path, status in (
        ("/v1/policy", 403),
        (f"/v1/accounts/{seeded.population}/policy", 403),
        (f"/v1/accounts/{seeded.budget}/policy", 200),
    ):
        assert seeded.ledger.http.put(path, json=body, headers=headers).status_code == status, path


def test_steps_are_refused_by_mechanism_and_noise(seeded: SeededLedger) -> None:
    _set(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 1.0})
    _set(seeded, {"min_noise_multiplier": 30.0}, seeded.budget)
    before = seeded.rows()
    inside = {"type": "poisson_sampled", "sampling_probability": 0.1, "event": LAPLACE}
    assert violation(_steps(seeded, {"event": inside})) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    loud = GAUSSIAN | {"noise_multiplier": 0.5}
    assert violation(_steps(seeded, {"event": loud})) == ("organisation", "min_noise_multiplier", 0.5, 1.0)
    less = {"event": GAUSSIAN | {"noise_multiplier": 20.0}}
    assert violation(_steps(seeded, less)) == ("mimic/icu-team", "min_noise_multiplier", 20.0, 30.0)
    both = {"events": [{"event": GAUSSIAN}, {"event": LAPLACE}]}
    assert violation(_steps(seeded, both)) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    preview = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps?dry_run=true", {"event": LAPLACE}, "trainer")
    assert violation(preview)[1] == "mechanisms"
    assert seeded.rows() == before
    assert _steps(seeded, {"event": GAUSSIAN}).status_code == 200
    assert verify(seeded.ledger.database).problems == ()


def test_policy_that_changes_between_two_steps_holds_for_the_second(seeded: SeededLedger) -> None:
    assert _steps(seeded, {"event": LAPLACE, "first_step": 1}).status_code == 200
    for account in (None, seeded.population, seeded.budget):
        _set(seeded, {"mechanisms": ["gaussian"]}, account)
        assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
        loosen(seeded, {}, account)
        assert _steps(seeded, {"event": LAPLACE}).status_code == 200
    _set(seeded, {"mechanisms": ["gaussian"]})
    again = _steps(seeded, {"event": LAPLACE, "first_step": 1})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")


def test_plan_is_refused_by_a_policy_and_an_earlier_reservation_stays(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}/reservations"
    assert seeded.ledger.post(path, {"plan": [{"event": LAPLACE, "count": 2}]}, "trainer").status_code == 201
    _set(seeded, {"mechanisms": ["gaussian"]})
    assert [_steps(seeded, {"event": LAPLACE}).status_code for _ in range(2)] == [200, 200]
    assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
    other = seeded.ledger.run(name="other")
    refused = seeded.ledger.post(f"/v1/runs/{other}/reservations", {"plan": [{"event": LAPLACE}]}, "trainer")
    assert violation(refused) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    assert verify(seeded.ledger.database).problems == ()


def test_report_is_recorded_if_the_role_may_report(seeded: SeededLedger) -> None:
    _set(seeded, {"mechanisms": ["gaussian"], "report_roles": ["admin"]})
    report = {"mode": "report", "event": LAPLACE}
    assert violation(_steps(seeded, report)) == ("organisation", "report_roles", "trainer", ["admin"])
    assert _steps(seeded, report, "admin").status_code == 200
    assert verify(seeded.ledger.database).problems == ()


@pytest.mark.parametrize(
    ("policy", "terms", "named"),
    [
        ({"require_limit": True}, {}, ("require_limit", "not given", True)),
        ({"require_plan": "declare"}, {}, ("require_plan", "not given", "declare")),
        ({"max_epsilon": 0.4}, {"limit": LIMIT}, ("max_epsilon", 0.5, 0.4)),
        ({"max_epsilon": 0.4}, {}, ("max_epsilon", 1.0, 0.4)),
        ({"max_delta": 1e-7}, {"limit": LIMIT}, ("max_delta", 1e-6, 1e-7)),
        (
            {"require_delta_below_inverse_size": True},
            {"limit": LIMIT},
            ("require_delta_below_inverse_size", "a population of unknown size", True),
        ),
        (
            {"neighboring_relations": ["replace_one"]},
            {},
            ("neighboring_relations", "add_or_remove_one", ["replace_one"]),
        ),
        ({"mechanisms": ["laplace"]}, {}, ("mechanisms", "gaussian", ["laplace"])),
        ({"mechanisms": ["gaussian"]}, {"plan": [{"event": LAPLACE}]}, ("mechanisms", "laplace", ["gaussian"])),
        ({"mechanisms": ["gaussian"]}, {"planned": [{"event": LAPLACE}]}, ("mechanisms", "laplace", ["gaussian"])),
    ],
    ids=str,
)
def test_run_that_a_policy_forbids_is_not_registered(
    seeded: SeededLedger, policy: dict[str, Any], terms: dict[str, Any], named: tuple[object, ...]
) -> None:
    _set(seeded, policy, seeded.budget)
    before = seeded.rows()
    assert violation(_run(seeded, **terms)) == ("mimic/icu-team", *named)
    assert seeded.rows() == before


def test_populations_budgets_and_limits_are_refused_by_policies(seeded: SeededLedger) -> None:
    _set(seeded, {"max_delta": 1e-5, "neighboring_relations": ["add_or_remove_one"]})
    terms = {"name": "new", "privacy_unit": "user", "neighboring_relation": "replace_one", "limit": LIMIT}
    assert violation(seeded.ledger.post("/v1/populations", terms))[1] == "neighboring_relations"
    terms["neighboring_relation"] = "add_or_remove_one"
    more = {"epsilon": 1.0, "delta": 1e-4}
    assert violation(seeded.ledger.post("/v1/populations", terms | {"limit": more}))[1] == "max_delta"
    assert seeded.ledger.post("/v1/populations", terms).status_code == 201
    budget = {"name": "b", "parent": "new", "limit": more}
    assert violation(seeded.ledger.post("/v1/budgets", budget)) == ("organisation", "max_delta", 1e-4, 1e-5)
    body = {"limit": more, "reason": WHY}
    assert violation(seeded.ledger.post(f"/v1/accounts/{seeded.budget}/limit", body, If_Match="*"))[1] == "max_delta"


def test_policy_set_after_a_proposal_holds_for_its_approval(seeded: SeededLedger) -> None:
    body = {"limit": {"epsilon": 2.0, "delta": 1e-4}, "reason": WHY}
    made = seeded.ledger.post(f"/v1/accounts/{seeded.budget}/limit", body, "planner", If_Match="*").json()
    _set(seeded, {"max_delta": 1e-5})
    reply = seeded.ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer")
    assert violation(reply)[1] == "max_delta"
    assert seeded.ledger.get(f"/v1/proposals/{made['id']}").json()["status"] == "open"


def test_approver_raises_a_limit_alone_where_a_policy_says_so(seeded: SeededLedger) -> None:
    path = f"/v1/accounts/{seeded.budget}/limit"

    def raised(epsilon: float, role: str) -> int:
        body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": WHY}
        return seeded.ledger.post(path, body, role, If_Match="*").status_code

    _set(seeded, {"approvers_to_raise_limit": 1}, seeded.budget)
    assert raised(1.5, "privacy_officer") == 201
    proposal = seeded.ledger.get(f"/v1/proposals?status=open&account={seeded.budget}").json()["items"][0]["id"]
    assert seeded.ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    loosen(seeded, {"approvers_to_raise_limit": 1})
    assert raised(1.5, "privacy_officer") == 200
    assert raised(2.0, "planner") == 201
    assert verify(seeded.ledger.database).problems == ()


def _statements(seeded: SeededLedger) -> list[str]:
    """What a step asks of the database."""
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    hooks.listen(seeded.ledger.database.engine, "before_cursor_execute", note)
    assert _steps(seeded, {}).status_code == 200
    hooks.remove(seeded.ledger.database.engine, "before_cursor_execute", note)
    return seen


@pytest.mark.both_databases
def test_policy_costs_a_step_no_query(seeded: SeededLedger) -> None:
    for _ in range(2):
        before = _statements(seeded)
    _set(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 0.5, "max_epsilon": 2.0})
    _set(seeded, {"deviations": "flag", "report_roles": ["admin"]}, seeded.budget)
    for _ in range(3):  # PostgreSQL validates a few groups after one whose rows had changed
        assert _steps(seeded, {}).status_code == 200
    assert _statements(seeded) == before


QUIET = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 5.0}}
NOISE = {"kind": "noise_multiplier", "declared": 1.1, "observed": 5.0}


def _flags(seeded: SeededLedger, run: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = seeded.ledger.get(f"/v1/runs/{run}").json()["deviations"]
    return answer


def _take(seeded: SeededLedger, body: dict[str, Any], run: str | None = None) -> int:
    return seeded.ledger.post(f"/v1/runs/{run or seeded.run}/steps", body, "trainer").status_code


def test_steps_that_differ_are_admitted_and_flagged_once(seeded: SeededLedger) -> None:
    assert _flags(seeded, seeded.run) == []
    assert _take(seeded, {"event": QUIET}) == 200
    assert _take(seeded, {"event": QUIET}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 1}]
    assert _take(seeded, {"event": GAUSSIAN, "mode": "report"}) == 200
    kinds = [flag["kind"] for flag in _flags(seeded, seeded.run)]
    assert kinds == ["noise_multiplier", "sampler", "sampling_probability"]
    assert verify(seeded.ledger.database).problems == ()


def test_more_and_faster_than_declared(seeded: SeededLedger) -> None:
    run = seeded.ledger.run(name="fast", planned=[{"event": SAMPLED, "count": 5}], steps_per_hour=3.0)
    answer = seeded.ledger.get(f"/v1/runs/{run}").json()
    assert (answer["expected_steps"], answer["declared_steps_per_hour"], answer["deviations"]) == (5, 3.0, [])
    assert _take(seeded, {"count": 4}, run) == 200
    assert _take(seeded, {"count": 3}, run) == 200
    assert _flags(seeded, run) == [
        {"kind": "steps_per_hour", "declared": 3.0, "observed": 4.0, "first_step": 0},
        {"kind": "steps", "declared": 5, "observed": 7, "first_step": 5},
    ]


def test_deviating_steps_are_refused_where_a_policy_says_so(seeded: SeededLedger) -> None:
    assert put(seeded, {"deviations": "refuse"}, seeded.budget).status_code == 200
    before = seeded.rows()
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"event": QUIET}, "trainer")
    answer = "noise_multiplier 5.0 where 1.1 was declared"
    assert violation(reply) == ("mimic/icu-team", "deviations", answer, "refuse")
    plan = {"plan": [{"event": QUIET, "count": 2}]}
    assert violation(seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer"))[1] == "deviations"
    assert seeded.rows() == before
    assert _take(seeded, {}) == 200
    assert _take(seeded, {"event": QUIET, "mode": "report"}) == 200
    assert _flags(seeded, seeded.run) == [NOISE | {"first_step": 2}]
