"""Who did what: the organisation's own chain, in order, with filters and a cursor."""

from typing import Any

import pytest

from app.api.pagination import encode_cursor
from app.ledger.audit import audit_entry_hash, audit_genesis
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import audit
from tests.api.conftest import House


def _read(home: House, query: str = "?limit=50", role: str = "auditor") -> list[dict[str, Any]]:
    """Read the log forward."""
    reply = home.ledger.get(f"/v1/audit-events{query}&order=oldest", role)
    assert reply.status_code == 200, reply.text
    items: list[dict[str, Any]] = reply.json()["items"]
    return items


def test_every_act_is_an_entry_with_who_what_and_in_which_request(home: House) -> None:
    admin = home.ledger.keys["hospital", "admin"].partition(".")[0]
    body = {"name": "late", "parent": "mimic", "limit": {"epsilon": 0.5, "delta": 1e-6}}
    made = home.ledger.post("/v1/budgets", body, X_Request_Id="ticket-42")
    assert made.headers["x-request-id"] == "ticket-42"
    home.ledger.post(f"/v1/runs/{home.run}/pause", None, "trainer")
    *_, created, paused = _read(home, "?limit=200")
    assert (created["action"], created["actor"], created["subject"]) == ("budget.created", admin, made.json()["id"])
    assert (created["request_id"], created["before"]) == ("ticket-42", None)
    assert created["after"]["path"] == "mimic/late"
    assert created["after"]["limit"] == {"epsilon": 0.5, "delta": 1e-6}
    assert (paused["action"], paused["before"], paused["after"]) == (
        "run.paused",
        {"status": "active"},
        {"status": "paused"},
    )
    assert paused["actor"] == home.ledger.keys["hospital", "trainer"].partition(".")[0]


def test_the_story_of_a_ledger_is_told_in_order(home: House) -> None:
    told = [act["action"] for act in _read(home, "?limit=200")]
    keys = ["api_key.created"] * 7
    story = ["organisation.created", *keys, "population.created", "budget.created", "run.created", "api_key.created"]
    assert told == [*story, "limit.proposed", "webhook.created", "budget.created", "experiment.created"]


def test_what_changes_nothing_is_no_act(home: House) -> None:
    before = _read(home, "?limit=200")
    home.ledger.post(f"/v1/runs/{home.run}/resume", None, "trainer")
    home.ledger.post("/v1/budgets", {"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-5}})
    home.ledger.post(f"/v1/runs/{home.run}/steps", {}, "trainer")
    assert _read(home, "?limit=200") == before


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_pages_follow_one_another(home: House, limit: int) -> None:
    whole = _read(home, "?limit=200")
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = home.ledger.get(f"/v1/audit-events?order=oldest&limit={limit}&after={after}", "auditor").json()
        found += page["items"]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == whole
    assert [act["position"] for act in found] == list(range(len(found)))


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("query", ["", "&action=api_key.*"])
def test_the_chain_can_be_read_from_its_end(home: House, limit: int, query: str) -> None:
    whole = _read(home, f"?limit=200{query}")
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = home.ledger.get(f"/v1/audit-events?limit={limit}&after={after}{query}", "auditor").json()
        found += page["items"]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == whole[::-1]


def test_filters_tell_one_act_from_another(home: House) -> None:
    admin = home.ledger.keys["hospital", "admin"].partition(".")[0]
    whole = _read(home, "?limit=200")
    assert [act["subject"] for act in _read(home, "?action=run.created")] == [home.run]
    assert {act["action"] for act in _read(home, "?action=api_key.*&limit=200")} == {"api_key.created"}
    assert _read(home, "?action=key.%25") == []
    assert _read(home, f"?actor={admin}&limit=200") == [act for act in whole if act["actor"] == admin]
    assert _read(home, f"?subject={home.budget}") == [act for act in whole if act["subject"] == home.budget]
    middle = whole[5]["created_at"]
    early, late = _read(home, f"?until={middle}&limit=200"), _read(home, f"?since={middle}&limit=200")
    assert early + late == whole


BACKWARDS = "?since=2026-11-22T00:00:00Z&until=2026-11-21T00:00:00Z"


@pytest.mark.parametrize("path", ["/v1/audit-events", "/v1/decisions"])
def test_a_time_that_ends_before_it_begins_is_said_to_do_so(house: House, path: str) -> None:
    reply = house.ledger.get(path + BACKWARDS, "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "`until` (2026-11-21T00:00:00+00:00) lies before `since`" in reply.json()["detail"]
    moment = "2026-11-21T00:00:00Z"
    assert house.ledger.get(f"{path}?since={moment}&until={moment}", "auditor").json()["items"] == []


@pytest.mark.parametrize(
    "query",
    ["?since=yesterday", "?since=2026-01-01T00:00:00", "?action=", "?who=x", "?after=x", "?order=best", BACKWARDS],
)
def test_a_query_that_means_nothing_is_refused(house: House, query: str) -> None:
    reply = house.ledger.get(f"/v1/audit-events{query}", "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("path", ["/v1/audit-events", "/v1/checkpoints"])
def test_a_cursor_that_no_database_counts_to_is_refused(house: House, path: str) -> None:
    reply = house.ledger.get(f"{path}?after={encode_cursor('9' * 19)}", "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


def test_another_organisation_has_a_chain_of_its_own(home: House) -> None:
    reply = home.ledger.get("/v1/audit-events", "auditor", "clinic")
    assert [act["action"] for act in reply.json()["items"]] == [*["api_key.created"] * 7, "organisation.created"]


def test_each_entry_has_the_hash_of_the_one_before_in_its_own(home: House) -> None:
    with home.ledger.database.read(ALL_TENANTS) as tx:
        kept = list(audit.all_entries(tx))
    heads: dict[str, bytes] = {}
    for act in kept:
        owner = act.organisation_id
        heads[owner] = audit_entry_hash(heads.get(owner, audit_genesis(owner)), act)
        assert act.entry_hash == heads[owner]
    assert len(heads) == 2


def test_a_run_s_decisions_name_who_asked_and_in_which_request(home: House) -> None:
    reply = home.ledger.post(f"/v1/runs/{home.run}/steps", {}, "trainer", X_Request_Id="epoch-3")
    assert reply.status_code == 200
    trainer = home.ledger.keys["hospital", "trainer"].partition(".")[0]
    [*_, last] = home.ledger.get(f"/v1/runs/{home.run}/history").json()["points"]
    assert (last["actor"], last["request_id"]) == (trainer, "epoch-3")


@pytest.mark.parametrize("sent", [b"", b"a b", b"x" * 65, b"\xe9"])
def test_a_request_that_is_not_named_plainly_gets_a_name(house: House, sent: bytes) -> None:
    key = house.ledger.keys["hospital", "viewer"].encode()
    reply = house.ledger.http.get("/v1/runs", headers=[(b"Authorization", b"Bearer " + key), (b"X-Request-Id", sent)])
    assert reply.headers["x-request-id"].startswith("req_")
