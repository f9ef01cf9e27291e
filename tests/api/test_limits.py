"""Changing a limit: lowered by one person, raised by two; with a reason, a precondition, and a record for ever."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from sqlalchemy import event as hooks

from app.ledger.permissions import Role
from app.service.governance.api_keys import create_key
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

DELTA = 1e-5


def _ask(
    seeded: SeededLedger,
    epsilon: float,
    role: str = "planner",
    *,
    delta: float = DELTA,
    tag: str | None = "*",
    **headers: str,
) -> httpx2.Response:
    sent = headers | ({} if tag is None else {"If_Match": tag})
    body = {"limit": {"epsilon": epsilon, "delta": delta}, "reason": "The study goes on."}
    return seeded.ledger.post(f"/v1/accounts/{seeded.budget}/limit", body, role, **sent)


def _raised(seeded: SeededLedger, epsilon: float, delta: float = DELTA) -> None:
    made = _ask(seeded, epsilon, delta=delta)
    assert made.status_code == 201, made.text
    reply = seeded.ledger.post(f"/v1/proposals/{made.json()['id']}/approve", {"reason": "Seen."}, "privacy_officer")
    assert reply.status_code == 200, reply.text


def _limit(seeded: SeededLedger) -> dict[str, Any]:
    shown: dict[str, Any] = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").json()
    return shown


def test_one_person_lowers_and_it_holds_at_once(seeded: SeededLedger) -> None:
    reply = _ask(seeded, 0.9, "budget_admin")
    assert (reply.status_code, reply.json()["limit"], reply.json()["revision"]) == (
        200,
        {"epsilon": 0.9, "delta": DELTA},
        1,
    )
    assert reply.headers["ETag"] == seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").headers["ETag"]
    assert seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["limit"]["epsilon"] == 0.9
    step = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert step.json()["epsilon_limit"] == 0.9
    assert verify(seeded.ledger.database).problems == ()


def test_a_planner_proposes_and_lowers_nothing(seeded: SeededLedger) -> None:
    before = seeded.rows()
    reply = _ask(seeded, 0.9, "planner")
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
    assert seeded.rows() == before


def test_raising_takes_a_second_person(seeded: SeededLedger) -> None:
    made = _ask(seeded, 2.0)
    assert (made.status_code, made.json()["status"], "ETag" in made.headers) == (201, "open", False)
    assert _limit(seeded)["limit"]["epsilon"] == 1.0
    path = f"/v1/proposals/{made.json()['id']}"
    assert seeded.ledger.post(f"{path}/approve", {}, "planner").status_code == 403
    assert seeded.ledger.post(f"{path}/approve", {}, "budget_admin").status_code == 403
    reply = seeded.ledger.post(f"{path}/approve", {"reason": "The board agrees."}, "privacy_officer")
    assert (reply.status_code, reply.json()["status"]) == (200, "approved")
    assert (_limit(seeded)["limit"]["epsilon"], _limit(seeded)["revision"]) == (2.0, 1)
    audit_events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={seeded.budget}", "auditor").json()[
        "items"
    ]
    assert [audit_event["action"] for audit_event in audit_events] == ["budget.created", "budget.limit_changed"]
    assert (audit_events[1]["before"]["limit"]["epsilon"], audit_events[1]["after"]["limit"]["epsilon"]) == (1.0, 2.0)
    assert audit_events[1]["reason"] == "The study goes on."
    answer = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={made.json()['id']}", "auditor").json()["items"]
    assert [(audit_event["action"], audit_event["reason"]) for audit_event in answer] == [
        ("limit.proposed", "The study goes on."),
        ("limit.approved", "The board agrees."),
    ]
    assert verify(seeded.ledger.database).problems == ()


@pytest.mark.parametrize("proposer", ["privacy_officer", "admin"])
def test_nobody_approves_what_they_proposed(seeded: SeededLedger, proposer: str) -> None:
    made = _ask(seeded, 2.0, proposer).json()
    reply = seeded.ledger.post(f"/v1/proposals/{made['id']}/approve", {}, proposer)
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
    assert _limit(seeded)["revision"] == 0


def test_a_key_that_the_proposer_made_is_not_another_person(seeded: SeededLedger) -> None:
    other = seeded.ledger.post("/v1/api-keys", {"role": "privacy_officer"}, "admin").json()["key"]
    made = _ask(seeded, 2.0, "admin").json()
    headers = {"Authorization": f"Bearer {other}"}
    reply = seeded.ledger.http.post(f"/v1/proposals/{made['id']}/approve", json={}, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
    third = create_key(seeded.ledger.database, "hospital", Role.PRIVACY_OFFICER, datetime.now(UTC)).key
    headers = {"Authorization": f"Bearer {third}"}
    assert seeded.ledger.http.post(f"/v1/proposals/{made['id']}/approve", json={}, headers=headers).status_code == 200


def _key(seeded: SeededLedger, path: str, issuer: str, body: object) -> str:
    reply = seeded.ledger.http.post(path, json=body, headers={"Authorization": f"Bearer {issuer}"})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["key"])


def _rotated(seeded: SeededLedger, key: str, by: str) -> str:
    return _key(seeded, f"/v1/api-keys/{key.partition('.')[0]}/rotate", by, {"overlap_seconds": 3600})


@pytest.mark.parametrize("how", ["issued both", "rotated by another", "rotated often"])
def test_one_person_with_two_keys_is_one_person(seeded: SeededLedger, how: str) -> None:
    officer, admin = (seeded.ledger.keys["hospital", role] for role in ("privacy_officer", "admin"))
    first = officer
    if how == "issued both":
        first, other = (_key(seeded, "/v1/api-keys", officer, {"role": "privacy_officer"}) for _ in range(2))
    elif how == "rotated by another":
        other = _rotated(seeded, officer, admin)
    else:
        other = officer
        for _ in range(101):
            other = _rotated(seeded, other, other)
    sent = {"Authorization": f"Bearer {first}", "If-Match": "*"}
    body = {"limit": {"epsilon": 2.0, "delta": DELTA}, "reason": "The study goes on."}
    made = seeded.ledger.http.post(f"/v1/accounts/{seeded.budget}/limit", json=body, headers=sent)
    assert made.status_code == 201, made.text
    path = f"/v1/proposals/{made.json()['id']}/approve"
    for key in (first, other):
        reply = seeded.ledger.http.post(path, json={}, headers={"Authorization": f"Bearer {key}"})
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
    assert _limit(seeded)["revision"] == 0
    assert seeded.ledger.post(path, {}, "admin").status_code == 200


def test_a_refusal_that_was_given_stays_one_and_the_same_question_asked_anew_is_another(seeded: SeededLedger) -> None:
    steps = f"/v1/runs/{seeded.run}/steps"
    body = {"count": 2000}
    refused = seeded.ledger.post(steps, body, "trainer", Idempotency_Key="k")
    assert refused.status_code == 403
    seeded.ledger.post(f"/v1/accounts/{seeded.population}/limit", {}, "planner")
    proposal = seeded.proposal
    assert seeded.ledger.post(f"/v1/proposals/{proposal}/approve", {}, "admin").status_code == 200
    _raised(seeded, 3.0)
    again = seeded.ledger.post(steps, body, "trainer", Idempotency_Key="k")
    assert (again.status_code, again.json() | {"request_id": None}) == (403, refused.json() | {"request_id": None})
    assert seeded.ledger.post(steps, body, "trainer", Idempotency_Key="k-2").status_code == 200
    assert verify(seeded.ledger.database).problems == ()


def test_raised_by_delta_lowered_and_raised_again_it_stays_sound(seeded: SeededLedger) -> None:
    steps = f"/v1/runs/{seeded.run}/steps"
    _raised(seeded, 1.0, delta=2e-5)
    assert seeded.ledger.post(steps, {"count": 100}, "trainer").status_code == 200
    assert _ask(seeded, 0.8, "budget_admin", delta=1e-6).status_code == 200
    seeded.ledger.post(steps, {"count": 50}, "trainer")
    _raised(seeded, 1.5, delta=1e-6)
    most = seeded.ledger.post(f"{steps}?dry_run=true", {"count": 10**6}, "trainer").json()["max_count_that_fits"]
    assert seeded.ledger.post(steps, {"count": most}, "trainer").status_code == 200
    assert seeded.ledger.post(steps, {}, "trainer").status_code == 403
    assert _limit(seeded)["revision"] == 3
    assert verify(seeded.ledger.database).problems == ()


def test_below_what_is_spent_nothing_more_is_admitted_and_nothing_is_undone(seeded: SeededLedger) -> None:
    steps = f"/v1/runs/{seeded.run}/steps"
    most = seeded.ledger.post(f"{steps}?dry_run=true", {"count": 10**6}, "trainer").json()["max_count_that_fits"]
    assert seeded.ledger.post(steps, {"count": most}, "trainer").status_code == 200
    spent = seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["epsilon"]
    assert _ask(seeded, 0.6, "budget_admin").status_code == 200
    assert spent > 0.6
    assert seeded.ledger.post(steps, {}, "trainer").status_code == 403
    assert seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["epsilon"] == spent
    assert verify(seeded.ledger.database).problems == ()


def test_the_limit_of_an_account_that_nothing_was_charged_to_is_as_if_it_had_been_opened_with_it(
    seeded: SeededLedger,
) -> None:
    noise = {"type": "gaussian", "noise_multiplier": 600.0}
    planned = [{"event": noise, "count": 5000}]
    opened = seeded.ledger.budget("opened", planned=planned, limit={"epsilon": 0.5, "delta": DELTA})
    path = f"/v1/accounts/{opened['id']}/limit"
    body = {"limit": {"epsilon": 0.4, "delta": DELTA}, "reason": "Less will do."}
    assert seeded.ledger.post(path, body, "budget_admin", If_Match="*").status_code == 200
    seeded.ledger.budget("fresh", planned=planned, limit={"epsilon": 0.4, "delta": DELTA})
    counts = set()
    for budget in ("opened", "fresh"):
        run = seeded.ledger.run(f"mimic/{budget}", event=noise)
        answer = seeded.ledger.post(f"/v1/runs/{run}/steps?dry_run=true", {"count": 10**6}, "trainer")
        counts.add(answer.json()["max_count_that_fits"])
    assert len(counts) == 1
    assert verify(seeded.ledger.database).problems == ()


def test_the_precondition_is_the_limit_that_was_seen(seeded: SeededLedger) -> None:
    reply = _ask(seeded, 2.0, tag=None)
    assert (reply.status_code, reply.json()["code"]) == (428, "precondition_required")
    tag = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").headers["etag"]
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").headers["etag"] == tag
    assert _ask(seeded, 0.9, "budget_admin", tag=tag).status_code == 200
    stale = _ask(seeded, 0.8, "budget_admin", tag=tag)
    assert (stale.status_code, stale.json()["code"], stale.json()["limit_revision"]) == (412, "precondition_failed", 1)


def test_a_proposal_is_about_the_limit_that_it_was_made_for(seeded: SeededLedger) -> None:
    made = _ask(seeded, 2.0).json()
    assert _ask(seeded, 0.9, "budget_admin").status_code == 200
    reply = seeded.ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer")
    assert (reply.status_code, reply.json()["code"]) == (412, "precondition_failed")
    assert seeded.ledger.get(f"/v1/proposals/{made['id']}").json()["status"] == "open"
    assert seeded.ledger.post(f"/v1/proposals/{made['id']}/reject", {}, "privacy_officer").status_code == 200
    assert _ask(seeded, 2.0).status_code == 201


def test_a_decided_proposal_stays_decided(seeded: SeededLedger) -> None:
    made = _ask(seeded, 2.0).json()
    second = _ask(seeded, 2.5)
    assert (second.status_code, made["id"] in second.json()["detail"]) == (422, True)
    reply = seeded.ledger.post(f"/v1/proposals/{made['id']}/reject", {"reason": "A mistake."}, "planner")
    assert (reply.status_code, reply.json()["status"]) == (200, "withdrawn")
    for what in ("approve", "reject"):
        again = seeded.ledger.post(f"/v1/proposals/{made['id']}/{what}", {}, "privacy_officer")
        assert (again.status_code, again.json()["code"]) == (409, "proposal_closed")
    listed = seeded.ledger.get(f"/v1/proposals?status=withdrawn&account={seeded.budget}").json()["items"]
    assert [each["id"] for each in listed] == [made["id"]]
    assert seeded.ledger.get(f"/v1/proposals?status=open&account={seeded.budget}").json()["items"] == []


def test_lists_about_an_account_take_its_id_or_its_path_and_show_what_lies_under(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    made = _ask(seeded, 2.0).json()["id"]
    for account in (seeded.budget, "mimic/icu-team", "mimic"):
        listed = seeded.ledger.get(f"/v1/proposals?account={account}").json()["items"]
        assert made in [each["id"] for each in listed], account
        assert seeded.ledger.get(f"/v1/alerts?account={account}").json()["items"], account
    for path in ("/v1/proposals", "/v1/alerts"):
        assert seeded.ledger.get(f"{path}?account=mimic/other").json()["items"] == []
        missing = seeded.ledger.get(f"{path}?account=nope")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
        assert seeded.ledger.get(f"{path}?account=").status_code == 422


@pytest.mark.parametrize(
    ("epsilon", "delta", "code"),
    [
        (1.0, DELTA, "invalid_request"),
        (20_000.0, DELTA, "invalid_request"),
        (1.0, 0.6, "invalid_request"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(shared: SeededLedger, epsilon: float, delta: float, code: str) -> None:
    before = shared.rows()
    reply = _ask(shared, epsilon, "admin", delta=delta)
    assert (reply.status_code, reply.json()["code"]) == (422, code)
    assert shared.rows() == before


def test_delta_stays_below_one_over_the_size(seeded: SeededLedger) -> None:
    opened = seeded.ledger.population("small", size=1000, limit={"epsilon": 1.0, "delta": 1e-4})
    body = {"limit": {"epsilon": 1.0, "delta": 1e-3}, "reason": "More."}
    reply = seeded.ledger.post(f"/v1/accounts/{opened['id']}/limit", body, If_Match="*")
    assert (reply.status_code, reply.json()["code"]) == (422, "delta_too_large")


def test_a_run_without_a_limit_of_its_own_has_none_to_change(seeded: SeededLedger) -> None:
    for method in ("GET", "POST"):
        body = {"limit": {"epsilon": 1.0, "delta": DELTA}, "reason": "x"}
        headers = seeded.ledger.headers() | {"If-Match": "*"}
        reply = seeded.ledger.http.request(
            method, f"/v1/accounts/{seeded.run}/limit", json=body if method == "POST" else None, headers=headers
        )
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_under_a_reservation_the_limit_in_force_is_the_one_that_is_named(seeded: SeededLedger) -> None:
    plan = {"plan": [{"event": SAMPLED, "count": 10}]}
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer").status_code == 201
    steps = f"/v1/runs/{seeded.run}/steps"
    assert seeded.ledger.post(steps, {}, "trainer").json()["epsilon_limit"] == 1.0
    assert seeded.ledger.post(steps, {}, "trainer").json()["epsilon_limit"] == 1.0
    assert _ask(seeded, 0.7, "budget_admin").status_code == 200
    assert seeded.ledger.post(steps, {}, "trainer").json()["epsilon_limit"] == 0.7
    assert verify(seeded.ledger.database).problems == ()


@pytest.fixture
def several(seeded: SeededLedger) -> dict[str, str]:
    """A run with a limit of its own that charges two populations; the second one is the larger."""
    for name, size in (("small", 100), ("large", 1_000)):
        seeded.ledger.population(name, size=size, limit={"epsilon": 3.0, "delta": 1e-4})
        seeded.ledger.budget("team", name, limit={"epsilon": 2.0, "delta": 1e-4})
    body = {"name": "both", "budgets": ["small/team", "large/team"], "limit": {"epsilon": 1.0, "delta": 1e-5}}
    reply = seeded.ledger.post("/v1/runs", body)
    assert reply.status_code == 201, reply.text
    return {"run": str(reply.json()["id"])}


@pytest.mark.parametrize("delta", [2e-2, 5e-3])
def test_a_run_s_delta_is_below_one_over_the_size_of_each_of_its_populations(
    seeded: SeededLedger, several: dict[str, str], delta: float
) -> None:
    body = {"limit": {"epsilon": 1.0, "delta": delta}, "reason": "The study goes on."}
    reply = seeded.ledger.post(f"/v1/accounts/{several['run']}/limit", body, "planner", If_Match="*")
    assert (reply.status_code, reply.json()["code"]) == (422, "delta_too_large")


def test_a_policy_about_delta_holds_for_each_population_of_a_run(seeded: SeededLedger, several: dict[str, str]) -> None:
    wanted = {"policy": {"require_delta_below_inverse_size": True}, "reason": "The board has met."}
    seeded.ledger.population("nameless", limit={"epsilon": 3.0, "delta": 1e-4})
    seeded.ledger.budget("team", "nameless", limit={"epsilon": 2.0, "delta": 1e-4})
    body = {"name": "third", "budgets": ["small/team", "nameless/team"], "limit": {"epsilon": 1.0, "delta": 1e-5}}
    run = seeded.ledger.post("/v1/runs", body).json()["id"]
    headers = seeded.ledger.headers("admin") | {"If-Match": "*"}
    assert seeded.ledger.http.put("/v1/policy", json=wanted, headers=headers).status_code == 200
    more = {"limit": {"epsilon": 1.5, "delta": 1e-5}, "reason": "The study goes on."}
    answers = [
        seeded.ledger.post(f"/v1/accounts/{each}/limit", more, "planner", If_Match="*")
        for each in (several["run"], run)
    ]
    assert [reply.status_code for reply in answers] == [201, 403]
    assert (answers[1].json()["code"], answers[1].json()["rule"]) == (
        "policy_violation",
        "require_delta_below_inverse_size",
    )


def test_a_change_reads_the_account_once(seeded: SeededLedger) -> None:
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    engine = seeded.ledger.database.engine
    hooks.listen(engine, "before_cursor_execute", note)
    assert _ask(seeded, 0.9, "budget_admin").status_code == 200
    hooks.remove(engine, "before_cursor_execute", note)
    assert len([statement for statement in seen if "balances.spent_curve" in statement]) == 1


def test_a_population_is_named_by_its_path_as_well(seeded: SeededLedger) -> None:
    body = {"limit": {"epsilon": 2.9, "delta": DELTA}, "reason": "Less."}
    assert seeded.ledger.post("/v1/accounts/mimic/limit", body, "budget_admin", If_Match="*").status_code == 200
    assert seeded.ledger.get("/v1/accounts/mimic/limit").json()["limit"]["epsilon"] == 2.9
