"""Policies over HTTP: who sets them, what they forbid; a violation names the policy, the rule and the value."""

from typing import Any

import httpx2
import pytest
from sqlalchemy import event as hooks
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import accounts, organisations
from app.service.auth import credential_cache
from app.service.verification import verify
from tests.api.conftest import House
from tests.conftest import SAMPLED
from tests.service.tampering import tampering

WHY = "The board has met."
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 60.0}
LAPLACE = {"type": "laplace", "noise_multiplier": 60.0}
LIMIT = {"epsilon": 0.5, "delta": 1e-6}


def put(
    home: House, policy: dict[str, Any], account: str | None = None, *, tag: str = "*", role: str = "privacy_officer"
) -> httpx2.Response:
    """Set a policy of the organisation, or of an account."""
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    reply: httpx2.Response = home.ledger.http.put(
        path, json={"policy": policy, "reason": WHY}, headers=home.ledger.headers(role) | {"If-Match": tag}
    )
    return reply


def _set(home: House, policy: dict[str, Any], account: str | None = None) -> None:
    reply = put(home, policy, account)
    assert reply.status_code == 200, reply.text


def loosen(home: House, policy: dict[str, Any], account: str | None = None) -> None:
    """Set a looser policy, as two persons can."""
    reply = put(home, policy, account)
    assert (reply.status_code, reply.json()["kind"]) == (201, "policy"), reply.text
    approved = home.ledger.post(f"/v1/proposals/{reply.json()['id']}/approve", {}, "admin")
    assert approved.status_code == 200, approved.text


def violation(reply: httpx2.Response) -> tuple[object, ...]:
    """What a policy violation names."""
    told = reply.json()
    assert (reply.status_code, told["code"]) == (403, "policy_violation"), reply.text
    return told["policy"], told["rule"], told["value"], told["allowed"]


def _steps(home: House, body: dict[str, Any], role: str = "trainer") -> httpx2.Response:
    return home.ledger.post(f"/v1/runs/{home.run}/steps", body, role)


def _run(home: House, **terms: object) -> httpx2.Response:
    return home.ledger.post("/v1/runs", {"name": "model", "budget": "mimic/icu-team", "event": SAMPLED} | terms)


