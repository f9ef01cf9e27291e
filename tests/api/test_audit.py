"""The audit log: its entries, filters and scopes; and verifications."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.api.pagination import encode_cursor
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import verification_results
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED, Ledger
from tests.service.tampering import MODEL, account, set_run, shift_curve, tampering


def _read(seeded: SeededLedger, query: str = "?limit=50", role: str = "auditor") -> list[dict[str, Any]]:
    """Read the log forward."""
    reply = seeded.ledger.get(f"/v1/audit-events{query}&order=oldest", role)
    assert reply.status_code == 200, reply.text
    items: list[dict[str, Any]] = reply.json()["items"]
    return items


def test_audit_event_has_actor_action_and_request(seeded: SeededLedger) -> None:
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


def test_request_that_changes_nothing_is_no_audit_event(seeded: SeededLedger) -> None:
    before = _read(seeded, "?limit=200")
    seeded.ledger.post(f"/v1/runs/{seeded.run}/resume", None, "trainer")
    seeded.ledger.post("/v1/budgets", {"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-5}})
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert _read(seeded, "?limit=200") == before


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("query", ["", "&action=api_key.*"])
def test_chain_can_be_read_from_its_end(seeded: SeededLedger, limit: int, query: str) -> None:
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
def test_time_that_ends_before_it_begins_is_refused(shared: SeededLedger, path: str) -> None:
    reply = shared.ledger.get(path + BACKWARDS, "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "`until` (2026-11-21T00:00:00+00:00) lies before `since`" in reply.json()["detail"]
    moment = "2026-11-21T00:00:00Z"
    assert shared.ledger.get(f"{path}?since={moment}&until={moment}", "auditor").json()["items"] == []


@pytest.mark.parametrize("path", ["/v1/audit-events", "/v1/checkpoints"])
def test_cursor_that_no_database_counts_to_is_refused(shared: SeededLedger, path: str) -> None:
    reply = shared.ledger.get(f"{path}?after={encode_cursor('9' * 19)}", "auditor")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("sent", [b"", b"a b", b"x" * 65, b"\xe9"])
def test_request_that_is_not_named_plainly_gets_a_name(shared: SeededLedger, sent: bytes) -> None:
    key = shared.ledger.keys["hospital", "viewer"].encode()
    reply = shared.ledger.http.get("/v1/runs", headers=[(b"Authorization", b"Bearer " + key), (b"X-Request-Id", sent)])
    assert reply.headers["x-request-id"].startswith("req_")


LIMIT = {"epsilon": 0.5, "delta": 1e-6}


def _key(shared: SeededLedger, scope: str, role: str = "auditor") -> dict[str, str]:
    reply = shared.ledger.post("/v1/api-keys", {"role": role, "scope": scope})
    assert reply.status_code == 201, reply.text
    issued: dict[str, str] = reply.json()
    return issued


def _audit_events(shared: SeededLedger, key: str = "", query: str = "?limit=200") -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else shared.ledger.headers("auditor")
    reply = shared.ledger.http.get(f"/v1/audit-events{query}&order=oldest", headers=headers)
    assert reply.status_code == 200, reply.text
    items: list[dict[str, Any]] = reply.json()["items"]
    return items


@pytest.fixture(scope="module")
def ids(shared: SeededLedger) -> dict[str, str]:
    """A seeded ledger in which something of every kind was done within the team, and beside it."""
    ledger = shared.ledger
    found = {"team": shared.budget, "mimic": shared.population, "first": shared.run, "experiment": shared.experiment}
    found["sweep"] = str(ledger.get("/v1/budgets?path=mimic/icu-team/sweep").json()["items"][0]["id"])
    for name in ("other", "team/deep"):
        parent, _, own = f"mimic/icu-{name}".rpartition("/")
        found[name] = str(ledger.budget(own, parent)["id"])
    found["deep run"] = ledger.run("mimic/icu-team/deep")
    found["other run"] = ledger.run("mimic/icu-other")
    found["eicu"] = str(ledger.population("eicu")["id"])
    found["eicu team"] = str(ledger.budget("team", "eicu")["id"])
    both = {"name": "both", "budgets": ["mimic/icu-other", "eicu/team"], "event": SAMPLED}
    found["both"] = str(ledger.post("/v1/runs", both).json()["id"])
    for name in ("team", "other", "deep run", "other run"):
        key = _key(shared, found[name], "viewer")
        found[f"key of {name}"] = key["id"]
        assert ledger.post(f"/v1/api-keys/{key['id']}/revoke", None).status_code == 200
        assert ledger.http.get("/v1/runs", headers={"Authorization": f"Bearer {key['key']}"}).status_code == 401
    for name in ("team", "other"):
        path = f"/v1/accounts/{found[name]}"
        assert ledger.post(f"{path}/limit", {"limit": LIMIT, "reason": "Less."}, If_Match="*").status_code == 200
        more = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More."}
        found[f"proposal of {name}"] = str(ledger.post(f"{path}/limit", more, "planner", If_Match="*").json()["id"])
        assert ledger.post(f"/v1/proposals/{found[f'proposal of {name}']}/reject", {}).status_code == 200
        policy = {"policy": {"max_delta": 0.25}, "reason": "The board has met."}
        headers = ledger.headers() | {"If-Match": "*"}
        assert ledger.http.put(f"{path}/policy", json=policy, headers=headers).status_code == 200
        assert ledger.http.put(f"{path}/alert-settings", json={"thresholds": [0.7]}, headers=headers).status_code == 200
    for run in ("first", "deep run", "other run"):
        assert ledger.post(f"/v1/runs/{found[run]}/pause", None).status_code == 200
    everywhere = {"policy": {"max_delta": 0.3}, "reason": "The board has met."}
    assert (
        ledger.http.put("/v1/policy", json=everywhere, headers=ledger.headers() | {"If-Match": "*"}).status_code == 200
    )
    assert ledger.post("/v1/receivers", {"url": "https://alerts.example", "account": shared.budget}).status_code == 201
    assert ledger.post("/v1/checkpoints", {}).status_code == 201
    return found


TEAM = [
    "team",
    "first",
    "sweep",
    "experiment",
    "team/deep",
    "deep run",
    "key of team",
    "key of deep run",
    "proposal of team",
]
OTHER = ["other", "other run", "both", "key of other", "key of other run", "proposal of other"]


@pytest.mark.parametrize(
    ("scope", "names"),
    [
        ("team", TEAM),
        ("team/deep", ["team/deep", "deep run", "key of deep run"]),
        ("deep run", ["deep run", "key of deep run"]),
        ("other", OTHER),
        ("mimic", ["mimic", *TEAM, *OTHER]),
        ("eicu", ["eicu", "eicu team", "both"]),
    ],
)
def test_audit_events_of_a_scope_are_those_about_what_lies_under_it(
    shared: SeededLedger, ids: dict[str, str], scope: str, names: list[str]
) -> None:
    subjects = {ids[name] for name in names} | ({shared.proposal} if scope == "mimic" else set())
    key = _key(shared, ids[scope])
    whole = _without_auditors(_audit_events(shared))
    assert subjects <= {audit_event["subject"] for audit_event in whole}
    shown = _audit_events(shared, key["key"])
    assert key["id"] in {audit_event["subject"] for audit_event in shown}
    assert _without_auditors(shown) == [audit_event for audit_event in whole if audit_event["subject"] in subjects]


def _without_auditors(audit_events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the keys with which these tests read."""
    return [audit_event for audit_event in audit_events if (audit_event["after"] or {}).get("role") != "auditor"]


