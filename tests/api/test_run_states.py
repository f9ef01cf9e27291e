"""The life of a run: each state and each action, and what a run answers in each of them."""

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.persistence.dump import changed

WAYS = {"active": [], "paused": ["pause"], "completed": ["complete"], "aborted": ["abort"]}
ACTIONS = ["pause", "resume", "complete", "abort"]
REACHED = {
    ("active", "pause"): "paused",
    ("active", "resume"): "active",
    ("active", "complete"): "completed",
    ("active", "abort"): "aborted",
    ("paused", "pause"): "paused",
    ("paused", "resume"): "active",
    ("paused", "complete"): "completed",
    ("paused", "abort"): "aborted",
    ("completed", "complete"): "completed",
    ("aborted", "abort"): "aborted",
}


def _audit_event(seeded: SeededLedger, action: str) -> httpx2.Response:
    return seeded.ledger.post(f"/v1/runs/{seeded.run}/{action}", None, "trainer")


def _bring(seeded: SeededLedger, status: str) -> None:
    for action in WAYS[status]:
        assert _audit_event(seeded, action).json()["status"] == status


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("status", WAYS)
def test_an_action_reaches_its_state_or_is_a_conflict(seeded: SeededLedger, status: str, action: str) -> None:
    _bring(seeded, status)
    before = seeded.rows()
    reply = _audit_event(seeded, action)
    reached = REACHED.get((status, action))
    if reached is None:
        assert (reply.status_code, reply.json()["code"]) == (409, "run_state_conflict")
        assert reply.json()["run_status"] == status
        assert seeded.rows() == before
        return
    assert (reply.status_code, reply.json()["status"]) == (200, reached)
    assert seeded.ledger.get(f"/v1/runs/{seeded.run}").json() == reply.json()
    assert changed(before, seeded.rows()) == (set() if reached == status else {"runs", "accounts", "audit_entries"})


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
@pytest.mark.parametrize("status", ["paused", "completed", "aborted"])
def test_only_an_active_run_takes_steps(seeded: SeededLedger, status: str, query: str) -> None:
    _bring(seeded, status)
    before = seeded.rows()
    for body in ({}, {"count": 10**6}, {"first_step": 1}, {"first_step": 9}):
        reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps{query}", body, "trainer", Idempotency_Key="k-1")
        assert (reply.status_code, reply.json()["code"]) == (409, "run_state_conflict")
        assert reply.json()["run_status"] == status
    assert seeded.rows() == before


@pytest.mark.parametrize("status", ["paused", "completed", "aborted"])
def test_what_was_answered_is_answered_again_in_any_state(seeded: SeededLedger, status: str) -> None:
    path = f"/v1/runs/{seeded.run}/steps"
    asked: list[tuple[dict[str, int], dict[str, str]]] = [
        ({"first_step": 1, "count": 3}, {}),
        ({"count": 2}, {"Idempotency_Key": "admitted"}),
        ({"count": 10**6}, {"Idempotency_Key": "refused", "X_Request_Id": "mine"}),
    ]
    first = [seeded.ledger.post(path, body, "trainer", **key) for body, key in asked]
    _bring(seeded, status)
    before = seeded.rows()
    again = [seeded.ledger.post(path, body, "trainer", **key) for body, key in asked]
    assert [reply.content for reply in again] == [reply.content for reply in first]
    assert [reply.status_code for reply in again] == [200, 200, 403]
    assert {reply.headers["idempotent-replayed"] for reply in again} == {"true"}
    assert seeded.rows() == before


@pytest.mark.both_databases
def test_a_resumed_run_goes_on_where_it_stopped(seeded: SeededLedger) -> None:
    _bring(seeded, "paused")
    _audit_event(seeded, "resume")
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"first_step": 1}, "trainer")
    assert (reply.status_code, reply.json()["next_step"]) == (200, 2)


def test_a_key_that_met_a_paused_run_is_still_good(seeded: SeededLedger) -> None:
    _bring(seeded, "paused")
    path = f"/v1/runs/{seeded.run}/steps"
    assert seeded.ledger.post(path, {}, "trainer", Idempotency_Key="k-1").status_code == 409
    _audit_event(seeded, "resume")
    reply = seeded.ledger.post(path, {}, "trainer", Idempotency_Key="k-1")
    assert reply.status_code == 200
    assert "idempotent-replayed" not in reply.headers


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_what_was_spent_stays_spent(seeded: SeededLedger, action: str) -> None:
    paths = [f"/v1/budgets/{seeded.budget}", f"/v1/populations/{seeded.population}"]
    before = [seeded.ledger.get(path).content for path in paths]
    run = seeded.ledger.get(f"/v1/runs/{seeded.run}").json()
    assert _audit_event(seeded, action).json()["epsilon"] == run["epsilon"] > 0
    assert [seeded.ledger.get(path).content for path in paths] == before


@pytest.mark.parametrize("action", ACTIONS)
def test_a_run_that_is_not_there_has_no_state(shared: SeededLedger, action: str) -> None:
    for run in ("run_nothing", shared.budget, shared.population, "%00", "..%2f"):
        reply = shared.ledger.post(f"/v1/runs/{run}/{action}", None, "trainer")
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("action", "reason", "told"),
    [
        ("complete", None, "finished"),
        ("complete", "finished", "finished"),
        ("complete", "budget_exhausted", "budget_exhausted"),
        ("abort", None, "aborted"),
        ("abort", "lost", "lost"),
    ],
)
def test_an_end_has_a_reason_and_a_time(seeded: SeededLedger, action: str, reason: str | None, told: str) -> None:
    run = seeded.ledger.run(name="ending")
    before = seeded.ledger.get(f"/v1/runs/{run}").json()
    assert (before["ended_at"], before["end_reason"]) == (None, None)
    body = {} if reason is None else {"reason": reason}
    after = seeded.ledger.post(f"/v1/runs/{run}/{action}", body, "trainer").json()
    assert (after["end_reason"], after["steps_remaining"], after["binding_account"]) == (told, None, None)
    assert after["ended_at"] is not None
    assert seeded.ledger.post(f"/v1/runs/{run}/{action}", body, "trainer").json() == after


@pytest.mark.parametrize(("action", "reason"), [("complete", "lost"), ("abort", "finished")])
def test_an_end_for_another_reason_is_refused(seeded: SeededLedger, action: str, reason: str) -> None:
    run = seeded.ledger.run(name="ending")
    reply = seeded.ledger.post(f"/v1/runs/{run}/{action}", {"reason": reason}, "trainer")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "`reason`" in reply.json()["detail"]
