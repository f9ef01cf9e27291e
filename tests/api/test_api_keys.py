"""API keys, also single-use ones: issued, rotated, bound to a run, and revoked."""

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import httpx2
import pytest

from app.ledger.permissions import LAST_ANSWERS
from tests.api.conftest import SeededLedger
from tests.api.trainer import audited, is_refused
from tests.clocks import stand_at
from tests.conftest import SAMPLED

TRAINING = {"viewer", "trainer", "planner"}
OFFICE = TRAINING | {"budget_admin", "privacy_officer", "auditor"}
LENT = {"budget_admin": TRAINING, "privacy_officer": OFFICE, "admin": OFFICE | {"admin"}}
PLAN = {"events": [{"event": SAMPLED, "count": 1}]}
RUN = {"budget": "mimic/icu-team", "event": SAMPLED}


def _issue(seeded: SeededLedger, role: str, by: str = "admin", name: str = "own", **terms: object) -> dict[str, Any]:
    """Issue a key, which asks as `name`."""
    reply = seeded.ledger.post("/v1/api-keys", {"role": role} | terms, by).raise_for_status()
    return _known(seeded, reply, name)


def _known(seeded: SeededLedger, reply: httpx2.Response, name: str) -> dict[str, Any]:
    made: dict[str, Any] = reply.json()
    seeded.ledger.keys["hospital", name] = made["key"]
    return made


