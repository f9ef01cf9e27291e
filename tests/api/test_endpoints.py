"""Every operation of the OpenAPI document, asked in each wrong way that follows from the document itself."""

from collections.abc import Iterator

import httpx2
import pytest

from app.api.strict_json import MAX_BODY_BYTES
from tests.api.conftest import SeededLedger
from tests.api.matrix import HIDDEN, TABLE
from tests.api.operations import (
    DOCUMENT,
    GUARDED,
    NOWHERE,
    OPTIONAL_BODY,
    POSTS,
    PROBLEM_JSON,
    PUBLIC,
    WITH_BODY,
    Operation,
    valid_body,
    valid_headers,
)
from tests.persistence.dump import changed

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True, scope="module")
def unchanged(shared: SeededLedger) -> Iterator[None]:
    """No request of this module changes a row; a key that is tried in vain is an audit event."""
    before = shared.rows()
    yield
    assert changed(before, shared.rows()) <= {"audit_entries"}


def send(
    shared: SeededLedger,
    operation: Operation,
    content: bytes | Iterator[bytes] | None = None,
    headers: dict[str, str] | list[tuple[bytes, bytes]] | None = None,
    query: str = "",
) -> httpx2.Response:
    sent = shared.ledger.headers() | valid_headers(operation) | JSON if headers is None else headers
    path = operation.at(**shared.ids())
    url = path + query.replace("?", "&" if "?" in path else "?")
    return shared.ledger.http.request(operation.method, url, content=content, headers=sent)


def check(reply: httpx2.Response, status: int, code: str, case: object = "") -> None:
    assert (reply.status_code, reply.json()["code"]) == (status, code), (case, reply.text[:500])
    assert reply.headers["content-type"] == PROBLEM_JSON
    assert len(reply.content) < 5_000


def test_every_operation_of_the_document_has_an_entry() -> None:
    assert set(TABLE) == {operation.id for operation in GUARDED}
    hidden = {name for name, (_, elsewhere) in TABLE.items() if elsewhere == HIDDEN}
    assert {operation.id for operation in GUARDED if "{" in operation.path} <= hidden
    without = {operation.id for operation in WITH_BODY if valid_body(operation) is None}
    assert without == OPTIONAL_BODY, "a valid body is missing"


def test_body_of_another_type_or_a_broken_one_is_refused(shared: SeededLedger) -> None:
    key = shared.ledger.headers()
    for operation in POSTS:
        check(send(shared, operation, b"{"), 422, "invalid_request", operation.id)
        check(send(shared, operation, b"{", key), 415, "unsupported_media_type", operation.id)
        encoded = key | JSON | {"Content-Encoding": "gzip"}
        check(send(shared, operation, b"{}", encoded), 415, "unsupported_media_type", operation.id)
    for operation in WITH_BODY:
        contents = [b'{"x": 1, "x": 1}', *([] if operation.id in OPTIONAL_BODY else [b"null"])]
        for content in contents:
            check(send(shared, operation, content), 422, "invalid_request", (operation.id, content))


def chunks(size: int) -> Iterator[bytes]:
    for start in range(0, size, 1 << 16):
        yield b" " * min(1 << 16, size - start)


def test_body_over_a_mebibyte_is_too_large(shared: SeededLedger) -> None:
    for place, operation in enumerate(POSTS):
        body = chunks(MAX_BODY_BYTES + 1) if place % 2 else b" " * (MAX_BODY_BYTES + 1)
        check(send(shared, operation, body), 413, "request_too_large", operation.id)


def _doubled(shared: SeededLedger, name: bytes, *values: bytes) -> list[tuple[bytes, bytes]]:
    usual = {b"authorization": shared.ledger.headers()["Authorization"].encode(), b"content-type": b"application/json"}
    usual.pop(name, None)
    return [*usual.items(), *((name, value) for value in values)]


def test_doubled_header_is_refused(shared: SeededLedger) -> None:
    admin, viewer = (shared.ledger.headers(role)["Authorization"].encode() for role in ("admin", "viewer"))
    values = [
        *((b"authorization", admin, viewer), (b"authorization", viewer, admin), (b"authorization", b"", admin)),
        *((b"idempotency-key", b"one", b"one"), (b"content-type", b"application/json", b"text/plain")),
    ]
    for operation in GUARDED:
        for name, *both in values if operation.id == "authorizeSteps" else values[:1]:
            reply = send(shared, operation, None, _doubled(shared, name, *both))
            check(reply, 422, "invalid_request", operation.id)
            assert reply.json()["detail"] == f"The header {name.decode().title()} is given twice; send it once."


