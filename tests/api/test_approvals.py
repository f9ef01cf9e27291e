"""Approvals: runs and populations that another person lets begin, and who is another person."""

from typing import Any

import httpx2
import pytest

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.test_policies import GAUSSIAN, LIMIT, loosen, put, violation
from tests.conftest import SAMPLED


@pytest.fixture
def watched(seeded: SeededLedger) -> SeededLedger:
    """A seeded ledger whose budget wants an approval above epsilon 0.4."""
    assert put(seeded, {"approval_above_epsilon": 0.4}, seeded.budget).status_code == 200
    return seeded


def _register(seeded: SeededLedger, role: str = "trainer", **terms: object) -> dict[str, Any]:
    body = {"name": "large", "budget": "mimic/icu-team", "event": GAUSSIAN, "limit": LIMIT} | terms
    body = {name: value for name, value in body.items() if value is not None}
    reply = seeded.ledger.post("/v1/runs", body, role)
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def _proposal(seeded: SeededLedger, run: str) -> dict[str, Any]:
    (found,) = seeded.ledger.get(f"/v1/proposals?account={run}").json()["items"]
    answer: dict[str, Any] = found
    return answer


def _decide(seeded: SeededLedger, run: str, what: str, role: str = "privacy_officer") -> httpx2.Response:
    return seeded.ledger.post(f"/v1/proposals/{_proposal(seeded, run)['id']}/{what}", {"reason": "Seen."}, role)


def _status(seeded: SeededLedger, run: str) -> str:
    return str(seeded.ledger.get(f"/v1/runs/{run}").json()["status"])


def test_run_above_the_threshold_begins_when_another_person_approves_it(watched: SeededLedger) -> None:
    made = _register(watched)
    run, steps = made["id"], f"/v1/runs/{made['id']}/steps"
    assert made["status"] == "pending"
    answer = _proposal(watched, run)
    assert (answer["kind"], answer["status"]) == ("run", "open")
    assert answer["proposed"] == {
        "epsilon": 0.5,
        "delta": 1e-6,
        "approval_above_epsilon": 0.4,
        "limited": True,
        "planned": False,
    }
    before = watched.rows()
    for refused in (
        watched.ledger.post(steps, {}, "trainer"),
        watched.ledger.post(f"{steps}?dry_run=true", {}, "trainer"),
        watched.ledger.post(f"/v1/runs/{run}/reservations", {"plan": [{"event": SAMPLED}]}, "trainer"),
        watched.ledger.post(f"/v1/runs/{run}/attempts", {}, "trainer"),
        *(watched.ledger.post(f"/v1/runs/{run}/{action}", None, "admin") for action in ("pause", "resume", "complete")),
    ):
        assert (refused.status_code, refused.json()["run_status"]) == (409, "pending")
    assert _decide(watched, run, "approve", "trainer").status_code == 403
    assert watched.rows() == before
    assert verify(watched.ledger.database).problems == ()
    assert _decide(watched, run, "approve").status_code == 200
    assert _status(watched, run) == "active"
    assert watched.ledger.post(steps, {"event": GAUSSIAN}, "trainer").status_code == 200
    audit_events = watched.ledger.get(f"/v1/audit-events?order=oldest&subject={run}", "auditor").json()["items"]
    assert [audit_event["action"] for audit_event in audit_events] == ["run.created", "run.activated"]
    assert verify(watched.ledger.database).problems == ()


def test_key_that_reaches_one_of_several_budgets_does_not_approve_a_run(watched: SeededLedger) -> None:
    ledger = watched.ledger
    ledger.population("donors", limit={"epsilon": 8.0, "delta": 1e-5})
    ledger.budget("lab", "donors")
    made = _register(watched, budget=None, budgets=["donors/lab", "mimic/icu-team"])
    path = f"/v1/proposals/{_proposal(watched, made['id'])['id']}/approve"
    for scope in ("donors", made["id"]):
        bound = ledger.post("/v1/api-keys", {"role": "privacy_officer", "scope": scope}).json()["key"]
        reply = ledger.http.post(path, json={}, headers={"Authorization": f"Bearer {bound}"})
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
    assert _status(watched, made["id"]) == "pending"
    assert ledger.post(path, {}, "privacy_officer").status_code == 200
    loosen(watched, {"approvers_to_raise_limit": 1})
    loosen(watched, {}, watched.budget)
    more = {"limit": {"epsilon": 0.9, "delta": 1e-6}, "reason": "More is needed."}
    path, sent = f"/v1/accounts/{made['id']}/limit", {"Authorization": f"Bearer {bound}", "If-Match": "*"}
    assert ledger.http.post(path, json=more, headers=sent).status_code == 403
    assert ledger.post(path, more, "privacy_officer", If_Match="*").status_code == 200


