"""An auditor who is bound to an account reads the audit events under it, as they stand in the chain, and no others."""

from typing import Any

import pytest

from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

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
def test_the_audit_events_of_a_scope_are_those_about_what_lies_under_it(
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


def test_every_kind_of_audit_event_was_done(shared: SeededLedger, ids: dict[str, str]) -> None:
    """What is said of scopes above was tried with all of these."""
    key = _key(shared, ids["team"])["key"]
    within = {audit_event["action"] for audit_event in _audit_events(shared, key)}
    assert within == {
        *("budget.created", "budget.limit_changed", "policy.replaced", "alert_settings.replaced"),
        *("run.created", "run.paused", "limit.proposed", "limit.rejected"),
        *("api_key.created", "api_key.revoked", "api_key.authentication_failed", "experiment.created"),
    }
    whole = {audit_event["action"] for audit_event in _audit_events(shared)}
    assert whole - within == {"organisation.created", "population.created", "receiver.created", "runs.anchored"}


def test_an_audit_event_of_a_part_has_its_place_and_its_hash_in_the_whole(
    shared: SeededLedger, ids: dict[str, str]
) -> None:
    whole = {audit_event["position"]: audit_event for audit_event in _audit_events(shared)}
    for audit_event in _audit_events(shared, _key(shared, ids["other"])["key"], "?limit=5"):
        assert audit_event == whole[audit_event["position"]]


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


@pytest.mark.parametrize("role", ["viewer", "trainer", "planner", "budget_admin"])
def test_a_scope_gives_nobody_a_permission(shared: SeededLedger, ids: dict[str, str], role: str) -> None:
    key = _key(shared, ids["team"], role)["key"]
    reply = shared.ledger.http.get("/v1/audit-events", headers={"Authorization": f"Bearer {key}"})
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
