"""Policies over HTTP: who sets them, what they forbid; a violation names the policy, the rule and the value."""

from typing import Any

import httpx2
import pytest
from sqlalchemy import event as hooks
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import accounts, organisations
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED
from tests.service.tampering import tampering

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


@pytest.mark.both_databases
def test_a_policy_is_set_read_inherited_and_recorded(seeded: SeededLedger) -> None:
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


def test_a_policy_is_changed_by_whoever_has_seen_it(seeded: SeededLedger) -> None:
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


def test_a_run_has_no_policy_and_a_bound_key_reaches_its_own_part_only(seeded: SeededLedger) -> None:
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


@pytest.mark.parametrize(
    "policy",
    [
        *({"max_epsilon": 0}, {"max_epsilon": "1"}, {"max_delta": 0.5}, {"mechanisms": []}, {"mechanisms": ["magic"]}),
        *(
            {"mechanisms": ["poisson_sampled"]},
            {"approvers_to_raise_limit": 3},
            {"report_roles": ["boss"]},
            {"wishes": 1},
        ),
        {"report_roles": ["privacy_officer"]},
        *({"deviations": "ignore"}, {"min_noise_multiplier": 0}, {"require_plan": 1}),
    ],
    ids=str,
)
def test_a_policy_that_means_nothing_is_refused(shared: SeededLedger, policy: dict[str, Any]) -> None:
    before = shared.rows()
    assert put(shared, policy).status_code == 422
    assert shared.rows() == before


def test_mechanisms_and_noise_of_steps(seeded: SeededLedger) -> None:
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


def test_a_policy_that_changes_between_two_steps_holds_for_the_second(seeded: SeededLedger) -> None:
    assert _steps(seeded, {"event": LAPLACE, "first_step": 1}).status_code == 200
    for account in (None, seeded.population, seeded.budget):
        _set(seeded, {"mechanisms": ["gaussian"]}, account)
        assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
        loosen(seeded, {}, account)
        assert _steps(seeded, {"event": LAPLACE}).status_code == 200
    _set(seeded, {"mechanisms": ["gaussian"]})
    again = _steps(seeded, {"event": LAPLACE, "first_step": 1})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")


def test_a_plan_is_held_against_the_policy_and_what_was_set_aside_before_stays(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}/reservations"
    assert seeded.ledger.post(path, {"plan": [{"event": LAPLACE, "count": 2}]}, "trainer").status_code == 201
    _set(seeded, {"mechanisms": ["gaussian"]})
    assert [_steps(seeded, {"event": LAPLACE}).status_code for _ in range(2)] == [200, 200]
    assert violation(_steps(seeded, {"event": LAPLACE}))[1] == "mechanisms"
    other = seeded.ledger.run(name="other")
    refused = seeded.ledger.post(f"/v1/runs/{other}/reservations", {"plan": [{"event": LAPLACE}]}, "trainer")
    assert violation(refused) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    assert verify(seeded.ledger.database).problems == ()


def test_reports_are_kept_whatever_they_tell_if_the_teller_may_tell(seeded: SeededLedger) -> None:
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
def test_a_run_that_a_policy_forbids_is_not_registered(
    seeded: SeededLedger, policy: dict[str, Any], terms: dict[str, Any], named: tuple[object, ...]
) -> None:
    _set(seeded, policy, seeded.budget)
    before = seeded.rows()
    assert violation(_run(seeded, **terms)) == ("mimic/icu-team", *named)
    assert seeded.rows() == before


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ({"require_limit": True, "max_epsilon": 0.5, "max_delta": 1e-6}, {"limit": LIMIT}),
        ({"require_plan": "declare", "max_epsilon": 0.5}, {"plan": [{"event": GAUSSIAN, "count": 2}]}),
        ({"require_plan": "declare", "max_epsilon": 0.5}, {"planned": [{"event": GAUSSIAN, "count": 2}]}),
        ({"max_epsilon": 1.0, "mechanisms": ["gaussian"]}, {}),
    ],
    ids=str,
)
def test_a_run_that_conforms_is_registered(seeded: SeededLedger, policy: dict[str, Any], terms: dict[str, Any]) -> None:
    _set(seeded, policy)
    assert _run(seeded, **terms).status_code == 201


def test_populations_budgets_and_limits_conform_too(seeded: SeededLedger) -> None:
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


def test_a_policy_set_after_a_proposal_holds_for_its_approval(seeded: SeededLedger) -> None:
    body = {"limit": {"epsilon": 2.0, "delta": 1e-4}, "reason": WHY}
    made = seeded.ledger.post(f"/v1/accounts/{seeded.budget}/limit", body, "planner", If_Match="*").json()
    _set(seeded, {"max_delta": 1e-5})
    reply = seeded.ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer")
    assert violation(reply)[1] == "max_delta"
    assert seeded.ledger.get(f"/v1/proposals/{made['id']}").json()["status"] == "open"


def test_a_policy_lets_one_person_raise_a_limit_who_could_approve_it(seeded: SeededLedger) -> None:
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


@pytest.mark.both_databases
def test_an_organisations_policy_that_was_changed_in_the_database_is_found(seeded: SeededLedger) -> None:
    _set(seeded, {"mechanisms": ["gaussian"]})
    assert verify(seeded.ledger.database).problems == ()
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(organisations).values(policy=None))
    [problem] = verify(seeded.ledger.database).problems
    assert problem.endswith("of organisations is not as the audit log has it: policy.")


def test_a_new_population_has_the_organisations_policy(seeded: SeededLedger) -> None:
    _set(seeded, {"mechanisms": ["gaussian"]})
    seeded.ledger.population("later")
    seeded.ledger.budget("team", "later")
    run = seeded.ledger.run("later/team")
    reply = seeded.ledger.post(f"/v1/runs/{run}/steps", {"event": LAPLACE}, "trainer")
    assert violation(reply) == ("organisation", "mechanisms", "laplace", ["gaussian"])
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
def test_a_policy_costs_a_step_no_query(seeded: SeededLedger) -> None:
    for _ in range(2):
        before = _statements(seeded)
    _set(seeded, {"mechanisms": ["gaussian"], "min_noise_multiplier": 0.5, "max_epsilon": 2.0})
    _set(seeded, {"deviations": "flag", "report_roles": ["admin"]}, seeded.budget)
    for _ in range(3):  # PostgreSQL validates a few groups after one whose rows had changed
        assert _steps(seeded, {}).status_code == 200
    assert _statements(seeded) == before


@pytest.mark.parametrize("column", ["policy", "organisation_policy"])
def test_a_policy_that_nobody_has_set_is_found(seeded: SeededLedger, column: str) -> None:
    _set(seeded, {"mechanisms": ["gaussian"]})
    _set(seeded, {"require_plan": "declare"}, seeded.population)
    with seeded.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).where(accounts.c.id == seeded.population).values({column: "{}"}))
    (problem,) = verify(seeded.ledger.database).problems
    assert problem.endswith("its policy is not the one that its organisation's audit events gave it.")