def _later(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """Move the clock by which keys end."""
    now = datetime.now(UTC) + ahead
    stand_at(monkeypatch, lambda: now)


@pytest.fixture
def at_once(seeded: SeededLedger) -> SeededLedger:
    """Each request looks its key up."""
    state: Any = seeded.ledger.http.app.state
    state.keys.cache_seconds = -1.0
    return seeded


def test_role_issues_keys_of_the_roles_that_it_may_lend(shared: SeededLedger) -> None:
    for issuer, role in product(LENT, LENT["admin"]):
        before, reply = shared.rows(), shared.ledger.post("/v1/api-keys", {"role": role}, issuer)
        if role in LENT[issuer]:
            made = _known(shared, reply, "own")
            shown = shared.ledger.get(f"/v1/api-keys/{made['id']}", "own").json()
            issued_by = shared.ledger.keys["hospital", issuer].partition(".")[0]
            assert (shown["role"], shown["scope"], shown["created_by"]) == (role, None, issued_by)
        else:
            is_refused(reply, 403, "permission_denied")
            assert shared.rows() == before
    before = shared.rows()  # its answer holds a secret, which would be stored
    is_refused(shared.ledger.post("/v1/api-keys", {"role": "viewer"}, Idempotency_Key="k"), 422, "invalid_request")
    assert shared.rows() == before


def test_key_shows_its_secret_once(shared: SeededLedger) -> None:
    made = _issue(shared, "viewer")
    secret = made["key"].partition(".")[2]
    assert len(secret) * 6 >= 128
    for path in ("api-keys", f"api-keys/{made['id']}", "audit-events"):
        text = shared.ledger.get(f"/v1/{path}", "admin").text
        assert (made["id"] in text, secret in text) == (True, False)
    assert secret not in str(shared.rows())


def test_rotated_key_opens_beside_the_new_one_for_a_while(at_once: SeededLedger) -> None:
    ledger, run = at_once.ledger, f"/v1/runs/{at_once.run}"
    body = {"role": "trainer", "scope": "mimic/icu-team", "name": "trainer of the team"}
    old = _known(at_once, ledger.post("/v1/api-keys", body), "old")
    new = _known(at_once, ledger.post(f"/v1/api-keys/{old['id']}/rotate", {"overlap_seconds": 60}, "old"), "new")
    assert (new["name"], new["role"], new["scope"]) == ("trainer of the team", "trainer", at_once.budget)
    assert [ledger.get(run, name).status_code for name in ("old", "new")] == [200, 200]
    assert ledger.get(f"/v1/api-keys/{new['id']}", "new").json()["expires_at"] is None
    ends = datetime.fromisoformat(ledger.get(f"/v1/api-keys/{old['id']}", "admin").json()["expires_at"])
    assert timedelta(seconds=30) < ends - datetime.now(UTC) <= timedelta(seconds=60)
    _known(at_once, ledger.post(f"/v1/api-keys/{new['id']}/rotate", {"overlap_seconds": 0}, "new"), "newer")
    assert [ledger.get(run, name).status_code for name in ("new", "newer")] == [401, 200]


def test_revoked_key_is_refused_with_the_reason(at_once: SeededLedger) -> None:
    made, path = _issue(at_once, "trainer"), "/v1/api-keys/{}/revoke".format
    assert at_once.steps("own").status_code == 200
    reply = at_once.ledger.post(path(made["id"]), {"reason": "The laptop was lost."})
    assert (reply.status_code, reply.json()["revoked_at"] is None) == (200, False)
    assert is_refused(at_once.steps("own"), 401, "unauthenticated")["detail"] == "This API key was revoked."
    assert at_once.ledger.post(path(made["id"]), {}).json() == reply.json()
    is_refused(at_once.ledger.post(f"/v1/api-keys/{made['id']}/rotate", {}), 422, "invalid_request")
    _, revoked, failed = audited(at_once.ledger, f"subject={made['id']}")
    assert (revoked["action"], revoked["reason"]) == ("api_key.revoked", "The laptop was lost.")
    assert (failed["action"], failed["actor"]) == ("api_key.authentication_failed", "unauthenticated")
    assert failed["after"] == {"times": {"revoked": 1}}


def test_expired_key_opens_nothing(at_once: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    _issue(at_once, "viewer", expires_at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    assert at_once.ledger.get("/v1/runs", "own").status_code == 200
    _later(monkeypatch, timedelta(hours=2))
    refused = is_refused(at_once.ledger.get("/v1/runs", "own"), 401, "unauthenticated")
    assert refused["detail"] == "This API key has expired."


def test_scoped_issuer_lends_within_its_scope(seeded: SeededLedger) -> None:
    seeded.ledger.population("other")
    seeded.ledger.budget("team", "other")
    _issue(seeded, "budget_admin", name="scoped", scope="mimic/icu-team")
    _issue(seeded, "trainer", "scoped", scope=seeded.run)
    for scope in (None, "mimic", "other/team"):
        refused = seeded.ledger.post("/v1/api-keys", {"role": "trainer", "scope": scope}, "scoped")
        is_refused(refused, 403, "permission_denied")
    listed = seeded.ledger.get("/v1/api-keys", "scoped").json()["items"]
    assert {key["scope"] for key in listed} == {seeded.budget, seeded.run}
    elsewhere = f"/v1/api-keys/{_issue(seeded, 'viewer', scope='other')['id']}"
    is_refused(seeded.ledger.get(elsewhere, "scoped"), 403, "permission_denied")
    for action in ("rotate", "revoke"):
        is_refused(seeded.ledger.post(f"{elsewhere}/{action}", None, "scoped"), 403, "permission_denied")


def test_key_that_ends_issues_none_that_outlives_it(shared: SeededLedger) -> None:
    soon, later = "2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    _issue(shared, "budget_admin", name="ends", expires_at=soon)
    for terms in ({}, {"expires_at": later}):
        refused = shared.ledger.post("/v1/api-keys", {"role": "viewer"} | terms, "ends")
        assert "issues none that outlives it" in is_refused(refused, 422, "invalid_request")["detail"]
    _issue(shared, "viewer", "ends", expires_at=soon)


def test_key_that_ends_rotates_none_into_one_that_outlives_it(shared: SeededLedger) -> None:
    soon, later = "2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    _issue(shared, "privacy_officer", name="ends", expires_at=soon)
    for terms, until in (({}, soon), ({"expires_at": later}, soon), ({"expires_at": "2097-01-01T00:00:00Z"}, None)):
        key = _issue(shared, "privacy_officer", name="other", **terms)
        rotated = shared.ledger.post(f"/v1/api-keys/{key['id']}/rotate", {}, "ends")
        assert _known(shared, rotated, "other")["expires_at"] == (until or key["expires_at"])
        own = shared.ledger.post(f"/v1/api-keys/{rotated.json()['id']}/rotate", {}, "other").json()
        assert own["expires_at"] == rotated.json()["expires_at"]
    forever = _issue(shared, "viewer", name="forever")
    assert shared.ledger.post(f"/v1/api-keys/{forever['id']}/rotate", {}).json()["expires_at"] is None


def test_name_of_a_valid_key_is_given_to_no_other_one(at_once: SeededLedger) -> None:
    named = at_once.ledger.post("/v1/api-keys", {"role": "viewer", "name": "icu trainer"}).json()
    for name in ("icu trainer", "ICU-trainer", "\u0456cu trainer", "Command line"):
        refused = at_once.ledger.post("/v1/api-keys", {"role": "viewer", "name": name})
        assert is_refused(refused, 409, "name_taken")["name"] in (named["name"], "command line")
    is_refused(at_once.ledger.post("/v1/api-keys", {"role": "viewer", "name": "\u3164"}), 422, "invalid_request")
    rotated = at_once.ledger.post(f"/v1/api-keys/{named['id']}/rotate", {}).json()
    assert rotated["name"] == named["name"]
    for ended in (named, rotated):
        assert at_once.ledger.post(f"/v1/api-keys/{ended['id']}/revoke", {}).status_code == 200
    assert at_once.ledger.post("/v1/api-keys", {"role": "viewer", "name": "ICU trainer"}).status_code == 201


def test_key_is_revoked_with_those_for_which_it_was_changed(at_once: SeededLedger) -> None:
    ledger, chain = at_once.ledger, [_issue(at_once, "trainer", name="stolen")]
    for before, name in (("stolen", "successor"), ("successor", "grandchild")):
        rotation = f"/v1/api-keys/{chain[-1]['id']}/rotate"
        chain.append(_known(at_once, ledger.post(rotation, {"overlap_seconds": 60}, before), name))
    path = f"/v1/api-keys/{chain[0]['id']}/revoke"
    assert ledger.post(path, {"reason": "The laptop was lost."}).status_code == 200
    assert ledger.get("/v1/runs", "grandchild").status_code == 200
    assert ledger.post(path, {"reason": "It was rotated.", "include_successors": True}).status_code == 200
    assert [ledger.get("/v1/runs", name).status_code for name in ("stolen", "successor", "grandchild")] == [401] * 3
    assert {event["subject"] for event in audited(ledger, "action=api_key.revoked")} == {key["id"] for key in chain}
    assert at_once.sound()


def test_key_of_one_run_takes_its_steps_and_nothing_else(seeded: SeededLedger) -> None:
    ledger, other = seeded.ledger, seeded.ledger.run(name="other")
    _issue(seeded, "trainer", scope=seeded.run)
    assert seeded.steps("own").status_code == 200
    assert ledger.get(f"/v1/runs/{seeded.run}/history", "own").status_code == 200
    assert ledger.post(f"/v1/runs/{seeded.run}/reservations", PLAN, "own").status_code == 201
    before = seeded.rows()
    posts = [*((path, {}) for path in ("steps", "steps?dry_run=true", "attempts", "abort")), ("reservations", PLAN)]
    gets = (f"runs/{other}", f"runs/{other}/history", f"budgets/{seeded.budget}", f"populations/{seeded.population}")
    for refused in (
        *(ledger.post(f"/v1/runs/{other}/{action}", body, "own") for action, body in posts),
        ledger.post("/v1/runs", {"name": "n", "budget": "mimic/icu-team"}, "own"),
        *(ledger.get(f"/v1/{path}", "own") for path in (*gets, f"runs?budget={seeded.budget}")),
    ):
        is_refused(refused, 403, "permission_denied")
    assert seeded.rows() == before
    assert [run["id"] for run in ledger.get("/v1/runs", "own").json()["items"]] == [seeded.run]
    assert [ledger.get(f"/v1/{kind}", "own").json()["items"] for kind in ("budgets", "populations")] == [[], []]
    assert seeded.steps("own", run="run_nothing").status_code == 404


def _in_minutes(minutes: float = 10) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def _single(seeded: SeededLedger, name: str = "own") -> dict[str, Any]:
    """A single-use key for the team."""
    terms: dict[str, Any] = {"scope": "mimic/icu-team", "expires_at": _in_minutes(), "single_use": True}
    return _issue(seeded, "trainer", name=name, **terms)


def test_key_registers_one_run_and_trains_it(seeded: SeededLedger) -> None:
    made, ledger = _single(seeded), seeded.ledger
    assert (made["single_use"], made["scope"]) == (True, seeded.budget)
    sent = RUN | {"name": "job"}
    first, again = (ledger.post("/v1/runs", sent, "own", Idempotency_Key="job-1") for _ in range(2))
    assert (first.status_code, again.json()) == (201, first.json()), "a lost answer is repeated"
    _single(seeded, "other")
    is_refused(ledger.post("/v1/runs", sent, "other", Idempotency_Key="job-1"), 422, "idempotency_key_reused")
    run = first.json()["id"]
    assert ledger.get(f"/v1/api-keys/{made['id']}", "own").json()["scope"] == run
    assert seeded.steps("own", run=run, first_step=0).status_code == 200
    for refused in (
        ledger.post("/v1/runs", RUN | {"name": "another"}, "own"),
        seeded.steps("own", first_step=1),
        ledger.post(f"/v1/runs/{seeded.run}/abort", None, "own"),
    ):
        is_refused(refused, 403, "permission_denied")
    assert ledger.post(f"/v1/runs/{run}/complete", None, "own").status_code == 200
    assert seeded.sound()
    created, bound = audited(ledger, f"subject={made['id']}")
    assert (created["action"], bound["action"], bound["actor"]) == ("api_key.created", "api_key.bound", made["id"])
    assert [bound[side]["scope"] for side in ("before", "after")] == [seeded.budget, run]


def test_before_its_run_a_key_does_nothing_else(shared: SeededLedger) -> None:
    _single(shared)
    before, run = shared.rows(), f"/v1/runs/{shared.run}"
    sweep = {"name": "sweep-2", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    limit = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "More."}
    posts: list[tuple[str, object]] = [(f"{run}/steps", {"first_step": 1}), (f"{run}/pause", None)]
    posts += [(f"{run}/reservations", PLAN), (f"{run}/limit-requests", limit), ("/v1/experiments", sweep)]
    for refused in (
        *(shared.ledger.post(path, body, "own") for path, body in posts),
        *(shared.ledger.patch(run, {"description": "Mine."}, "own"), shared.ledger.get(run, "own")),
    ):
        is_refused(refused, 403, "permission_denied")
    assert shared.rows() == before


def test_after_its_run_a_key_is_worthless(at_once: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ledger = _single(at_once), at_once.ledger
    run = f"/v1/runs/{ledger.post('/v1/runs', RUN | {'name': 'job'}, 'own').json()['id']}"
    for _ in range(2):  # a lost answer is repeated
        assert ledger.post(f"{run}/complete", None, "own").status_code == 200
    _later(monkeypatch, LAST_ANSWERS)
    refused = is_refused(ledger.get(run, "own"), 401, "unauthenticated")
    assert refused["detail"] == "This API key was for one run, which has ended."
    event = audited(ledger, f"subject={made['id']}")[-1]
    assert (event["action"], event["after"]) == ("api_key.authentication_failed", {"times": {"used": 1}})


def test_single_use_key_is_a_trainer_s_with_scope_and_end_and_does_not_sign_in(shared: SeededLedger) -> None:
    body = {"role": "trainer", "scope": shared.budget, "expires_at": _in_minutes(), "single_use": True}
    wrong: list[tuple[dict[str, object], str | None]] = [({"role": "admin"}, "single_use"), ({"scope": None}, "scope")]
    wrong += [({"expires_at": None}, "expires_at"), ({"expires_at": "2020-01-01T00:00:00Z"}, None)]
    for changed, field in wrong:
        answer = is_refused(shared.ledger.post("/v1/api-keys", body | changed), 422, "invalid_request")
        assert answer.get("field") == field
    made = _single(shared)
    for role in ("own", "admin"):
        is_refused(shared.ledger.post(f"/v1/api-keys/{made['id']}/rotate", {}, role), 422, "invalid_request")
    form, origin = f"key={made['key']}", {"Origin": "http://testserver"}
    page = shared.ledger.http.post("/sign-in", content=form, headers=origin, follow_redirects=False)
    assert ("for one run of a trainer" in page.text, "set-cookie" in page.headers) == (True, False)
