"""Single-use keys: for one run, from its registration to its end, and for nothing else."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.ledger.permissions import LAST_ANSWERS
from tests.api.conftest import SeededLedger
from tests.clocks import stand_at
from tests.conftest import SAMPLED

RUN = {"budget": "mimic/icu-team", "event": SAMPLED}


def _in_minutes(minutes: float = 10) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def _issue(seeded: SeededLedger, scope: str = "mimic/icu-team", **terms: object) -> dict[str, Any]:
    body = {"role": "trainer", "scope": scope, "expires_at": _in_minutes(), "single_use": True}
    reply = seeded.ledger.post("/v1/api-keys", body | terms)
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def _ask(
    seeded: SeededLedger, key: str, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    sent = {"Authorization": f"Bearer {key}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    reply = seeded.ledger.http.request(method, path, json=body, headers=sent)
    return reply.status_code, reply.json()


def _register(seeded: SeededLedger, key: str, name: str = "job", **terms: object) -> tuple[int, dict[str, Any]]:
    return _ask(seeded, key, "POST", "/v1/runs", RUN | {"name": name} | terms)


@pytest.fixture
def at_once(seeded: SeededLedger) -> None:
    """Each request looks its key up."""
    state: Any = seeded.ledger.http.app.state
    state.keys.cache_seconds = -1.0


@pytest.fixture
def after_the_last_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock to when the key of a run that has just ended is worthless."""

    def move() -> None:
        now = datetime.now(UTC) + LAST_ANSWERS
        stand_at(monkeypatch, lambda: now)

    return move


def test_a_key_registers_one_run_and_trains_it(seeded: SeededLedger) -> None:
    made = _issue(seeded)
    assert (made["single_use"], made["scope"]) == (True, seeded.budget)
    status, run = _register(seeded, made["key"])
    assert status == 201, run
    assert _ask(seeded, made["key"], "GET", f"/v1/api-keys/{made['id']}")[1]["scope"] == run["id"]
    assert _ask(seeded, made["key"], "POST", f"/v1/runs/{run['id']}/steps", {"first_step": 0})[0] == 200
    for status, answer in (
        _register(seeded, made["key"], "another"),
        _ask(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/steps", {"first_step": 1}),
        _ask(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/abort"),
    ):
        assert (status, answer["code"]) == (403, "insufficient_scope"), answer
    assert _ask(seeded, made["key"], "POST", f"/v1/runs/{run['id']}/complete")[0] == 200
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
        status, answer = _ask(seeded, key, method, path, body)
        assert (status, answer["code"]) == (403, "insufficient_scope"), (path, answer)
    assert seeded.rows() == before


def test_a_key_of_a_run_registers_none(seeded: SeededLedger) -> None:
    made = _issue(seeded, seeded.run)
    assert _ask(seeded, made["key"], "POST", f"/v1/runs/{seeded.run}/steps", {"first_step": 1})[0] == 200
    status, answer = _register(seeded, made["key"])
    assert (status, answer["code"]) == (403, "insufficient_scope")


@pytest.mark.usefixtures("at_once")
def test_after_its_run_a_key_is_worthless(seeded: SeededLedger, after_the_last_answers: Callable[[], None]) -> None:
    made = _issue(seeded)
    run = _register(seeded, made["key"])[1]["id"]
    for _ in range(2):  # a lost answer is repeated
        assert _ask(seeded, made["key"], "POST", f"/v1/runs/{run}/complete")[0] == 200
    after_the_last_answers()
    status, answer = _ask(seeded, made["key"], "GET", f"/v1/runs/{run}")
    assert (status, answer["detail"]) == (401, "This API key was for one run, which has ended.")
    event = seeded.ledger.get(f"/v1/audit-events?subject={made['id']}", "auditor").json()["items"][0]
    assert (event["action"], event["after"]) == ("api_key.authentication_failed", {"times": {"used": 1}})


def test_a_known_key_is_forgotten_when_its_run_has_ended(
    seeded: SeededLedger, after_the_last_answers: Callable[[], None]
) -> None:
    made = _issue(seeded)
    run = _register(seeded, made["key"])[1]["id"]
    assert _ask(seeded, made["key"], "POST", f"/v1/runs/{run}/abort")[0] == 200
    ring, header = seeded.ledger.http.app.state.keys, f"Bearer {made['key']}"
    ring.authenticate(header)
    ring.refresh()
    assert ring.find(header) is not None
    after_the_last_answers()
    ring.refresh()
    assert ring.find(header) is None


def test_a_run_that_was_refused_does_not_use_the_key_up(seeded: SeededLedger) -> None:
    key = _issue(seeded)["key"]
    loud = {"type": "gaussian", "noise_multiplier": 0.01}
    status, answer = _register(seeded, key, plan=[{"event": loud, "count": 1}])
    assert (status, answer["code"]) == (403, "budget_exceeded")
    assert _register(seeded, key)[0] == 201


def test_a_lost_answer_to_the_registration_is_repeated(seeded: SeededLedger) -> None:
    made, other = _issue(seeded), _issue(seeded)
    sent = RUN | {"name": "job"}
    first, second = (_ask(seeded, made["key"], "POST", "/v1/runs", sent, Idempotency_Key="job-1") for _ in range(2))
    assert first == second
    assert first[0] == 201
    status, answer = _ask(seeded, other["key"], "POST", "/v1/runs", sent, Idempotency_Key="job-1")
    assert (status, answer["code"]) == (422, "idempotency_key_reused")


def test_of_registrations_at_once_one_succeeds(seeded: SeededLedger) -> None:
    key = _issue(seeded)["key"]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: _register(seeded, key, f"job-{number}")[0], range(4)))
    assert sorted(answers) == [201, 403, 403, 403]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"role": "admin"}, "single_use"),
        ({"role": "viewer"}, "single_use"),
        ({"scope": None}, "scope"),
        ({"expires_at": None}, "expires_at"),
    ],
)
def test_a_key_for_one_run_is_a_trainer_s_with_scope_and_end(
    shared: SeededLedger, changed: dict[str, object], field: str
) -> None:
    before = shared.rows()
    body = {"role": "trainer", "scope": shared.budget, "expires_at": _in_minutes(), "single_use": True} | changed
    reply = shared.ledger.post("/v1/api-keys", body)
    assert (reply.status_code, reply.json()["code"], reply.json()["field"]) == (422, "invalid_request", field)
    assert shared.rows() == before


def test_a_key_for_one_run_has_no_successor_and_does_not_sign_in(seeded: SeededLedger) -> None:
    made = _issue(seeded)
    for key in (made["key"], seeded.ledger.keys["hospital", "admin"]):
        status, answer = _ask(seeded, key, "POST", f"/v1/api-keys/{made['id']}/rotate", {})
        assert (status, answer["code"]) == (422, "invalid_request")
    page = seeded.ledger.http.post(
        "/sign-in", content=f"key={made['key']}", headers={"Origin": "http://testserver"}, follow_redirects=False
    )
    assert "for one run of a trainer" in page.text
    assert "set-cookie" not in page.headers
