"""Who did what: the organisation's own chain, in order, with filters and a cursor."""

from typing import Any

import pytest

from app.api.pagination import encode_cursor
from app.ledger.audit import audit_entry_hash, audit_genesis
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import audit
from tests.api.conftest import SeededLedger


def _read(seeded: SeededLedger, query: str = "?limit=50", role: str = "auditor") -> list[dict[str, Any]]:
    """Read the log forward."""
    reply = seeded.ledger.get(f"/v1/audit-events{query}&order=oldest", role)
    assert reply.status_code == 200, reply.text
    items: list[dict[str, Any]] = reply.json()["items"]
    return items


def test_every_audit_event_is_an_entry_with_who_what_and_in_which_request(seeded: SeededLedger) -> None:
    admin = seeded.ledger.keys["hospital", "admin"].partition(".")[0]
    body = {"name": "late", "parent": "mimic", "limit": {"epsilon": 0.5, "delta": 1e-6}}
    made = seeded.ledger.post("/v1/budgets", body, X_Request_Id="ticket-42")
    assert made.headers["x-request-id"] == "ticket-42"
    seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", None, "trainer")
    *_, created, paused = _read(seeded, "?limit=200")
    assert (created["action"], created["actor"], created["subject"]) == ("budget.created", admin, made.json()["id"])
    assert (created["request_id"], created["before"]) == ("ticket-42", None)
    assert created["after"]["path"] == "mimic/late"
    assert created["after"]["limit"] == {"epsilon": 0.5, "delta": 1e-6}
    assert (paused["action"], paused["before"], paused["after"]) == (
        "run.paused",
        {"status": "active"},
        {"status": "paused"},
    )
    assert paused["actor"] == seeded.ledger.keys["hospital", "trainer"].partition(".")[0]


def test_the_story_of_a_ledger_is_told_in_order(seeded: SeededLedger) -> None:
    answer = [audit_event["action"] for audit_event in _read(seeded, "?limit=200")]
    keys = ["api_key.created"] * 7
    story = ["organisation.created", *keys, "population.created", "budget.created", "run.created", "api_key.created"]
    assert answer == [*story, "limit.proposed", "receiver.created", "budget.created", "experiment.created"]


def test_what_changes_nothing_is_no_audit_event(seeded: SeededLedger) -> None:
    before = _read(seeded, "?limit=200")
    seeded.ledger.post(f"/v1/runs/{seeded.run}/resume", None, "trainer")
    seeded.ledger.post("/v1/budgets", {"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-5}})
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert _read(seeded, "?limit=200") == before


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_pages_follow_one_another(seeded: SeededLedger, limit: int) -> None:
    whole = _read(seeded, "?limit=200")
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = seeded.ledger.get(f"/v1/audit-events?order=oldest&limit={limit}&after={after}", "auditor").json()
        found += page["items"]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == whole
    assert [audit_event["position"] for audit_event in found] == list(range(len(found)))


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("query", ["", "&action=api_key.*"])
def test_the_chain_can_be_read_from_its_end(seeded: SeededLedger, limit: int, query: str) -> None:
    whole = _read(seeded, f"?limit=200{query}")
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = seeded.ledger.get(f"/v1/audit-events?limit={limit}&after={after}{query}", "auditor").json()
        found += page["items"]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == whole[::-1]


def test_filters_tell_one_audit_event_from_another(seeded: SeededLedger) -> None:
    admin = seeded.ledger.keys["hospital", "admin"].partition(".")[0]
    whole = _read(seeded, "?limit=200")
    assert [audit_event["subject"] for audit_event in _read(seeded, "?action=run.created")] == [seeded.run]
    assert {audit_event["action"] for audit_event in _read(seeded, "?action=api_key.*&limit=200")} == {
        "api_key.created"
    }
    assert _read(seeded, "?action=key.%25") == []
    assert _read(seeded, f"?actor={admin}&limit=200") == [
        audit_event for audit_event in whole if audit_event["actor"] == admin
    ]
    assert _read(seeded, f"?subject={seeded.budget}") == [
        audit_event for audit_event in whole if audit_event["subject"] == seeded.budget
    ]
    middle = whole[5]["created_at"]
    early, late = _read(seeded, f"?until={middle}&limit=200"), _read(seeded, f"?since={middle}&limit=200")
    assert early + late == whole


BACKWARDS = "?since=2026-11-22T00:00:00Z&until=2026-11-21T00:00:00Z"


@pytest.mark.parametrize("path", ["/v1/audit-events", "/v1/decisions"])
def test_a_time_that_ends_before_it_begins_is_said_to_do_so(shared: SeededLedger, path: str) -> None:
    reply = shared.ledger.get(path + BACKWARDS, "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "`until` (2026-11-21T00:00:00+00:00) lies before `since`" in reply.json()["detail"]
    moment = "2026-11-21T00:00:00Z"
    assert shared.ledger.get(f"{path}?since={moment}&until={moment}", "auditor").json()["items"] == []


@pytest.mark.parametrize(
    "query",
    ["?since=yesterday", "?since=2026-01-01T00:00:00", "?action=", "?who=x", "?after=x", "?order=best", BACKWARDS],
)
def test_a_query_that_means_nothing_is_refused(shared: SeededLedger, query: str) -> None:
    reply = shared.ledger.get(f"/v1/audit-events{query}", "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("path", ["/v1/audit-events", "/v1/checkpoints"])
def test_a_cursor_that_no_database_counts_to_is_refused(shared: SeededLedger, path: str) -> None:
    reply = shared.ledger.get(f"{path}?after={encode_cursor('9' * 19)}", "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


def test_another_organisation_has_a_chain_of_its_own(seeded: SeededLedger) -> None:
    reply = seeded.ledger.get("/v1/audit-events", "auditor", "clinic")
    assert [audit_event["action"] for audit_event in reply.json()["items"]] == [
        *["api_key.created"] * 7,
        "organisation.created",
    ]


def test_each_entry_has_the_hash_of_the_one_before_in_its_own(seeded: SeededLedger) -> None:
    with seeded.ledger.database.read(ALL_TENANTS) as tx:
        kept = list(audit.all_entries(tx))
    heads: dict[str, bytes] = {}
    for audit_event in kept:
        owner = audit_event.organisation_id
        heads[owner] = audit_entry_hash(heads.get(owner, audit_genesis(owner)), audit_event)
        assert audit_event.entry_hash == heads[owner]
    assert len(heads) == 2


def test_a_run_s_decisions_name_who_asked_and_in_which_request(seeded: SeededLedger) -> None:
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer", X_Request_Id="epoch-3")
    assert reply.status_code == 200
    trainer = seeded.ledger.keys["hospital", "trainer"].partition(".")[0]
    [*_, last] = seeded.ledger.get(f"/v1/runs/{seeded.run}/history").json()["points"]
    assert (last["actor"], last["request_id"]) == (trainer, "epoch-3")


@pytest.mark.parametrize("sent", [b"", b"a b", b"x" * 65, b"\xe9"])
def test_a_request_that_is_not_named_plainly_gets_a_name(shared: SeededLedger, sent: bytes) -> None:
    key = shared.ledger.keys["hospital", "viewer"].encode()
    reply = shared.ledger.http.get("/v1/runs", headers=[(b"Authorization", b"Bearer " + key), (b"X-Request-Id", sent)])
    assert reply.headers["x-request-id"].startswith("req_")