STRANGE_IDS = ("x", "%00", "%FF", "%ED%A0%80", "é", "x" * 3000, "' OR 1=1 --", "*")


def test_unknown_id_is_404(shared: SeededLedger) -> None:
    for operation in GUARDED:
        whole = operation.path in {"/v1/runs/{run_id}", "/v1/runs/{run_id}/steps"}
        for unknown in (STRANGE_IDS if whole else STRANGE_IDS[:2]) if "{" in operation.path else ():
            path, body = operation.at(**dict.fromkeys(NOWHERE, unknown)), valid_body(operation)
            reply = shared.ledger.http.request(operation.method, path, json=body, headers=shared.ledger.headers())
            check(reply, 404, "not_found", (operation.id, unknown))


def test_method_that_a_path_does_not_take_is_answered_with_those_that_it_takes(shared: SeededLedger) -> None:
    for path, taken in DOCUMENT["paths"].items():
        wrong = {"PUT", "PATCH", "DELETE", "TRACE", "FROB", "GET", "POST"} - {method.upper() for method in taken}
        for method in wrong if path == "/v1/runs/{run_id}/steps" else sorted(wrong)[:1]:
            reply = shared.ledger.http.request(method, path.format(**shared.ids()), headers=shared.ledger.headers())
            check(reply, 405, "method_not_allowed", (method, path))
            allowed = {name.strip() for name in reply.headers["allow"].split(",")}
            assert allowed - {"HEAD"} == {name.upper() for name in taken}
            assert reply.json()["detail"].endswith(f": Method Not Allowed; this path takes {reply.headers['allow']}")


def test_operation_is_closed_to_strangers_whatever_they_send(shared: SeededLedger) -> None:
    key, _, secret = shared.ledger.keys["hospital", "admin"].partition(".")
    for operation in GUARDED:
        contents: list[bytes | None] = [None, b"{"]
        if operation.method == "POST":
            contents.append(b"x" * (MAX_BODY_BYTES + 1))
        replies = [send(shared, operation, content, {}) for content in contents]
        replies.append(send(shared, operation, None, {"Authorization": f"Bearer {key}.{secret[::-1]}"}))
        for reply in replies:
            check(reply, 401, "unauthenticated", operation.id)
            assert reply.headers["www-authenticate"] == "Bearer"
        nothing = shared.ledger.http.request(operation.method, operation.at(**NOWHERE))
        assert nothing.json() | {"request_id": None} == replies[0].json() | {"request_id": None}


NO_FORM = "The Authorization header holds no key of the form `Bearer key_….…`."
OTHERS = [
    *("Bearer", "Bearer ", "Bearer nope", "Bearer {id}", "Bearer {id}.", "Bearer .{secret}", "Bearer {id}.{secret}x"),
    *("Basic {id}.{secret}", "{id}.{secret}", "Bearer %.%", "Bearer kéy.sécret", "Bearer {id}.{secret}, {id}.{secret}"),
    "Bearer {other}.{secret}",
]


def test_value_that_is_no_key_is_refused_without_a_word_and_its_scheme_read_in_any_case(shared: SeededLedger) -> None:
    key, _, secret = shared.ledger.keys["hospital", "admin"].partition(".")
    other = shared.ledger.keys["clinic", "admin"].partition(".")[0]
    for value in OTHERS:
        headers = {b"Authorization": value.format(id=key, secret=secret, other=other).encode("latin-1")}
        check(shared.ledger.http.get("/v1/runs", headers=headers), 401, "unauthenticated", value)
    sent = [{"Authorization": f"Bearer {each}.x"} for each in (key, "key_n")]
    known = [shared.ledger.http.get("/v1/runs", headers=each) for each in sent]
    assert known[0].json() | {"request_id": None} == known[1].json() | {"request_id": None}
    assert shared.ledger.http.get("/v1/runs", headers={"Authorization": "Bearer nope"}).json()["detail"] == NO_FORM
    assert shared.ledger.http.get("/v1/runs").json()["detail"].startswith("Send an API key")
    for scheme in ("Bearer", "bearer", "BEARER"):
        named = {"Authorization": f"{scheme} {shared.ledger.keys['hospital', 'viewer']}"}
        assert shared.ledger.http.get("/v1/runs", headers=named).status_code == 200
    for path in PUBLIC - {"/metrics"}:
        assert shared.ledger.http.get(path).json() == {"status": "ok"}
