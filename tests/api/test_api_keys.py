"""API keys: issued within what one may lend, rotated with an overlap, revoked; each act stands in the chain."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.clocks import stand_at
from tests.conftest import SAMPLED

LENT = {
    "budget_admin": {"viewer", "trainer", "planner"},
    "privacy_officer": {"viewer", "trainer", "planner", "budget_admin", "privacy_officer", "auditor"},
    "admin": {"viewer", "trainer", "planner", "budget_admin", "privacy_officer", "auditor", "admin"},
}


def _issued(seeded: SeededLedger, role: str, issuer: str = "admin", **terms: object) -> dict[str, Any]:
    reply = seeded.ledger.post("/v1/api-keys", {"role": role} | terms, issuer)
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def _asks(seeded: SeededLedger, key: str, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    reply = seeded.ledger.http.request(method, path, json=body, headers={"Authorization": f"Bearer {key}"})
    return reply.status_code, reply.json()


@pytest.fixture
def at_once(seeded: SeededLedger) -> None:
    """Each request looks its key up."""
    state: Any = seeded.ledger.http.app.state
    state.keys.cache_seconds = -1.0


@pytest.fixture
def in_two_hours(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock by which keys end."""

    def move() -> None:
        now = datetime.now(UTC) + timedelta(hours=2)
        stand_at(monkeypatch, lambda: now)

    return move


@pytest.mark.parametrize("role", sorted(LENT["admin"]))
@pytest.mark.parametrize("issuer", LENT)
def test_a_role_lends_what_is_its_own_to_lend(shared: SeededLedger, issuer: str, role: str) -> None:
    before = shared.rows()
    reply = shared.ledger.post("/v1/api-keys", {"role": role}, issuer)
    if role in LENT[issuer]:
        assert reply.status_code == 201
        status, shown = _asks(shared, reply.json()["key"], "GET", f"/v1/api-keys/{reply.json()['id']}")
        assert (status, shown["role"], shown["scope"]) == (200, role, None)
        assert shown["created_by"] == shared.ledger.keys["hospital", issuer].partition(".")[0]
    else:
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
        assert shared.rows() == before


def test_a_key_shows_its_secret_once(seeded: SeededLedger) -> None:
    made = _issued(seeded, "viewer", name="for the wall")
    secret = made["key"].partition(".")[2]
    assert len(secret) * 6 >= 128
    for path in ("/v1/api-keys", f"/v1/api-keys/{made['id']}", "/v1/audit-events"):
        text = seeded.ledger.get(path, "admin").text
        assert made["id"] in text
        assert secret not in text
    assert secret not in str(seeded.rows())


def test_an_idempotency_key_is_refused_for_a_secret_would_be_stored(seeded: SeededLedger) -> None:
    before = seeded.rows()
    reply = seeded.ledger.post("/v1/api-keys", {"role": "viewer"}, Idempotency_Key="k")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert seeded.rows() == before


