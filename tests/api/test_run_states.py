"""The life of a run: each state and each action, and what a run answers in each of them."""

import httpx2
import pytest

from tests.api.conftest import House
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


def _act(home: House, action: str) -> httpx2.Response:
    return home.ledger.post(f"/v1/runs/{home.run}/{action}", None, "trainer")


def _bring(home: House, status: str) -> None:
    for action in WAYS[status]:
        assert _act(home, action).json()["status"] == status


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("status", WAYS)
def test_an_action_reaches_its_state_or_is_a_conflict(home: House, status: str, action: str) -> None:
    _bring(home, status)
    before = home.rows()
    reply = _act(home, action)
    reached = REACHED.get((status, action))
    if reached is None:
        assert (reply.status_code, reply.json()["code"]) == (409, "run_state_conflict")
        assert reply.json()["run_status"] == status
        assert home.rows() == before
        return
    assert (reply.status_code, reply.json()["status"]) == (200, reached)
    assert home.ledger.get(f"/v1/runs/{home.run}").json() == reply.json()
    assert changed(before, home.rows()) == (set() if reached == status else {"runs", "accounts", "audit_entries"})


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
@pytest.mark.parametrize("status", ["paused", "completed", "aborted"])
def test_only_an_active_run_takes_steps(home: House, status: str, query: str) -> None:
    _bring(home, status)
    before = home.rows()
    for body in ({}, {"count": 10**6}, {"first_step": 1}, {"first_step": 9}):
        reply = home.ledger.post(f"/v1/runs/{home.run}/steps{query}", body, "trainer", Idempotency_Key="k-1")
        assert (reply.status_code, reply.json()["code"]) == (409, "run_state_conflict")
        assert reply.json()["run_status"] == status
    assert home.rows() == before


@pytest.mark.parametrize("status", ["paused", "completed", "aborted"])
def test_what_was_answered_is_answered_again_in_any_state(home: House, status: str) -> None:
    path = f"/v1/runs/{home.run}/steps"
    asked: list[tuple[dict[str, int], dict[str, str]]] = [
        ({"first_step": 1, "count": 3}, {}),
        ({"count": 2}, {"Idempotency_Key": "admitted"}),
        ({"count": 10**6}, {"Idempotency_Key": "refused", "X_Request_Id": "mine"}),
    ]
    first = [home.ledger.post(path, body, "trainer", **key) for body, key in asked]
    _bring(home, status)
    before = home.rows()
    again = [home.ledger.post(path, body, "trainer", **key) for body, key in asked]
    assert [reply.content for reply in again] == [reply.content for reply in first]
    assert [reply.status_code for reply in again] == [200, 200, 403]
    assert {reply.headers["idempotent-replayed"] for reply in again} == {"true"}
    assert home.rows() == before


def test_a_resumed_run_goes_on_where_it_stopped(home: House) -> None:
    _bring(home, "paused")
    _act(home, "resume")
    reply = home.ledger.post(f"/v1/runs/{home.run}/steps", {"first_step": 1}, "trainer")
    assert (reply.status_code, reply.json()["next_step"]) == (200, 2)


def test_a_key_that_met_a_paused_run_is_still_good(home: House) -> None:
    _bring(home, "paused")
    path = f"/v1/runs/{home.run}/steps"
    assert home.ledger.post(path, {}, "trainer", Idempotency_Key="k-1").status_code == 409
    _act(home, "resume")
    reply = home.ledger.post(path, {}, "trainer", Idempotency_Key="k-1")
    assert reply.status_code == 200
    assert "idempotent-replayed" not in reply.headers


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_what_was_spent_stays_spent(home: House, action: str) -> None:
    paths = [f"/v1/budgets/{home.budget}", f"/v1/populations/{home.population}"]
    before = [home.ledger.get(path).content for path in paths]
    run = home.ledger.get(f"/v1/runs/{home.run}").json()
    assert _act(home, action).json()["epsilon"] == run["epsilon"] > 0
    assert [home.ledger.get(path).content for path in paths] == before


@pytest.mark.parametrize("action", ACTIONS)
def test_a_run_that_is_not_there_has_no_state(house: House, action: str) -> None:
    for run in ("run_nothing", house.budget, house.population, "%00", "..%2f"):
        reply = house.ledger.post(f"/v1/runs/{run}/{action}", None, "trainer")
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
