"""The audit log: its entries, filters and scopes; and verifications."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.api.pagination import encode_cursor
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import verification_results
from tests.api.conftest import SeededLedger
from tests.api.test_lists import walk
from tests.api.trainer import is_refused, issue
from tests.conftest import SAMPLED, Ledger
from tests.service.tampering import MODEL, account, set_run, shift_curve, tampering


def _read(seeded: SeededLedger, query: str = "?limit=200", role: str = "auditor") -> list[dict[str, Any]]:
    """Read the log forward."""
    return list(seeded.ledger.get(f"/v1/audit-events{query}&order=oldest", role).raise_for_status().json()["items"])


def test_audit_event_has_actor_action_and_request_and_a_repeat_is_none(seeded: SeededLedger) -> None:
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
    assert [paused[side]["status"] for side in ("before", "after")] == ["active", "paused"]
    assert paused["actor"] == seeded.ledger.keys["hospital", "trainer"].partition(".")[0]
    seeded.ledger.post(f"/v1/runs/{seeded.run}/resume", None, "trainer")
    before = _read(seeded, "?limit=200")
    seeded.ledger.post(f"/v1/runs/{seeded.run}/resume", None, "trainer")
    seeded.ledger.post("/v1/budgets", {"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-5}})
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert _read(seeded, "?limit=200") == before


def test_chain_can_be_read_from_its_end(seeded: SeededLedger) -> None:
    for limit, query in ((3, ""), (50, ""), (2, "action=api_key.*")):
        found = walk(seeded.ledger, f"/v1/audit-events?{query}", limit, "auditor")
        assert found == _read(seeded, f"?limit=200&{query}".rstrip("&"))[::-1]


def test_filters_tell_one_audit_event_from_another(seeded: SeededLedger) -> None:
    admin, whole = seeded.ledger.keys["hospital", "admin"].partition(".")[0], _read(seeded)
    assert [event["subject"] for event in _read(seeded, "?action=run.created")] == [seeded.run]
    assert {event["action"] for event in _read(seeded, "?action=api_key.*&limit=200")} == {"api_key.created"}
    assert _read(seeded, "?action=key.%25") == []
    for name, value in (("actor", admin), ("subject", seeded.budget)):
        assert _read(seeded, f"?{name}={value}&limit=200") == [event for event in whole if event[name] == value]
    middle = whole[5]["created_at"]
    early, late = _read(seeded, f"?until={middle}&limit=200"), _read(seeded, f"?since={middle}&limit=200")
    assert early + late == whole


def test_time_that_ends_before_it_begins_or_a_cursor_beyond_all_is_refused(shared: SeededLedger) -> None:
    earlier, later = "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"
    for path in ("/v1/audit-events", "/v1/decisions"):
        backwards = shared.ledger.get(f"{path}?since={later}&until={earlier}", "auditor")
        detail = is_refused(backwards, 422, "invalid_request")["detail"]
        assert "`until` (2026-11-21T00:00:00+00:00) lies before `since`" in detail
        assert shared.ledger.get(f"{path}?since={later}&until={later}", "auditor").json()["items"] == []
    for path in ("/v1/audit-events", "/v1/checkpoints"):
        is_refused(shared.ledger.get(f"{path}?after={encode_cursor('9' * 19)}", "auditor"), 422, "invalid_request")


LIMIT = {"epsilon": 0.5, "delta": 1e-6}


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
        key = issue(ledger, "revoked", "viewer", found[name])
        found[f"key of {name}"] = key["id"]
        assert ledger.post(f"/v1/api-keys/{key['id']}/revoke", None).status_code == 200
        assert ledger.get("/v1/runs", "revoked").status_code == 401
    for name in ("team", "other"):
        assert ledger.set_limit(found[name], LIMIT["epsilon"], delta=LIMIT["delta"]).status_code == 200
        found[f"proposal of {name}"] = str(ledger.set_limit(found[name], 2.0, "planner").json()["id"])
        assert ledger.post(f"/v1/proposals/{found[f'proposal of {name}']}/reject", {}).status_code == 200
        assert ledger.set_policy({"max_delta": 0.25}, found[name]).status_code == 200
        assert ledger.put(f"/v1/accounts/{found[name]}/alert-settings", {"thresholds": [0.7]}).status_code == 200
    for run in ("first", "deep run", "other run"):
        assert ledger.post(f"/v1/runs/{found[run]}/pause", None).status_code == 200
    assert ledger.set_policy({"max_delta": 0.3}).status_code == 200
    assert ledger.post("/v1/receivers", {"url": "https://alerts.example", "account": shared.budget}).status_code == 201
    assert ledger.post("/v1/checkpoints", {}).status_code == 201
    return found


TEAM = ["team", "first", "sweep", "experiment", "team/deep", "deep run"]
TEAM += ["key of team", "key of deep run", "proposal of team"]
OTHER = ["other", "other run", "both", "key of other", "key of other run", "proposal of other"]
SCOPES = {
    "team": TEAM,
    "team/deep": ["team/deep", "deep run", "key of deep run"],
    "deep run": ["deep run", "key of deep run"],
    "other": OTHER,
    "mimic": ["mimic", *TEAM, *OTHER],
    "eicu": ["eicu", "eicu team", "both"],
}


@pytest.mark.parametrize("scope", SCOPES)
def test_audit_events_of_a_scope_are_those_about_what_lies_under_it(
    shared: SeededLedger, ids: dict[str, str], scope: str
) -> None:
    subjects = {ids[name] for name in SCOPES[scope]} | ({shared.proposal} if scope == "mimic" else set())
    key = issue(shared.ledger, "bound", "auditor", ids[scope])
    whole = _without_auditors(_read(shared))
    assert subjects <= {event["subject"] for event in whole}
    shown = _read(shared, role="bound")
    assert key["id"] in {event["subject"] for event in shown}
    assert _without_auditors(shown) == [event for event in whole if event["subject"] in subjects]
    outside = ids["eicu" if scope != "eicu" else "team"]
    assert _read(shared, f"?subject={outside}", "bound") == []
    assert _read(shared, "?action=organisation.created", "bound") == []


def _without_auditors(audit_events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the keys with which these tests read."""
    return [event for event in audit_events if (event["after"] or {}).get("role") != "auditor"]


