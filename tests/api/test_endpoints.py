"""Every operation of the OpenAPI document, asked in each wrong way that follows from the document itself."""

import json
from collections.abc import Iterator
from functools import partial

import httpx2
import pytest

from app.api.strict_json import MAX_BODY_BYTES
from tests.api.conftest import SeededLedger
from tests.api.matrix import TABLE
from tests.api.operations import (
    DOCUMENT,
    GUARDED,
    NOWHERE,
    OPTIONAL_BODY,
    POSTS,
    PUBLIC,
    WITH_BODY,
    Operation,
    resolved,
    valid_body,
    valid_headers,
)
from tests.api.wrong_values import QUERIES, changed, schema_of, wrong_members, wrong_texts
from tests.conftest import LiveServer
from tests.persistence.dump import changed as changed_tables
from tests.processor import within

CPU_SECONDS = 2.0
JSON = {"Content-Type": "application/json"}
REFUSED = {"invalid_request", "invalid_event", "unsupported_event", "delta_too_large", "request_too_large"}


def by_id(operations: list[Operation]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operation", operations, ids=lambda operation: operation.id)


@pytest.fixture(autouse=True, scope="module")
def unchanged(shared: SeededLedger) -> Iterator[None]:
    """No request of this module changes a row; a key that is tried in vain is an audit event."""
    before = shared.rows()
    yield
    assert changed_tables(before, shared.rows()) <= {"audit_entries"}


def send(
    shared: SeededLedger,
    operation: Operation,
    content: bytes | Iterator[bytes] | None = None,
    headers: dict[str, str] | list[tuple[bytes, bytes]] | None = None,
    query: str = "",
) -> httpx2.Response:
    sent = shared.ledger.headers() | valid_headers(operation) | JSON if headers is None else headers
    path = operation.at(**shared.ids())
    reply: httpx2.Response = shared.ledger.http.request(
        operation.method, path + query.replace("?", "&" if "?" in path else "?"), content=content, headers=sent
    )
    return reply


def check(reply: httpx2.Response, status: int, code: str, case: object = "") -> None:
    assert (reply.status_code, reply.json()["code"]) == (status, code), (case, reply.text[:500])
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["status"] == status
    assert len(reply.content) < 5_000


def test_every_operation_of_the_document_has_an_entry() -> None:
    assert set(TABLE) == {operation.id for operation in GUARDED}
    for operation in GUARDED:
        assert operation.at(**NOWHERE)
    without = {operation.id for operation in WITH_BODY if valid_body(operation) is None}
    assert without == OPTIONAL_BODY, "a valid body is missing"


@by_id(WITH_BODY)
def test_wrong_member_is_refused_by_its_name(shared: SeededLedger, operation: Operation) -> None:
    for member in wrong_members(operation):
        for body in member.wrong():
            case = member.field, json.dumps(body)[:300]
            reply = within(CPU_SECONDS, partial(send, shared, operation, json.dumps(body).encode()), case)
            assert reply.status_code in {413, 422}, (case, reply.text[:500])
            answer = reply.json()
            check(reply, reply.status_code, answer["code"])
            assert answer["code"] in REFUSED, case
            named = [error["field"] for error in answer.get("errors", ())]
            assert not named or any(_same(field, member.field) for field in named), (case, named)


def _same(named: str, field: str) -> bool:
    """Whether one of them is the other, or lies in it."""
    shorter, longer = sorted((named, field), key=len)
    return longer == shorter or longer.startswith(f"{shorter}.")


@by_id(WITH_BODY)
def test_unknown_member_is_refused_by_its_name(shared: SeededLedger, operation: Operation) -> None:
    places = {member.place[:-1]: member.body for member in wrong_members(operation)} or {
        (): valid_body(operation) or {}
    }
    for place, body in places.items():
        reply = send(shared, operation, json.dumps(changed(body, (*place, "x"), 1)).encode())
        check(reply, 422, "invalid_request")
        assert ".".join(["body", *map(str, place), "x"]) in [error["field"] for error in reply.json()["errors"]]


NOT_STRICT = (b'{"a": 1', b'{"x": NaN}', b'{"x": 1, "x": 1}', b'{"name": "\\ud800"}', b"1", b"[]")


@by_id(WITH_BODY)
def test_body_that_is_no_strict_object_is_refused(shared: SeededLedger, operation: Operation) -> None:
    for content in (*NOT_STRICT, *(() if operation.id in OPTIONAL_BODY else (b"", b"null"))):
        check(send(shared, operation, content), 422, "invalid_request", content)


@by_id(POSTS)
def test_body_of_another_type_or_a_broken_one_is_refused(shared: SeededLedger, operation: Operation) -> None:
    key = shared.ledger.headers()
    check(send(shared, operation, b"{"), 422, "invalid_request")
    check(send(shared, operation, b"{", key), 415, "unsupported_media_type")
    check(send(shared, operation, b"{}", key | {"Content-Type": "text/plain"}), 415, "unsupported_media_type")
    check(send(shared, operation, b"{}", key | JSON | {"Content-Encoding": "gzip"}), 415, "unsupported_media_type")


def chunks(size: int) -> Iterator[bytes]:
    for start in range(0, size, 1 << 16):
        yield b" " * min(1 << 16, size - start)


@by_id(POSTS)
def test_body_over_a_mebibyte_is_too_large(shared: SeededLedger, operation: Operation) -> None:
    check(send(shared, operation, b" " * (MAX_BODY_BYTES + 1)), 413, "request_too_large")
    check(send(shared, operation, chunks(MAX_BODY_BYTES + 1)), 413, "request_too_large")


@pytest.mark.parametrize("in_chunks", [False, True])
def test_process_server_stops_reading_a_body_that_is_too_large(live_server: LiveServer, *, in_chunks: bool) -> None:
    with live_server.client("trainer") as client:
        for operation in POSTS:
            body = chunks(MAX_BODY_BYTES + 1) if in_chunks else b" " * (MAX_BODY_BYTES + 1)
            check(client.post(operation.at(**NOWHERE), content=body, headers=JSON), 413, "request_too_large")


def _lists_of_events(operation: Operation) -> dict[str, object]:
    """A valid body with each list of events that it may have, of a thousand items and one."""
    schema = resolved(schema_of(operation))
    found: dict[str, object] = {}
    for name, of in schema.get("properties", {}).items():
        items = of.get("items", {}).get("$ref", "")
        if items.endswith(("/EventCount", "/PlannedEventInput")):
            found[name] = (valid_body(operation) or {}) | {name: [{}] * 1001}
    return found


@by_id([operation for operation in WITH_BODY if _lists_of_events(operation)])
def test_events_beyond_a_thousand_are_counted_before_they_are_looked_at(
    shared: SeededLedger, operation: Operation
) -> None:
    for name, body in _lists_of_events(operation).items():
        reply = send(shared, operation, json.dumps(body).encode())
        check(reply, 413, "request_too_large", name)
        assert reply.json()["detail"].startswith("A request holds at most 1000 events; this one has 1001.")


def _doubled(shared: SeededLedger, name: bytes, *values: bytes) -> list[tuple[bytes, bytes]]:
    usual = {b"authorization": shared.ledger.headers()["Authorization"].encode(), b"content-type": b"application/json"}
    usual.pop(name, None)
    return [*usual.items(), *((name, value) for value in values)]


@by_id(GUARDED)
def test_doubled_header_is_refused(shared: SeededLedger, operation: Operation) -> None:
    admin, viewer = (shared.ledger.headers(role)["Authorization"].encode() for role in ("admin", "viewer"))
    values = [(b"authorization", admin, viewer), (b"authorization", viewer, admin), (b"authorization", b"", admin)]
    if operation.method == "POST":
        values += [(b"idempotency-key", b"one", b"one"), (b"content-type", b"application/json", b"text/plain")]
    for name, *both in values:
        reply = send(shared, operation, None, _doubled(shared, name, *both))
        check(reply, 422, "invalid_request")
        assert reply.json()["detail"] == f"The header {name.decode().title()} is given twice; send it once."


@by_id([operation for operation in GUARDED if QUERIES[operation.method, operation.path]])
def test_wrong_value_of_a_query_is_refused(shared: SeededLedger, operation: Operation) -> None:
    content = json.dumps(valid_body(operation)).encode() if operation in WITH_BODY else None
    for parameter in QUERIES[operation.method, operation.path]:
        for value in wrong_texts(parameter["schema"]):
            query = f"?{parameter['name']}={value}"
            if parameter["name"] != "reason":  # it is needed, and would be given twice
                check(send(shared, operation, content, query=query), 422, "invalid_request", query)


@by_id(GUARDED)
def test_unknown_parameter_of_a_query_is_refused(shared: SeededLedger, operation: Operation) -> None:
    if operation.method == "GET" or operation.id == "authorizeSteps":
        content = b"{}" if operation.method == "POST" else None
        check(send(shared, operation, content, query="?stauts=active"), 422, "invalid_request")


STRANGE_IDS = ("x", "%00", "%FF", "%ED%A0%80", "é", "x" * 3000, "' OR 1=1 --", "*")


@by_id([operation for operation in GUARDED if "{" in operation.path])
def test_unknown_id_is_404(shared: SeededLedger, operation: Operation) -> None:
    whole = operation.path in {"/v1/runs/{run_id}", "/v1/runs/{run_id}/steps"}
    for unknown in STRANGE_IDS if whole else STRANGE_IDS[:3]:
        path = operation.at(**dict.fromkeys(NOWHERE, unknown))
        headers = shared.ledger.headers()
        reply = shared.ledger.http.request(operation.method, path, json=valid_body(operation), headers=headers)
        check(reply, 404, "not_found", unknown)


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_method_that_a_path_does_not_take_is_answered_with_those_that_it_takes(shared: SeededLedger, path: str) -> None:
    for method in {"PUT", "PATCH", "DELETE", "TRACE", "FROB", "GET", "POST"} - set(
        map(str.upper, DOCUMENT["paths"][path])
    ):
        reply = shared.ledger.http.request(method, path.format(**shared.ids()), headers=shared.ledger.headers())
        check(reply, 405, "method_not_allowed", method)
        taken = {name.strip() for name in reply.headers["allow"].split(",")}
        assert taken - {"HEAD"} == {name.upper() for name in DOCUMENT["paths"][path]}
        assert reply.json()["detail"].endswith(f": Method Not Allowed; this path takes {reply.headers['allow']}")


STRANGERS: dict[str, str | None] = {
    "none": None,
    "no key": "Bearer nonsense",
    "wrong secret": "Bearer {id}.{reversed}",
    "the id of another key": "Bearer {other}.{secret}",
}


@by_id(GUARDED)
def test_operation_is_closed_to_strangers_whatever_they_send(shared: SeededLedger, operation: Operation) -> None:
    key, _, secret = shared.ledger.keys["hospital", "admin"].partition(".")
    other = shared.ledger.keys["clinic", "admin"].partition(".")[0]
    for name, value in STRANGERS.items():
        told = value and value.format(id=key, other=other, secret=secret, reversed=secret[::-1])
        reply = send(shared, operation, None, {} if told is None else {"Authorization": told})
        check(reply, 401, "unauthenticated", name)
        assert reply.headers["www-authenticate"] == "Bearer"
    for content in (b"{", b'{"unknown": 1}', b"x" * (MAX_BODY_BYTES + 1))[: 3 if operation.method == "POST" else 1]:
        check(send(shared, operation, content, {}), 401, "unauthenticated")
    nothing = shared.ledger.http.request(operation.method, operation.at(**NOWHERE))
    answers = [each.json() | {"request_id": None} for each in (nothing, send(shared, operation, None, {}))]
    assert answers[0] == answers[1]


NO_FORM = "The Authorization header holds no key of the form `Bearer key_….…`."
OTHERS = [
    *("Bearer", "Bearer ", "Bearer nope", "Bearer {id}", "Bearer {id}.", "Bearer .{secret}", "Bearer {id}.{secret}x"),
    *("Basic {id}.{secret}", "{id}.{secret}", "Bearer %.%", "Bearer kéy.sécret", "Bearer {id}.{secret}, {id}.{secret}"),
]


def test_value_that_is_no_key_is_refused_without_a_word_on_what_exists(shared: SeededLedger) -> None:
    key, _, secret = shared.ledger.keys["hospital", "admin"].partition(".")
    for value in OTHERS:
        headers = {b"Authorization": value.format(id=key, secret=secret).encode("latin-1")}
        check(shared.ledger.http.get("/v1/runs", headers=headers), 401, "unauthenticated", value)
    known = [
        shared.ledger.http.get("/v1/runs", headers={"Authorization": f"Bearer {each}.x"}) for each in (key, "key_n")
    ]
    assert known[0].json() | {"request_id": None} == known[1].json() | {"request_id": None}
    assert shared.ledger.http.get("/v1/runs", headers={"Authorization": "Bearer nope"}).json()["detail"] == NO_FORM
    assert shared.ledger.http.get("/v1/runs").json()["detail"].startswith("Send an API key")


def test_scheme_of_a_key_is_read_without_regard_to_case_and_health_needs_none(shared: SeededLedger) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {shared.ledger.keys['hospital', 'viewer']}"}
        assert shared.ledger.http.get("/v1/runs", headers=headers).status_code == 200
    for path in PUBLIC - {"/metrics"}:
        assert shared.ledger.http.get(path).json() == {"status": "ok"}
