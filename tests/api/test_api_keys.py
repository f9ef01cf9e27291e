"""API keys, also single-use ones: issued, rotated, bound to a run, and revoked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.ledger.permissions import LAST_ANSWERS
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


def _asks(
    seeded: SeededLedger, key: str, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    sent = {"Authorization": f"Bearer {key}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    reply = seeded.ledger.http.request(method, path, json=body, headers=sent)
    return reply.status_code, reply.json()


def _later(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """Move the clock by which keys end."""
    now = datetime.now(UTC) + ahead
    stand_at(monkeypatch, lambda: now)


@pytest.fixture
def at_once(seeded: SeededLedger) -> None:
    """Each request looks its key up."""
    state: Any = seeded.ledger.http.app.state
    state.keys.cache_seconds = -1.0


@pytest.mark.parametrize("issuer", LENT)
def test_role_issues_keys_of_the_roles_that_it_may_lend(shared: SeededLedger, issuer: str) -> None:
    for role in LENT["admin"]:
        before, reply = shared.rows(), shared.ledger.post("/v1/api-keys", {"role": role}, issuer)
        if role in LENT[issuer]:
            status, shown = _asks(shared, reply.json()["key"], "GET", f"/v1/api-keys/{reply.json()['id']}")
            assert (status, shown["role"], shown["scope"]) == (200, role, None)
            assert shown["created_by"] == shared.ledger.keys["hospital", issuer].partition(".")[0]
        else:
            assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope"), role
            assert shared.rows() == before


def test_key_shows_its_secret_once(seeded: SeededLedger) -> None:
    made = _issued(seeded, "viewer", name="for the wall")
    secret = made["key"].partition(".")[2]
    assert len(secret) * 6 >= 128
    for path in ("/v1/api-keys", f"/v1/api-keys/{made['id']}", "/v1/audit-events"):
        text = seeded.ledger.get(path, "admin").text
        assert made["id"] in text
        assert secret not in text
    assert secret not in str(seeded.rows())


def test_idempotency_key_is_refused_for_a_secret_would_be_stored(seeded: SeededLedger) -> None:
    before = seeded.rows()
    reply = seeded.ledger.post("/v1/api-keys", {"role": "viewer"}, Idempotency_Key="k")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert seeded.rows() == before


@pytest.mark.usefixtures("at_once")
def test_rotated_key_opens_beside_the_new_one_for_a_while(seeded: SeededLedger) -> None:
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
def test_revoked_key_is_refused_with_the_reason(seeded: SeededLedger) -> None:
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
def test_expired_key_opens_nothing(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    made = _issued(seeded, "viewer", expires_at=soon.isoformat())
    assert _asks(seeded, made["key"], "GET", "/v1/runs")[0] == 200
    _later(monkeypatch, timedelta(hours=2))
    status, answer = _asks(seeded, made["key"], "GET", "/v1/runs")
    assert (status, answer["detail"]) == (401, "This API key has expired.")


def test_scoped_issuer_lends_within_its_scope(seeded: SeededLedger) -> None:
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


def test_key_that_ends_issues_none_that_outlives_it(seeded: SeededLedger) -> None:
    soon, later = "2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    own = _issued(seeded, "budget_admin", expires_at=soon)["key"]
    for terms in ({}, {"expires_at": later}):
        status, answer = _asks(seeded, own, "POST", "/v1/api-keys", {"role": "viewer"} | terms)
        assert (status, answer["code"]) == (422, "invalid_request")
        assert "issues none that outlives it" in answer["detail"]
    assert _asks(seeded, own, "POST", "/v1/api-keys", {"role": "viewer", "expires_at": soon})[0] == 201


def test_key_is_revoked_with_those_for_which_it_was_changed(seeded: SeededLedger, at_once: None) -> None:
    del at_once
    stolen = _issued(seeded, "trainer")
    chain = [stolen]
    for _ in range(2):
        rotation = f"/v1/api-keys/{chain[-1]['id']}/rotate"
        chain.append(_asks(seeded, chain[-1]["key"], "POST", rotation, {"overlap_seconds": 60})[1])
    _, successor, grandchild = chain
    path = f"/v1/api-keys/{stolen['id']}/revoke"
    assert seeded.ledger.post(path, {"reason": "The laptop was lost."}).status_code == 200
    assert _asks(seeded, grandchild["key"], "GET", "/v1/runs")[0] == 200
    assert seeded.ledger.post(path, {"reason": "It was rotated.", "include_successors": True}).status_code == 200
    for key in (stolen, successor, grandchild):
        assert _asks(seeded, key["key"], "GET", "/v1/runs")[0] == 401
    revoked = seeded.ledger.get("/v1/audit-events?order=oldest&action=api_key.revoked", "auditor").json()["items"]
    assert {audit_event["subject"] for audit_event in revoked} == {stolen["id"], successor["id"], grandchild["id"]}
    assert verify(seeded.ledger.database).problems == ()


def test_key_of_one_run_takes_its_steps_and_nothing_else(seeded: SeededLedger) -> None:
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


RUN = {"budget": "mimic/icu-team", "event": SAMPLED}


def _in_minutes(minutes: float = 10) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def _issue(seeded: SeededLedger) -> dict[str, Any]:
    """A single-use key for the team."""
    return _issued(seeded, "trainer", scope="mimic/icu-team", expires_at=_in_minutes(), single_use=True)


def _register(seeded: SeededLedger, key: str, name: str = "job", **terms: object) -> tuple[int, dict[str, Any]]:
    return _asks(seeded, key, "POST", "/v1/runs", RUN | {"name": name} | terms)


def test_key_registers_one_run_and_trains_it(seeded: SeededLedger) -> None:
    made = _issue(seeded)
    assert (made["single_use"], made["scope"]) == (True, seeded.budget)
    status, run = _register(seeded, made["key"])
    assert status == 201, run
    assert _asks(seeded, made["key"], "GET", f"/v1/api-keys/{made['id']}")[1]["scope"] == run["id"]
    assert _asks(seeded, made["key"], "POST", f"/v1/runs/{run['id']}/steps", {"first_step": 0})[0] == 200
    for status, answer in (
        _register(seeded, made["key"], "another"),
        _asks(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/steps", {"first_step": 1}),
        _asks(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/abort"),
    ):
        assert (status, answer["code"]) == (403, "insufficient_scope"), answer
    assert _asks(seeded, made["key"], "POST", f"/v1/runs/{run['id']}/complete")[0] == 200
    assert seeded.ledger.post("/v1/verifications", None, "admin").json()["sound"]
    events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={made['id']}", "auditor").json()["items"]
    assert [event["action"] for event in events] == ["api_key.created", "api_key.bound"]
    assert [events[1][side]["scope"] for side in ("before", "after")] == [seeded.budget, run["id"]]
    assert events[1]["actor"] == made["id"]


def test_before_its_run_a_key_does_nothing_else(seeded: SeededLedger) -> None:
    key, before = _issue(seeded)["key"], seeded.rows()
    sweep = {"name": "sweep-2", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    plan = {"plan": [{"event": SAMPLED, "count": 1}]}
    limit = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More."}
    for method, path, body in (
        ("POST", f"/v1/runs/{seeded.run}/steps", {"first_step": 1}),
        ("POST", f"/v1/runs/{seeded.run}/pause", None),
        ("POST", f"/v1/runs/{seeded.run}/reservations", plan),
        ("POST", f"/v1/runs/{seeded.run}/limit-requests", limit),
        ("PATCH", f"/v1/runs/{seeded.run}", {"description": "Mine."}),
        ("GET", f"/v1/runs/{seeded.run}", None),
        ("POST", "/v1/experiments", sweep),
    ):
        status, answer = _asks(seeded, key, method, path, body)
        assert (status, answer["code"]) == (403, "insufficient_scope"), (path, answer)
    assert seeded.rows() == before


@pytest.mark.usefixtures("at_once")
def test_after_its_run_a_key_is_worthless(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _issue(seeded)
    run = _register(seeded, made["key"])[1]["id"]
    for _ in range(2):  # a lost answer is repeated
        assert _asks(seeded, made["key"], "POST", f"/v1/runs/{run}/complete")[0] == 200
    _later(monkeypatch, LAST_ANSWERS)
    status, answer = _asks(seeded, made["key"], "GET", f"/v1/runs/{run}")
    assert (status, answer["detail"]) == (401, "This API key was for one run, which has ended.")
    event = seeded.ledger.get(f"/v1/audit-events?subject={made['id']}", "auditor").json()["items"][0]
    assert (event["action"], event["after"]) == ("api_key.authentication_failed", {"times": {"used": 1}})


def test_lost_answer_to_the_registration_is_repeated(seeded: SeededLedger) -> None:
    made, other = _issue(seeded), _issue(seeded)
    sent = RUN | {"name": "job"}
    first, second = (_asks(seeded, made["key"], "POST", "/v1/runs", sent, Idempotency_Key="job-1") for _ in range(2))
    assert first == second
    assert first[0] == 201
    status, answer = _asks(seeded, other["key"], "POST", "/v1/runs", sent, Idempotency_Key="job-1")
    assert (status, answer["code"]) == (422, "idempotency_key_reused")


def test_single_use_key_is_a_trainer_s_with_scope_and_end(shared: SeededLedger) -> None:
    body = {"role": "trainer", "scope": shared.budget, "expires_at": _in_minutes(), "single_use": True}
    for changed, field in (
        ({"role": "admin"}, "single_use"),
        ({"scope": None}, "scope"),
        ({"expires_at": None}, "expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, None),
    ):
        reply = shared.ledger.post("/v1/api-keys", body | changed)
        assert (reply.status_code, reply.json()["code"], reply.json().get("field")) == (422, "invalid_request", field)


def test_key_for_one_run_has_no_successor_and_does_not_sign_in(seeded: SeededLedger) -> None:
    made = _issue(seeded)
    for key in (made["key"], seeded.ledger.keys["hospital", "admin"]):
        status, answer = _asks(seeded, key, "POST", f"/v1/api-keys/{made['id']}/rotate", {})
        assert (status, answer["code"]) == (422, "invalid_request")
    page = seeded.ledger.http.post(
        "/sign-in", content=f"key={made['key']}", headers={"Origin": "http://testserver"}, follow_redirects=False
    )
    assert "for one run of a trainer" in page.text
    assert "set-cookie" not in page.headers