def test_filters_and_cursors_hold_within_a_scope(shared: SeededLedger, ids: dict[str, str]) -> None:
    key = _key(shared, ids["team"])["key"]
    whole = _audit_events(shared, key)
    assert _audit_events(shared, key, f"?subject={ids['other']}") == []
    assert _audit_events(shared, key, "?action=organisation.created") == []
    assert [audit_event["subject"] for audit_event in _audit_events(shared, key, "?action=run.paused")] == [
        shared.run,
        ids["deep run"],
    ]
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        headers = {"Authorization": f"Bearer {key}"}
        page = shared.ledger.http.get(f"/v1/audit-events?order=oldest&limit=2&after={after}", headers=headers).json()
        found += page["items"]
        after = page["next"]
    assert found == whole


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """A run with three steps."""
    ledger.population()
    ledger.budget()
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 3}).status_code == 200
    return ledger


def test_sound_ledger_is_called_sound(charged: Ledger) -> None:
    reply = charged.post("/v1/verifications", None, role="admin")
    assert reply.status_code == 201
    made = reply.json()
    assert {name: made.pop(name)[:4] for name in ("id", "actor", "created_at")} == {
        "id": "ver_",
        "actor": "key_",
        "created_at": f"{datetime.now(UTC):%Y}",
    }
    assert made == {
        "sound": True,
        "accounts": 3,
        "runs": 1,
        "decisions": 1,
        "reservations": 0,
        "charges": 1,
        "steps": 3,
        "audit_events": 11,
        "discrepancy_count": 0,
        "discrepancies": [],
        "quarantined_count": 0,
        "quarantined": [],
    }


