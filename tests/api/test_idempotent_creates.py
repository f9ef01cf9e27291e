"""A key makes creating safe to repeat: one effect, one outcome, the same bytes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import httpx2
import pytest

from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.api.trainer import is_refused, issue
from tests.conftest import SAMPLED
from tests.persistence.dump import changed

BODIES: dict[str, dict[str, Any]] = {
    "/v1/populations": POPULATION,
    "/v1/budgets": {"name": "team", "parent": "mimic", "limit": LIMIT},
    "/v1/runs": {"name": "again", "budget": "mimic/icu-team", "event": SAMPLED},
}


@pytest.mark.parametrize("path", BODIES)
def test_same_key_and_body_get_the_first_answer(seeded: SeededLedger, path: str) -> None:
    """Also when it is spelled differently, and later; another body is refused."""
    first = seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")
    assert (first.status_code, "idempotent-replayed" in first.headers) == (201, False)
    before = seeded.rows()
    spelled = dict(reversed(BODIES[path].items())) | {"planned": []}
    if "limit" in spelled:
        spelled["limit"] = {"delta": 0.00001, "epsilon": 1}
    for body in (BODIES[path], spelled):
        again = seeded.ledger.post(path, body, Idempotency_Key="k-1")
        assert (again.status_code, again.content, again.headers["idempotent-replayed"]) == (201, first.content, "true")
        assert again.headers["content-type"] == first.headers["content-type"] == "application/json"
    others: list[dict[str, Any]] = [{"name": "other"}, {"planned": [{"event": SAMPLED}]}]
    for other in (*others, {"limit": {"epsilon": 1.0000001, "delta": 1e-5}}):
        reply = seeded.ledger.post(path, BODIES[path] | other, Idempotency_Key="k-1")
        is_refused(reply, 422, "idempotency_key_reused")
    for other_path in BODIES.keys() - {path}:
        reply = seeded.ledger.post(other_path, BODIES[other_path], Idempotency_Key="k-1")
        is_refused(reply, 422, "idempotency_key_reused")
    reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {}, Idempotency_Key="k-1")
    is_refused(reply, 422, "idempotency_key_reused")
    assert seeded.rows() == before
    assert seeded.steps(run=first.json()["id"] if path == "/v1/runs" else "").status_code == 200
    assert seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1").content == first.content


def test_caller_that_may_not_create_does_not_get_the_first_answer(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    issue(seeded.ledger, "bound", "trainer", "mimic/other")
    first = ("/v1/populations", "trainer", 403, "permission_denied")
    for path, role, status, code in (first, ("/v1/runs", "bound", 422, "idempotency_key_reused")):
        assert seeded.ledger.post(path, BODIES[path], Idempotency_Key=path[4:]).status_code == 201
        is_refused(seeded.ledger.post(path, BODIES[path], role, Idempotency_Key=path[4:]), status, code)


def test_sixteen_at_once_with_one_key_make_one_thing(seeded: SeededLedger) -> None:
    path = "/v1/runs"
    before = seeded.rows()

    def ask(_: int) -> httpx2.Response:
        return seeded.ledger.post(path, BODIES[path], Idempotency_Key="k-1")

    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(ask, range(16)))
    assert {(reply.status_code, reply.content) for reply in replies} == {(201, replies[0].content)}
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 15
    after = seeded.rows()
    assert len(after["accounts"]) == len(before["accounts"]) + 1
    assert len(after["idempotent_responses"]) == 1
    assert "decisions" not in changed(before, after)


def test_malformed_key_is_refused(shared: SeededLedger) -> None:
    before = shared.rows()
    headers = {name.encode(): value.encode("latin-1") for name, value in shared.ledger.headers().items()}
    keys = ("", " ", "a b", "x" * 256, "\u00e9", "a\tb", "a\x7f")
    for path, key in (*product(["/v1/runs"], keys), *product([f"/v1/runs/{shared.run}/steps"], keys)):
        sent = headers | {b"Idempotency-Key": key.encode("latin-1")}
        is_refused(shared.ledger.http.post(path, json=BODIES.get(path, {}), headers=sent), 422, "invalid_request")
    assert shared.rows() == before