def test_a_policy_is_set_read_inherited_and_recorded(home: House) -> None:
    empty = home.ledger.get("/v1/policy").json()
    assert (empty["policy"], empty["revision"], empty["account"], empty["path"]) == ({}, 0, None, "organisation")
    assert (empty["effective"]["approvers_to_raise_limit"], empty["effective"]["deviations"]) == (2, "flag")
    _set(home, {"max_epsilon": 2.0, "mechanisms": ["laplace", "gaussian"]})
    _set(home, {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": True}, home.budget)
    reply = home.ledger.get(f"/v1/accounts/{home.budget}/policy")
    told = reply.json()
    assert told["policy"] == {"max_epsilon": 5.0, "mechanisms": ["gaussian", "zcdp"], "require_plan": True}
    holds = {name: told["effective"][name] for name in ("max_epsilon", "mechanisms", "require_plan", "max_delta")}
    assert holds == {"max_epsilon": 2.0, "mechanisms": ["gaussian"], "require_plan": True, "max_delta": None}
    acts = home.ledger.get("/v1/audit-events?order=oldest&action=policy.replaced", "auditor").json()["items"]
    assert [(act["subject"], act["reason"]) for act in acts][1] == (home.budget, WHY)
    assert acts[0]["before"] == {"policy": {}, "revision": 0}
    assert acts[0]["after"] == {"policy": {"max_epsilon": 2.0, "mechanisms": ["gaussian", "laplace"]}, "revision": 1}
    assert verify(home.ledger.database).problems == ()


def test_a_policy_is_changed_by_whoever_has_seen_it(home: House) -> None:
    tag = home.ledger.get("/v1/policy").headers["etag"]
    path = "/v1/policy"
    missing = home.ledger.http.put(
        path, json={"policy": {}, "reason": WHY}, headers=home.ledger.headers("privacy_officer")
    )
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition_required")
    assert put(home, {"max_delta": 1e-4}, tag=tag).status_code == 200
    stale = put(home, {"max_delta": 1e-3}, tag=tag)
    assert (stale.status_code, stale.json()["code"], stale.json()["policy_revision"]) == (412, "precondition_failed", 1)
    again = put(home, {"max_delta": 1e-4})
    assert (again.status_code, again.json()["revision"]) == (200, 1)


def test_a_run_has_no_policy_and_a_bound_key_reaches_its_own_part_only(home: House) -> None:
    assert home.ledger.get(f"/v1/accounts/{home.run}/policy").status_code == 404
    assert put(home, {"require_plan": True}, home.run).status_code == 404
    key = home.ledger.post("/v1/api-keys", {"role": "privacy_officer", "scope": home.budget}).json()["key"]
    headers = {"Authorization": f"Bearer {key}", "If-Match": "*"}
    body = {"policy": {"require_plan": True}, "reason": WHY}
    for path, status in (
        ("/v1/policy", 403),
        (f"/v1/accounts/{home.population}/policy", 403),
        (f"/v1/accounts/{home.budget}/policy", 200),
    ):
        assert home.ledger.http.put(path, json=body, headers=headers).status_code == status, path


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
def test_a_policy_that_means_nothing_is_refused(house: House, policy: dict[str, Any]) -> None:
    before = house.rows()
    assert put(house, policy).status_code == 422
    assert house.rows() == before


def test_mechanisms_and_noise_of_steps(home: House) -> None:
    _set(home, {"mechanisms": ["gaussian"], "min_noise_multiplier": 1.0})
    _set(home, {"min_noise_multiplier": 30.0}, home.budget)
    before = home.rows()
    inside = {"type": "poisson_sampled", "sampling_probability": 0.1, "event": LAPLACE}
    assert violation(_steps(home, {"event": inside})) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    loud = GAUSSIAN | {"noise_multiplier": 0.5}
    assert violation(_steps(home, {"event": loud})) == ("organisation", "min_noise_multiplier", 0.5, 1.0)
    less = {"event": GAUSSIAN | {"noise_multiplier": 20.0}}
    assert violation(_steps(home, less)) == ("mimic/icu-team", "min_noise_multiplier", 20.0, 30.0)
    both = {"events": [{"event": GAUSSIAN}, {"event": LAPLACE}]}
    assert violation(_steps(home, both)) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    preview = home.ledger.post(f"/v1/runs/{home.run}/steps?dry_run=true", {"event": LAPLACE}, "trainer")
    assert violation(preview)[1] == "mechanisms"
    assert home.rows() == before
    assert _steps(home, {"event": GAUSSIAN}).status_code == 200
    assert verify(home.ledger.database).problems == ()


def test_a_policy_that_changes_between_two_steps_holds_for_the_second(home: House) -> None:
    assert _steps(home, {"event": LAPLACE, "first_step": 1}).status_code == 200
    for account in (None, home.population, home.budget):
        _set(home, {"mechanisms": ["gaussian"]}, account)
        assert violation(_steps(home, {"event": LAPLACE}))[1] == "mechanisms"
        loosen(home, {}, account)
        assert _steps(home, {"event": LAPLACE}).status_code == 200
    _set(home, {"mechanisms": ["gaussian"]})
    again = _steps(home, {"event": LAPLACE, "first_step": 1})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")


def test_a_plan_is_held_against_the_policy_and_what_was_set_aside_before_stays(home: House) -> None:
    path = f"/v1/runs/{home.run}/reservations"
    assert home.ledger.post(path, {"plan": [{"event": LAPLACE, "count": 2}]}, "trainer").status_code == 201
    _set(home, {"mechanisms": ["gaussian"]})
    assert [_steps(home, {"event": LAPLACE}).status_code for _ in range(2)] == [200, 200]
    assert violation(_steps(home, {"event": LAPLACE}))[1] == "mechanisms"
    other = home.ledger.run(name="other")
    refused = home.ledger.post(f"/v1/runs/{other}/reservations", {"plan": [{"event": LAPLACE}]}, "trainer")
    assert violation(refused) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    assert verify(home.ledger.database).problems == ()


def test_reports_are_kept_whatever_they_tell_if_the_teller_may_tell(home: House) -> None:
    _set(home, {"mechanisms": ["gaussian"], "report_roles": ["admin"]})
    report = {"mode": "report", "event": LAPLACE}
    assert violation(_steps(home, report)) == ("organisation", "report_roles", "trainer", ["admin"])
    assert _steps(home, report, "admin").status_code == 200
    assert verify(home.ledger.database).problems == ()


@pytest.mark.parametrize(
    ("policy", "terms", "named"),
    [
        ({"require_limit": True}, {}, ("require_limit", "not given", True)),
        ({"require_plan": True}, {}, ("require_plan", "not given", True)),
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
    home: House, policy: dict[str, Any], terms: dict[str, Any], named: tuple[object, ...]
) -> None:
    _set(home, policy, home.budget)
    before = home.rows()
    assert violation(_run(home, **terms)) == ("mimic/icu-team", *named)
    assert home.rows() == before


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ({"require_limit": True, "max_epsilon": 0.5, "max_delta": 1e-6}, {"limit": LIMIT}),
        ({"require_plan": True, "max_epsilon": 0.5}, {"plan": [{"event": GAUSSIAN, "count": 2}]}),
        ({"require_plan": True, "max_epsilon": 0.5}, {"planned": [{"event": GAUSSIAN, "count": 2}]}),
        ({"max_epsilon": 1.0, "mechanisms": ["gaussian"]}, {}),
    ],
    ids=str,
)
def test_a_run_that_conforms_is_registered(home: House, policy: dict[str, Any], terms: dict[str, Any]) -> None:
    _set(home, policy)
    assert _run(home, **terms).status_code == 201


def test_populations_budgets_and_limits_conform_too(home: House) -> None:
    _set(home, {"max_delta": 1e-5, "neighboring_relations": ["add_or_remove_one"]})
    terms = {"name": "new", "privacy_unit": "user", "neighboring_relation": "replace_one", "limit": LIMIT}
    assert violation(home.ledger.post("/v1/populations", terms))[1] == "neighboring_relations"
    terms["neighboring_relation"] = "add_or_remove_one"
    more = {"epsilon": 1.0, "delta": 1e-4}
    assert violation(home.ledger.post("/v1/populations", terms | {"limit": more}))[1] == "max_delta"
    assert home.ledger.post("/v1/populations", terms).status_code == 201
    budget = {"name": "b", "parent": "new", "limit": more}
    assert violation(home.ledger.post("/v1/budgets", budget)) == ("organisation", "max_delta", 1e-4, 1e-5)
    body = {"limit": more, "reason": WHY}
    assert violation(home.ledger.post(f"/v1/accounts/{home.budget}/limit", body, If_Match="*"))[1] == "max_delta"


def test_a_policy_set_after_a_proposal_holds_for_its_approval(home: House) -> None:
    body = {"limit": {"epsilon": 2.0, "delta": 1e-4}, "reason": WHY}
    made = home.ledger.post(f"/v1/accounts/{home.budget}/limit", body, "planner", If_Match="*").json()
    _set(home, {"max_delta": 1e-5})
    reply = home.ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer")
    assert violation(reply)[1] == "max_delta"
    assert home.ledger.get(f"/v1/proposals/{made['id']}").json()["status"] == "open"


def test_a_policy_lets_one_person_raise_a_limit_who_could_approve_it(home: House) -> None:
    path = f"/v1/accounts/{home.budget}/limit"

    def raised(epsilon: float, role: str) -> int:
        body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": WHY}
        return home.ledger.post(path, body, role, If_Match="*").status_code

    _set(home, {"approvers_to_raise_limit": 1}, home.budget)
    assert raised(1.5, "privacy_officer") == 201
    proposal = home.ledger.get(f"/v1/proposals?status=open&account={home.budget}").json()["items"][0]["id"]
    assert home.ledger.post(f"/v1/proposals/{proposal}/reject", {}, "admin").status_code == 200
    loosen(home, {"approvers_to_raise_limit": 1})
    assert raised(1.5, "privacy_officer") == 200
    assert raised(2.0, "planner") == 201
    assert verify(home.ledger.database).problems == ()


def test_an_organisations_policy_that_was_changed_in_the_database_is_found(home: House) -> None:
    _set(home, {"mechanisms": ["gaussian"]})
    assert verify(home.ledger.database).problems == ()
    with tampering(home.ledger.database) as tx:
        tx.execute(update(organisations).values(policy=None))
    [problem] = verify(home.ledger.database).problems
    assert problem.endswith("of organisations is not as the audit log has it: policy.")


def test_a_new_population_has_the_organisations_policy(home: House) -> None:
    _set(home, {"mechanisms": ["gaussian"]})
    home.ledger.population("later")
    home.ledger.budget("team", "later")
    run = home.ledger.run("later/team")
    reply = home.ledger.post(f"/v1/runs/{run}/steps", {"event": LAPLACE}, "trainer")
    assert violation(reply) == ("organisation", "mechanisms", "laplace", ["gaussian"])
    assert verify(home.ledger.database).problems == ()


def _statements(home: House) -> list[str]:
    """What a step asks of the database."""
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    hooks.listen(home.ledger.database.engine, "before_cursor_execute", note)
    assert _steps(home, {}).status_code == 200
    hooks.remove(home.ledger.database.engine, "before_cursor_execute", note)
    return seen


def test_a_policy_costs_a_step_no_query(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_cache, "CACHE_SECONDS", 3600.0)  # a slow machine looks no key up in between
    for _ in range(2):
        before = _statements(home)
    _set(home, {"mechanisms": ["gaussian"], "min_noise_multiplier": 0.5, "max_epsilon": 2.0})
    _set(home, {"deviations": "flag", "report_roles": ["admin"]}, home.budget)
    assert _steps(home, {}).status_code == 200
    assert _statements(home) == before


@pytest.mark.parametrize("column", ["policy", "organisation_policy"])
def test_a_policy_that_nobody_has_set_is_found(home: House, column: str) -> None:
    _set(home, {"mechanisms": ["gaussian"]})
    _set(home, {"require_plan": True}, home.population)
    with home.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).where(accounts.c.id == home.population).values({column: "{}"}))
    (problem,) = verify(home.ledger.database).problems
    assert problem.endswith("its policy is not the one that its organisation's audit events gave it.")