def test_discrepancy_is_named_and_writes_to_its_account_stop(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        set_run(tx, chain_head=b"x" * 32)
        run = account(tx, MODEL).id
    found = charged.post("/v1/verifications", None, role="admin").json()
    [discrepancy] = found["discrepancies"]
    assert (found["sound"], discrepancy["account"], discrepancy["position"]) == (False, run, 1)
    assert MODEL in discrepancy["detail"]
    refused = charged.post(f"/v1/runs/{run}/steps", {})
    assert (refused.status_code, refused.json()["code"]) == (409, "account_quarantined")


def test_organisation_sees_nothing_of_anothers_ledger(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic", 1)
    theirs = charged.http.post("/v1/verifications", headers=charged.headers("admin", "clinic")).json()
    assert (theirs["sound"], theirs["accounts"]) == (True, 0)
    with charged.database.read(ALL_TENANTS) as tx:
        assert account(tx, "mimic").quarantine_reason is None
    assert not charged.post("/v1/verifications", None, role="admin").json()["sound"]


def test_verifications_are_kept_and_listed_newest_first(charged: Ledger) -> None:
    made = [charged.post("/v1/verifications", None, role="admin").json()]
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic", 1)
    made += [charged.post("/v1/verifications", None, role="auditor").json() for _ in range(2)]
    assert [each["sound"] for each in made] == [True, False, False]
    assert len({each["id"] for each in made}) == 3
    first = charged.get("/v1/verifications?limit=2", "auditor").json()
    assert first["items"] == made[:0:-1]
    rest = charged.get(f"/v1/verifications?limit=2&after={first['next']}", "auditor").json()
    assert rest == {"items": made[:1], "next": None}
    for each in made:
        assert charged.get(f"/v1/verifications/{each['id']}", "auditor").json() == each
    missing = charged.get("/v1/verifications/ver_1", "auditor")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_oldest_verifications_are_deleted(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_results, "KEPT", 2)
    charged.http.post("/v1/verifications", headers=charged.headers("admin", "clinic"))
    made = [charged.post("/v1/verifications", None, role="admin").json() for _ in range(4)]
    assert charged.get("/v1/verifications", "auditor").json()["items"] == [made[3], made[2]]
    theirs = charged.http.get("/v1/verifications", headers=charged.headers("admin", "clinic")).json()
    assert len(theirs["items"]) == 1