@pytest.mark.usefixtures("at_once")
def test_a_rotated_key_opens_beside_the_new_one_for_a_while(seeded: SeededLedger) -> None:
    old = _issued(seeded, "trainer", scope="mimic/icu-team", name="trainer of the team")
    status, new = _asks(seeded, old["key"], "POST", f"/v1/api-keys/{old['id']}/rotate", {"overlap_seconds": 60})
    assert status == 201
    assert {name: new[name] for name in ("name", "role", "scope")} == {
        "name": "trainer of the team",
        "role": "trainer",
        "scope": seeded.budget,
    }
    for key in (old["key"], new["key"]):
        assert _asks(seeded, key, "GET", f"/v1/runs/{seeded.run}")[0] == 200
    assert _asks(seeded, new["key"], "GET", f"/v1/api-keys/{new['id']}")[1]["expires_at"] is None
    shown = seeded.ledger.get(f"/v1/api-keys/{old['id']}", "admin").json()
    left = datetime.fromisoformat(shown["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=30) < left <= timedelta(seconds=60)
    status, newer = _asks(seeded, new["key"], "POST", f"/v1/api-keys/{new['id']}/rotate", {"overlap_seconds": 0})
    assert status == 201
    assert _asks(seeded, new["key"], "GET", f"/v1/runs/{seeded.run}")[0] == 401
    assert _asks(seeded, newer["key"], "GET", f"/v1/runs/{seeded.run}")[0] == 200


@pytest.mark.usefixtures("at_once")
def test_a_revoked_key_opens_nothing_and_whoever_has_it_is_told_why(seeded: SeededLedger) -> None:
    made = _issued(seeded, "trainer")
    assert _asks(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/steps", {})[0] == 200
    reply = seeded.ledger.post(f"/v1/api-keys/{made['id']}/revoke", {"reason": "The laptop was lost."})
    assert (reply.status_code, reply.json()["revoked_at"] is None) == (200, False)
    status, answer = _asks(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/steps", {})
    assert (status, answer["detail"]) == (401, "This API key was revoked.")
    assert seeded.ledger.post(f"/v1/api-keys/{made['id']}/revoke", {}).json() == reply.json()
    again = seeded.ledger.post(f"/v1/api-keys/{made['id']}/rotate", {})
    assert (again.status_code, again.json()["code"]) == (422, "invalid_request")
    audit_events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={made['id']}", "auditor").json()["items"]
    assert [audit_event["action"] for audit_event in audit_events] == [
        "api_key.created",
        "api_key.revoked",
        "api_key.authentication_failed",
    ]
    assert audit_events[1]["reason"] == "The laptop was lost."
    assert (audit_events[2]["actor"], audit_events[2]["after"]) == ("unauthenticated", {"times": {"revoked": 1}})


@pytest.mark.usefixtures("at_once")
def test_an_expired_key_opens_nothing(seeded: SeededLedger, in_two_hours: Callable[[], None]) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    made = _issued(seeded, "viewer", expires_at=soon.isoformat())
    assert _asks(seeded, made["key"], "GET", "/v1/runs")[0] == 200
    in_two_hours()
    status, answer = _asks(seeded, made["key"], "GET", "/v1/runs")
    assert (status, answer["detail"]) == (401, "This API key has expired.")


def test_a_key_that_is_believed_opens_no_longer_than_it_lasts(
    seeded: SeededLedger, in_two_hours: Callable[[], None]
) -> None:
    made = _issued(seeded, "viewer", expires_at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    ring = seeded.ledger.http.app.state.keys
    header = f"Bearer {made['key']}"
    ring.authenticate(header)
    assert ring.find(header) is not None
    in_two_hours()
    assert ring.find(header) is None


@pytest.mark.parametrize(
    "terms",
    [
        {"role": "owner"},
        {"role": "viewer", "expires_at": "2020-01-01T00:00:00Z"},
        {"role": "viewer", "expires_at": "2099-01-01T00:00:00"},
        {"role": "viewer", "expires_at": 4102444800},
        {"role": "viewer", "name": "a/b"},
        {},
    ],
    ids=str,
)
def test_terms_that_mean_nothing_are_refused(shared: SeededLedger, terms: dict[str, object]) -> None:
    before = shared.rows()
    reply = shared.ledger.post("/v1/api-keys", terms)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert shared.rows() == before


def test_a_scoped_issuer_lends_within_its_scope(seeded: SeededLedger) -> None:
    seeded.ledger.population("other")
    seeded.ledger.budget("team", "other")
    scoped = _issued(seeded, "budget_admin", scope="mimic/icu-team")["key"]
    assert _asks(seeded, scoped, "POST", "/v1/api-keys", {"role": "trainer", "scope": seeded.run})[0] == 201
    for scope in (None, "mimic", "other/team"):
        status, answer = _asks(seeded, scoped, "POST", "/v1/api-keys", {"role": "trainer", "scope": scope})
        assert (status, answer["code"]) == (403, "insufficient_scope"), scope
    listed = _asks(seeded, scoped, "GET", "/v1/api-keys")[1]["items"]
    assert {key["scope"] for key in listed} == {seeded.budget, seeded.run}
    elsewhere = _issued(seeded, "viewer", scope="other")
    for path in ("", "/rotate", "/revoke"):
        method = "POST" if path else "GET"
        assert _asks(seeded, scoped, method, f"/v1/api-keys/{elsewhere['id']}{path}")[0] == 403


def test_a_key_that_ends_issues_none_that_outlives_it(seeded: SeededLedger) -> None:
    soon, later = "2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    own = _issued(seeded, "budget_admin", expires_at=soon)["key"]
    for terms in ({}, {"expires_at": later}):
        status, answer = _asks(seeded, own, "POST", "/v1/api-keys", {"role": "viewer"} | terms)
        assert (status, answer["code"]) == (422, "invalid_request")
        assert "issues none that outlives it" in answer["detail"]
    assert _asks(seeded, own, "POST", "/v1/api-keys", {"role": "viewer", "expires_at": soon})[0] == 201


def test_a_key_is_revoked_with_those_for_which_it_was_changed(seeded: SeededLedger, at_once: None) -> None:
    del at_once
    stolen = _issued(seeded, "trainer")
    status, successor = _asks(
        seeded, stolen["key"], "POST", f"/v1/api-keys/{stolen['id']}/rotate", {"overlap_seconds": 60}
    )
    assert status == 201
    status, grandchild = _asks(
        seeded, successor["key"], "POST", f"/v1/api-keys/{successor['id']}/rotate", {"overlap_seconds": 60}
    )
    assert status == 201
    path = f"/v1/api-keys/{stolen['id']}/revoke"
    assert seeded.ledger.post(path, {"reason": "The laptop was lost."}).status_code == 200
    assert _asks(seeded, grandchild["key"], "GET", "/v1/runs")[0] == 200
    assert seeded.ledger.post(path, {"reason": "It was rotated.", "include_successors": True}).status_code == 200
    for key in (stolen, successor, grandchild):
        assert _asks(seeded, key["key"], "GET", "/v1/runs")[0] == 401
    revoked = seeded.ledger.get("/v1/audit-events?order=oldest&action=api_key.revoked", "auditor").json()["items"]
    assert {audit_event["subject"] for audit_event in revoked} == {stolen["id"], successor["id"], grandchild["id"]}
    assert verify(seeded.ledger.database).problems == ()


def test_a_key_to_a_run_of_several_budgets_is_lent_by_who_reaches_all_of_them(seeded: SeededLedger) -> None:
    seeded.ledger.population("other")
    seeded.ledger.budget("team", "other")
    body = {"name": "both", "budgets": ["mimic/icu-team", "other/team"], "event": SAMPLED}
    run = seeded.ledger.post("/v1/runs", body).json()["id"]
    scoped = _issued(seeded, "budget_admin", scope="mimic/icu-team")["key"]
    assert _asks(seeded, scoped, "POST", "/v1/api-keys", {"role": "trainer", "scope": run})[0] == 403
    assert seeded.ledger.post("/v1/api-keys", {"role": "trainer", "scope": run}).status_code == 201


def test_a_trainer_may_read_rotate_and_revoke_its_own_key_only(seeded: SeededLedger) -> None:
    mine, other = _issued(seeded, "trainer"), _issued(seeded, "trainer")
    assert _asks(seeded, mine["key"], "GET", f"/v1/api-keys/{mine['id']}")[0] == 200
    for method, path in (("GET", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        assert _asks(seeded, mine["key"], method, f"/v1/api-keys/{other['id']}{path}")[0] == 403
    assert _asks(seeded, mine["key"], "GET", "/v1/api-keys")[0] == 403
    assert _asks(seeded, mine["key"], "POST", f"/v1/api-keys/{mine['id']}/revoke")[0] == 200


def test_a_key_of_one_run_takes_its_steps_and_nothing_else(seeded: SeededLedger) -> None:
    key = _issued(seeded, "trainer", scope=seeded.run)["key"]
    other = seeded.ledger.run(name="other")
    assert _asks(seeded, key, "POST", f"/v1/runs/{seeded.run}/steps", {})[0] == 200
    assert _asks(seeded, key, "GET", f"/v1/runs/{seeded.run}/history")[0] == 200
    plan = {"plan": [{"event": SAMPLED, "count": 1}]}
    assert _asks(seeded, key, "POST", f"/v1/runs/{seeded.run}/reservations", plan)[0] == 201
    before = seeded.rows()
    for method, path, body in (
        ("POST", f"/v1/runs/{other}/steps", {}),
        ("POST", f"/v1/runs/{other}/steps?dry_run=true", {}),
        ("POST", f"/v1/runs/{other}/reservations", plan),
        ("POST", f"/v1/runs/{other}/attempts", {}),
        ("POST", f"/v1/runs/{other}/abort", None),
        ("GET", f"/v1/runs/{other}", None),
        ("GET", f"/v1/runs/{other}/history", None),
        ("GET", f"/v1/budgets/{seeded.budget}", None),
        ("GET", f"/v1/populations/{seeded.population}", None),
        ("POST", "/v1/runs", {"name": "n", "budget": "mimic/icu-team"}),
        ("GET", f"/v1/runs?budget={seeded.budget}", None),
    ):
        status, answer = _asks(seeded, key, method, path, body)
        assert (status, answer["code"]) == (403, "insufficient_scope"), path
    assert seeded.rows() == before
    assert [run["id"] for run in _asks(seeded, key, "GET", "/v1/runs")[1]["items"]] == [seeded.run]
    for kind in ("budgets", "populations"):
        assert _asks(seeded, key, "GET", f"/v1/{kind}")[1]["items"] == []
    assert _asks(seeded, key, "POST", "/v1/runs/run_nothing/steps", {})[0] == 404


def test_a_role_that_is_bound_to_a_budget_reaches_what_lies_under_it(seeded: SeededLedger) -> None:
    seeded.ledger.budget("project", "mimic/icu-team")
    seeded.ledger.budget("other", "mimic")
    key = _issued(seeded, "budget_admin", scope="mimic/icu-team")["key"]
    limit = {"epsilon": 1.0, "delta": 1e-5}
    for parent, expected in (("mimic/icu-team/project", 201), ("mimic/icu-team", 201), ("mimic", 403)):
        body = {"name": "new", "parent": parent, "limit": limit}
        assert _asks(seeded, key, "POST", "/v1/budgets", body)[0] == expected, parent
    body = {"name": "new", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one", "limit": limit}
    assert _asks(seeded, key, "POST", "/v1/populations", body)[0] == 403
    paths = {budget["path"] for budget in _asks(seeded, key, "GET", "/v1/budgets")[1]["items"]}
    under = {"project", "sweep", "new", "project/new"}
    assert paths == {"mimic/icu-team", *(f"mimic/icu-team/{name}" for name in under)}
    assert _asks(seeded, key, "POST", "/v1/verifications")[0] == 403