def _charged(ledger: Ledger) -> None:
    """A run with three steps."""
    ledger.population()
    ledger.budget()
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 3}).status_code == 200


FURNISHED = {"charged": _charged}


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    return ledger


def test_sound_ledger_is_called_sound_and_a_discrepancy_named_whose_account_stops(charged: Ledger) -> None:
    reply = charged.post("/v1/verifications", None, role="admin")
    assert reply.status_code == 201
    made = reply.json()
    begins = {"id": "ver_", "actor": "key_", "created_at": f"{datetime.now(UTC):%Y}"}
    assert {name: made.pop(name)[:4] for name in begins} == begins
    counts = {"accounts": 3, "runs": 1, "decisions": 1, "reservations": 0, "charges": 1, "steps": 3, "audit_events": 11}
    nothing = {"discrepancy_count": 0, "discrepancies": [], "quarantined_count": 0, "quarantined": []}
    assert made == {"sound": True} | counts | nothing
    with tampering(charged.database) as tx:
        set_run(tx, chain_head=b"x" * 32)
        run = account(tx, MODEL).id
    found = charged.post("/v1/verifications", None, role="admin").json()
    [discrepancy] = found["discrepancies"]
    assert (found["sound"], discrepancy["account"], discrepancy["position"]) == (False, run, 1)
    assert MODEL in discrepancy["detail"]
    is_refused(charged.post(f"/v1/runs/{run}/steps", {}), 409, "account_quarantined")


def test_organisation_sees_nothing_of_anothers_ledger(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic", 1)
    theirs = charged.http.post("/v1/verifications", headers=charged.headers("admin", "clinic")).json()
    assert (theirs["sound"], theirs["accounts"]) == (True, 0)
    with charged.database.read(ALL_TENANTS) as tx:
        assert account(tx, "mimic").quarantine_reason is None
    assert not charged.post("/v1/verifications", None, role="admin").json()["sound"]


def test_verifications_are_kept_and_listed_newest_first(charged: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [charged.post("/v1/verifications", None, role="admin").json()]
    with tampering(charged.database) as tx:
        shift_curve(tx, "mimic", 1)
    made += [charged.post("/v1/verifications", None, role="auditor").json() for _ in range(2)]
    assert [each["sound"] for each in made] == [True, False, False]
    first = charged.get("/v1/verifications?limit=2", "auditor").json()
    assert first["items"] == made[:0:-1]
    rest = charged.get(f"/v1/verifications?limit=2&after={first['next']}", "auditor").json()
    assert rest == {"items": made[:1], "next": None}
    for each in made:
        assert charged.get(f"/v1/verifications/{each['id']}", "auditor").json() == each
    is_refused(charged.get("/v1/verifications/ver_1", "auditor"), 404, "not_found")
    issue(charged, "bound", "auditor", "mimic")
    for path in ("verifications", f"verifications/{made[0]['id']}"):
        is_refused(charged.get(f"/v1/{path}", "bound"), 403, "permission_denied")
    monkeypatch.setattr(verification_results, "KEPT", 2)
    assert charged.http.post("/v1/verifications", headers=charged.headers("admin", "clinic")).status_code == 201
    made.append(charged.post("/v1/verifications", None, role="admin").json())
    assert charged.get("/v1/verifications", "auditor").json()["items"] == made[:1:-1]
    assert len(charged.get("/v1/verifications", "auditor", "clinic").json()["items"]) == 1