@pytest.mark.parametrize("limited", [True, False])
def test_run_that_may_spend_more_than_was_proposed_is_not_approved(seeded: SeededLedger, limited: bool) -> None:  # noqa: FBT001
    ledger = seeded.ledger
    loosen(seeded, {"approvers_to_raise_limit": 1})
    small, more = {"epsilon": 0.1, "delta": 1e-6}, {"limit": {"epsilon": 0.3, "delta": 1e-6}, "reason": "More."}
    budget = str(ledger.budget("lab", limit=small)["id"])
    assert put(seeded, {"max_unapproved_epsilon_per_budget": 0.3}, budget).status_code == 200
    other = _register(seeded, budget="mimic/lab", limit={"epsilon": 0.3, "delta": 1e-6})["id"]
    run = _register(seeded, budget="mimic/lab", limit=small if limited else None)["id"]
    assert _status(seeded, run) == "pending"
    assert ledger.post(f"/v1/runs/{other}/abort", None, "trainer").status_code == 200
    raised = f"/v1/accounts/{run if limited else budget}/limit"
    assert ledger.post(raised, more, "privacy_officer", If_Match="*").status_code == 200
    refused = _decide(seeded, run, "approve", "admin")
    assert (refused.status_code, refused.json()["epsilon"]) == (412, 0.3), refused.text
    assert _status(seeded, run) == "pending"
    lowered = {"limit": small, "reason": "As it was proposed."}
    assert ledger.post(raised, lowered, "privacy_officer", If_Match="*").status_code == 200
    assert _decide(seeded, run, "approve", "admin").status_code == 200


@pytest.mark.parametrize("end", ["reject", "abort"])
def test_proposal_of_a_run_that_reported_too_much_while_it_waited_comes_to_an_end(
    watched: SeededLedger, end: str
) -> None:
    run = _register(watched)["id"]
    report = {"count": 10**6, "mode": "report"}
    assert watched.ledger.post(f"/v1/runs/{run}/steps", report, "trainer").json()["overdrawn"]
    assert _decide(watched, run, "approve").status_code == 412
    if end == "reject":
        assert _decide(watched, run, "reject").status_code == 200
        assert (_status(watched, run), _proposal(watched, run)["status"]) == ("overdrawn", "rejected")
    else:
        assert watched.ledger.post(f"/v1/runs/{run}/abort", None, "trainer").status_code == 200
        assert (_status(watched, run), _proposal(watched, run)["status"]) == ("aborted", "superseded")
    assert verify(watched.ledger.database).problems == ()


@pytest.mark.parametrize(("role", "status"), [("privacy_officer", "rejected"), ("trainer", "withdrawn")])
def test_rejected_or_withdrawn_run_is_aborted(watched: SeededLedger, role: str, status: str) -> None:
    run = _register(watched)["id"]
    reply = _decide(watched, run, "reject", role)
    assert (reply.status_code, reply.json()["status"]) == (200, status)
    assert _status(watched, run) == "aborted"
    assert verify(watched.ledger.database).problems == ()


def test_plan_of_a_pending_run_is_not_reserved(watched: SeededLedger) -> None:
    plan = [{"event": SAMPLED, "count": 1000}]
    made = _register(watched, limit=None, plan=plan)
    assert (made["status"], made["reservation"]) == ("pending", None)
    assert _proposal(watched, made["id"])["proposed"]["planned"] is True
    assert _decide(watched, made["id"], "approve").status_code == 200
    path = f"/v1/runs/{made['id']}/reservations"
    assert watched.ledger.post(path, {"plan": [{"event": SAMPLED, "count": 10}]}, "trainer").status_code == 201
    assert verify(watched.ledger.database).problems == ()


@pytest.mark.parametrize(
    ("terms", "status"),
    [
        ({"limit": {"epsilon": 0.4, "delta": 1e-6}}, "active"),
        ({"limit": None}, "pending"),  # nothing but its budget's limit holds it
        ({"limit": None, "plan": [{"event": GAUSSIAN, "count": 2}]}, "active"),
        ({"limit": None, "planned": [{"event": GAUSSIAN, "count": 2}]}, "active"),
        ({"limit": None, "planned": [{"event": GAUSSIAN | {"noise_multiplier": 0.01}, "count": 1}]}, "pending"),
    ],
    ids=str,
)
def test_run_waits_by_its_limit_or_its_plan_or_the_limit_of_its_budget(
    watched: SeededLedger, terms: dict[str, Any], status: str
) -> None:
    assert _register(watched, **terms)["status"] == status


def test_policy_that_is_stricter_by_now_holds_for_the_approval(watched: SeededLedger) -> None:
    run = _register(watched)["id"]
    assert put(watched, {"max_epsilon": 0.3}).status_code == 200
    assert violation(_decide(watched, run, "approve")) == ("organisation", "max_epsilon", 0.5, 0.3)
    assert (_status(watched, run), _proposal(watched, run)["status"]) == ("pending", "open")
    assert _decide(watched, run, "reject").status_code == 200


def test_one_person_raises_no_limit_of_a_run_past_the_threshold(watched: SeededLedger) -> None:
    loosen(watched, {"approvers_to_raise_limit": 1})
    run = _register(watched, limit={"epsilon": 0.3, "delta": 1e-6})["id"]

    def raised(epsilon: float) -> int:
        body = {"limit": {"epsilon": epsilon, "delta": 1e-6}, "reason": "More is needed."}
        path = f"/v1/accounts/{run}/limit"
        return watched.ledger.post(path, body, "privacy_officer", If_Match="*").status_code

    assert (raised(0.4), raised(0.41)) == (200, 201)
    assert watched.ledger.get(f"/v1/accounts/{run}/limit").json()["limit"]["epsilon"] == 0.4
