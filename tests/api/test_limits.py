"""Limits: lowered by one person, raised by two, requested by trainers, and offered by refusals."""

from typing import Any

import httpx2
import pytest

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


def _limit(seeded: SeededLedger) -> dict[str, Any]:
    shown: dict[str, Any] = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").json()
    return shown


def test_limit_is_lowered_by_one_person_at_once(seeded: SeededLedger) -> None:
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


def test_limit_is_raised_by_a_second_person(seeded: SeededLedger) -> None:
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


def test_limit_is_changed_under_the_tag_that_was_read(seeded: SeededLedger) -> None:
    reply = _ask(seeded, 2.0, tag=None)
    assert (reply.status_code, reply.json()["code"]) == (428, "precondition_required")
    tag = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").headers["etag"]
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").headers["etag"] == tag
    assert _ask(seeded, 0.9, "budget_admin", tag=tag).status_code == 200
    stale = _ask(seeded, 0.8, "budget_admin", tag=tag)
    assert (stale.status_code, stale.json()["code"], stale.json()["limit_revision"]) == (412, "precondition_failed", 1)


def test_proposal_is_about_the_limit_that_it_was_made_for(seeded: SeededLedger) -> None:
    made = _ask(seeded, 2.0).json()
    assert _ask(seeded, 0.9, "budget_admin").status_code == 200
    reply = seeded.ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer")
    assert (reply.status_code, reply.json()["code"]) == (412, "precondition_failed")
    assert seeded.ledger.get(f"/v1/proposals/{made['id']}").json()["status"] == "open"
    assert seeded.ledger.post(f"/v1/proposals/{made['id']}/reject", {}, "privacy_officer").status_code == 200
    assert _ask(seeded, 2.0).status_code == 201


def test_decided_proposal_stays_decided(seeded: SeededLedger) -> None:
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


def test_lists_about_an_account_take_its_id_or_path_and_show_its_subtree(seeded: SeededLedger) -> None:
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


def test_run_without_a_limit_of_its_own_has_none_to_change(seeded: SeededLedger) -> None:
    for method in ("GET", "POST"):
        body = {"limit": {"epsilon": 1.0, "delta": DELTA}, "reason": "x"}
        headers = seeded.ledger.headers() | {"If-Match": "*"}
        reply = seeded.ledger.http.request(
            method, f"/v1/accounts/{seeded.run}/limit", json=body if method == "POST" else None, headers=headers
        )
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_step_under_a_reservation_names_the_limit_in_force(seeded: SeededLedger) -> None:
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
def test_run_s_delta_is_below_one_over_the_size_of_each_of_its_populations(
    seeded: SeededLedger, several: dict[str, str], delta: float
) -> None:
    body = {"limit": {"epsilon": 1.0, "delta": delta}, "reason": "The study goes on."}
    reply = seeded.ledger.post(f"/v1/accounts/{several['run']}/limit", body, "planner", If_Match="*")
    assert (reply.status_code, reply.json()["code"]) == (422, "delta_too_large")
