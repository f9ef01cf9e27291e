"""A key makes creating safe to repeat: one effect, one outcome, the same bytes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED
from tests.persistence.dump import changed

LIMIT = {"epsilon": 1.0, "delta": 1e-5}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/populations": {
        "name": "people",
        "privacy_unit": "user",
        "neighboring_relation": "add_or_remove_one",
        "limit": LIMIT,
    },
    "/v1/budgets": {"name": "team", "parent": "mimic", "limit": LIMIT},
    "/v1/runs": {"name": "again", "budget": "mimic/icu-team", "event": SAMPLED},
}
each_create = pytest.mark.parametrize("path", BODIES)


@each_create
def test_same_key_and_body_get_the_first_answer(seeded: SeededLedger, path: str) -> None:
    first = seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")
    assert first.status_code == 201
    assert "idempotent-replayed" not in first.headers
    before = seeded.rows()
    again = seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"] == "application/json"
    assert seeded.rows() == before


@each_create
def test_same_body_spelled_differently_is_the_same_request(seeded: SeededLedger, path: str) -> None:
    first = seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")
    body = dict(reversed(BODIES[path].items())) | {"planned": []}
    if "limit" in body:
        body["limit"] = {"delta": 0.00001, "epsilon": 1}
    again = seeded.ledger.post(path, body, Idempotency_Key="k-1")
    assert again.content == first.content


@each_create
def test_first_answer_is_repeated_later(seeded: SeededLedger, path: str) -> None:
    first = seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")
    if path == "/v1/runs":
        run = first.json()["id"]
        assert seeded.ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        assert seeded.ledger.post(f"/v1/runs/{run}/abort", None, "trainer").status_code == 200
    else:
        seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, "trainer")
    assert seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1").content == first.content


@each_create
@pytest.mark.parametrize(
    "other",
    [{"name": "other"}, {"planned": [{"event": SAMPLED}]}, {"limit": {"epsilon": 1.0000001, "delta": 1e-5}}],
    ids=["name", "planned", "limit"],
)
def test_same_key_with_another_body_is_refused(seeded: SeededLedger, path: str, other: dict[str, Any]) -> None:
    seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")
    before = seeded.rows()
    reply = seeded.ledger.post(path, BODIES[path] | other, Idempotency_Key="k-1")
    assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_reused")
    assert seeded.rows() == before


@pytest.mark.parametrize(
    ("path", "other"), [(path, other) for path in BODIES for other in (*BODIES, "steps") if other != path]
)
def test_key_belongs_to_one_request_of_one_kind(seeded: SeededLedger, path: str, other: str) -> None:
    steps = f"/v1/runs/{seeded.run}/steps"
    assert seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1").status_code == 201
    before = seeded.rows()
    reply = seeded.ledger.post(steps if other == "steps" else other, BODIES.get(other, {}), Idempotency_Key="k-1")
    assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_reused")
    assert seeded.rows() == before


def test_role_that_may_not_create_does_not_get_the_first_answer(seeded: SeededLedger) -> None:
    seeded.ledger.post("/v1/populations", BODIES["/v1/populations"], Idempotency_Key="k-1")
    reply = seeded.ledger.post("/v1/populations", BODIES["/v1/populations"], "trainer", Idempotency_Key="k-1")
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")


def test_key_out_of_scope_does_not_get_the_first_answer(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    body = BODIES["/v1/runs"]
    assert seeded.ledger.post("/v1/runs", body, Idempotency_Key="k-1").status_code == 201
    bound = seeded.ledger.post("/v1/api-keys", {"role": "trainer", "scope": "mimic/other"}).json()["key"]
    sent = {"Authorization": f"Bearer {bound}", "Idempotency-Key": "k-1"}
    reply = seeded.ledger.http.post("/v1/runs", json=body, headers=sent)
    assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_reused")


@each_create
@pytest.mark.both_databases
def test_sixteen_at_once_with_one_key_make_one_thing(seeded: SeededLedger, path: str) -> None:
    before = seeded.rows()

    def ask(_: int) -> httpx2.Response:
        return seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")

    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(ask, range(16)))
    assert {reply.status_code for reply in replies} == {201}
    assert len({reply.content for reply in replies}) == 1
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 15
    after = seeded.rows()
    assert len(after["accounts"]) == len(before["accounts"]) + 1
    assert len(after["idempotent_responses"]) == 1
    assert "decisions" not in changed(before, after)


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\u00e9", "a\tb", "a\x7f"])
@pytest.mark.parametrize("path", [*BODIES, "steps"])
def test_malformed_key_is_refused(shared: SeededLedger, path: str, key: str) -> None:
    before = shared.rows()
    target = f"/v1/runs/{shared.run}/steps" if path == "steps" else path
    headers = {name.encode(): value.encode("latin-1") for name, value in shared.ledger.headers().items()}
    headers[b"Idempotency-Key"] = key.encode("latin-1")
    reply = shared.ledger.http.post(target, json=BODIES.get(path, {}), headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert shared.rows() == before
