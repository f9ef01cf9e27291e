"""Headers that are not as they should be, and what is said of them."""

import gzip

import httpx2
import pytest

from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.operations import GUARDED, POSTS, Operation
from tests.api.trainer import is_refused

NO_FORM = "The Authorization header holds no key of the form `Bearer key_….…`."
JSON = {"Content-Type": "application/json"}
each = pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)


def _steps(
    shared: SeededLedger, content: bytes, headers: dict[str, str] | list[tuple[bytes, bytes]]
) -> httpx2.Response:
    reply: httpx2.Response = shared.ledger.http.post(
        f"/v1/runs/{shared.run}/steps?dry_run=true", content=content, headers=headers
    )
    return reply


def test_a_key_that_was_sent_but_is_none_is_told_so(shared: SeededLedger) -> None:
    key = shared.ledger.keys["hospital", "admin"]
    key_id = key.partition(".")[0]
    for sent in ("Bearer nope", "Bearer", key, f"Basic {key}", f"Bearer {key_id}", f"Bearer {key_id}.", "Bearer key_0"):
        answer = is_refused(_steps(shared, b"{}", {"Authorization": sent}), 401, "unauthenticated")
        assert answer["detail"] == NO_FORM, sent


def test_whether_a_key_exists_is_not_told(shared: SeededLedger) -> None:
    key_id = shared.ledger.keys["hospital", "admin"].partition(".")[0]
    answers = [
        without_request_id(_steps(shared, b"{}", {"Authorization": f"Bearer {sent}"}))
        for sent in (f"{key_id}.x", "key_none.x")
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("headers", [{}, {"Authorization": ""}])
def test_whoever_sends_no_key_is_asked_for_one(shared: SeededLedger, headers: dict[str, str]) -> None:
    answer = is_refused(_steps(shared, b"{}", headers), 401, "unauthenticated")
    assert answer["detail"].startswith("Send an API key")


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate", "identity, gzip", "x"])
@pytest.mark.parametrize("path", ["steps", "steps?dry_run=true", "reservations"])
def test_a_compressed_body_is_not_taken(shared: SeededLedger, encoding: str, path: str) -> None:
    before = shared.rows()
    headers = shared.ledger.headers() | JSON | {"Content-Encoding": encoding}
    for content in (gzip.compress(b"{}"), b"{}"):  # the second time the key is remembered
        reply = shared.ledger.http.post(f"/v1/runs/{shared.run}/{path}", content=content, headers=headers)
        answer = is_refused(reply, 415, "unsupported_media_type")
        assert answer["detail"] == "Compressed bodies are not taken; send the JSON as it is."
    assert shared.rows() == before


@pytest.mark.parametrize("encoding", ["identity", "Identity", "", " "])
def test_a_body_that_is_encoded_as_itself_is_taken(shared: SeededLedger, encoding: str) -> None:
    headers = shared.ledger.headers() | JSON | {"Content-Encoding": encoding}
    assert _steps(shared, b"{}", headers).status_code == 200


def _doubled(shared: SeededLedger, name: bytes, values: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    usual = {b"authorization": shared.ledger.headers()["Authorization"].encode(), b"content-type": b"application/json"}
    usual.pop(name, None)
    return [*usual.items(), *((name, value) for value in values)]


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.id)
def test_a_doubled_header_is_refused(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    for name, first, second in (
        (b"idempotency-key", b"one", b"two"),
        (b"idempotency-key", b"one", b"one"),
        (b"content-type", b"application/json", b"application/json"),
        (b"content-type", b"application/json", b"text/plain"),
    ):
        path = operation.at(**shared.ids())
        reply = shared.ledger.http.post(path, content=b"{}", headers=_doubled(shared, name, (first, second)))
        answer = is_refused(reply, 422, "invalid_request")
        assert answer["detail"] == f"The header {name.decode().title()} is given twice; send it once."
    assert shared.rows() == before


@each
def test_two_keys_are_refused_though_both_open(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    keys = tuple(shared.ledger.headers(role)["Authorization"].encode() for role in ("admin", "viewer"))
    pairs = [keys, keys[::-1], (keys[0], keys[0]), (keys[0], b"Bearer nope"), (b"", keys[0])]
    for both in pairs if operation.path in {"/v1/runs", "/v1/runs/{run_id}/steps"} else pairs[:2]:
        headers = _doubled(shared, b"authorization", (both[0], both[1]))
        reply = shared.ledger.http.request(operation.method, operation.at(**shared.ids()), headers=headers)
        answer = is_refused(reply, 422, "invalid_request")
        assert answer["detail"] == "The header Authorization is given twice; send it once."
    assert shared.rows() == before


def test_a_stranger_is_told_of_nothing_but_the_key(shared: SeededLedger) -> None:
    doubled = [*_doubled(shared, b"idempotency-key", (b"a", b"b")), (b"content-encoding", b"gzip")]
    headers = [(name, value) for name, value in doubled if name != b"authorization"]
    is_refused(_steps(shared, b"{}", headers), 401, "unauthenticated")
