"""Bodies that are no strict JSON, too large, or of another type: each is refused by name, and nothing changes."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice

import httpx2
import pytest

from app.api.strict_json import MAX_BODY_BYTES
from tests.api.conftest import SeededLedger
from tests.api.invalid_bodies import fits, wrong_bodies
from tests.api.operations import NOWHERE, OPTIONAL_BODY, POSTS, WITH_BODY, Operation
from tests.api.test_heavy_bodies import CPU_SECONDS
from tests.conftest import SAMPLED, LiveServer
from tests.processor import within

each_body = pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.id)
PARSED_IN_BOTH_WAYS = [operation for operation in WITH_BODY if operation.id in {"authorizeSteps", "createPopulation"}]
"""One whose body is parsed past the framework, and one that stands for all others: they share its parser."""

WHOLLY_WRONG = {"authorizeSteps", "createBudget"}
"""Whose bodies are tried in all wrong ways; of the others each fourth: they are made of the same members."""

each_post = pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.id)
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 50.0}

NOT_STRICT: dict[str, bytes] = {
    "nothing but space": b" \n",
    "cut off": b'{"count": 1',
    "a key alone": b'{"count"}',
    "a bare word": b"count",
    "single quotes": b"{'count': 1}",
    "a trailing comma": b'{"count": 1,}',
    "a comment": b'{"count": 1} // one',
    "two values": b'{"count": 1} {"count": 1}',
    "NaN": b'{"count": NaN}',
    "Infinity": b'{"count": Infinity}',
    "minus Infinity": b'{"count": -Infinity}',
    "an overflowing float": b'{"count": 1e400}',
    "an overflowing negative float": b'{"count": -1e400}',
    "a number of a thousand digits": b'{"count": ' + b"9" * 1000 + b"}",
    "a number of ten thousand digits": b'{"count": ' + b"9" * 10_000 + b"}",
    "NaN in a field that is not known": b'{"x": [{"y": NaN}]}',
    "a key twice": b'{"count": 1, "count": 1}',
    "a key twice by escape": b'{"count": 1, "c\\u006funt": 2}',
    "a key twice inside": b'{"events": [{"event": {"type": "gaussian", "type": "gaussian"}}]}',
    "an unknown key twice": b'{"x": 1, "x": 1}',
    "half a surrogate pair": b'{"name": "\\ud800"}',
    "the other half": b'{"name": "a\\udc00b"}',
    "halves in the wrong order": b'{"name": "\\udc00\\ud800"}',
    "half a surrogate pair as a key": b'{"\\ud800": 1}',
    "a raw surrogate": b'{"name": "\xed\xa0\x80"}',
    "not UTF-8": b'{"name": "\xff"}',
    "cut off in a character": b'{"name": "\xc3',
    "latin-1": '{"name": "é"}'.encode("latin-1"),
    "UTF-16": '{"name": "a"}'.encode("utf-16"),
    "UTF-8 with a mark": b'\xef\xbb\xbf{"name": "a"}',
    "NUL by escape": b'{"name": "a\\u0000b"}',
    "NUL by escape as a key": b'{"\\u0000": 1}',
    "NUL by escape where no text belongs": b'{"event": {"type": "gaussian", "noise_multiplier": "\\u0000"}}',
    "a number of half a mebibyte": b'{"count": ' + b"9" * (1 << 19) + b"}",
    "a float of half a mebibyte": b'{"count": 0.' + b"9" * (1 << 19) + b"e999}",
    "a raw control character": b'{"name": "a\x01b"}',
    "a raw line break": b'{"name": "a\nb"}',
    "a bad escape": b'{"name": "\\x41"}',
    "a zero byte": b"\x00",
    "arrays 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "arrays 100,000 deep, never closed": b"[" * 100_000,
    "arrays 5,000 deep inside": b'{"name": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
}
NOT_AN_OBJECT: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "true": b"true",
    "a number": b"1",
    "a text": b'"count"',
    "an array": b"[]",
    "an array of an object": b'[{"count": 1}]',
    "pairs": b'[["count", 1]]',
}


def _send(
    shared: SeededLedger, operation: Operation, body: bytes | Iterator[bytes], content_type: str | None
) -> httpx2.Response:
    headers = shared.ledger.headers()
    if content_type is not None:
        headers["Content-Type"] = content_type
    return shared.ledger.http.request(operation.method, operation.at(**shared.ids()), content=body, headers=headers)


def _check(reply: httpx2.Response, status: int, code: str) -> None:
    assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text[:500]
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["status"] == status
    assert len(reply.content) < 5_000


@pytest.mark.parametrize("what", [*NOT_STRICT, *NOT_AN_OBJECT])
@pytest.mark.parametrize("operation", PARSED_IN_BOTH_WAYS, ids=lambda operation: operation.id)
def test_what_is_no_strict_object_is_an_invalid_request(shared: SeededLedger, operation: Operation, what: str) -> None:
    before = shared.rows()
    body = (NOT_STRICT | NOT_AN_OBJECT)[what]
    _check(_send(shared, operation, body, "application/json"), 422, "invalid_request")
    assert shared.rows() == before


@each_body
def test_every_operation_reads_its_body_strictly(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    for what in ("cut off", "NaN", "a key twice", "an unknown key twice", "half a surrogate pair"):
        _check(_send(shared, operation, NOT_STRICT[what], "application/json"), 422, "invalid_request")
    for what in ("a number", "an array", *(() if operation.id in OPTIONAL_BODY else ("empty", "null"))):
        _check(_send(shared, operation, NOT_AN_OBJECT[what], "application/json"), 422, "invalid_request")
    for content_type in (None, "text/plain"):
        _check(_send(shared, operation, b"{}", content_type), 415, "unsupported_media_type")
    assert shared.rows() == before


@each_body
def test_what_is_wrong_in_one_place_is_never_taken_and_never_breaks_the_service(
    shared: SeededLedger, operation: Operation
) -> None:
    """Of what the document lets pass, the service may still refuse some; of what it does not, it takes nothing."""
    before = shared.rows()
    headers = shared.ledger.headers() | {"Content-Type": "application/json"}
    taken = False
    for what, body in islice(wrong_bodies(operation), 0, None, 1 if operation.id in WHOLLY_WRONG else 4):
        ask = partial(shared.ledger.http.request, operation.method, operation.at(**NOWHERE), headers=headers)
        reply: httpx2.Response = within(CPU_SECONDS, partial(ask, content=json.dumps(body)), what)
        assert reply.status_code < 500, what
        taken = taken or reply.is_success
        if reply.status_code not in {413, 422}:
            assert fits(operation, body), what
        if not reply.is_success:
            _check(reply, reply.status_code, reply.json()["code"])
    assert taken or shared.rows() == before


@pytest.mark.parametrize(
    "content_type",
    [
        *(None, "", "text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data"),
        *("application/jsonx", "application/octet-stream", "json", "application/xml", "application/x-json-stream"),
    ],
)
@pytest.mark.parametrize("operation", PARSED_IN_BOTH_WAYS, ids=lambda operation: operation.id)
def test_a_body_of_another_type_is_refused(
    shared: SeededLedger, operation: Operation, content_type: str | None
) -> None:
    before = shared.rows()
    _check(_send(shared, operation, b"{}", content_type), 415, "unsupported_media_type")
    assert shared.rows() == before


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/v1+json"]
)
def test_json_by_any_of_its_names_is_read(shared: SeededLedger, content_type: str) -> None:
    headers = shared.ledger.headers() | {"Content-Type": content_type}
    path = f"/v1/runs/{shared.run}/steps?dry_run=true"
    assert shared.ledger.http.post(path, content=b'{"count": 1}', headers=headers).status_code == 200


def _chunks(size: int) -> Iterator[bytes]:
    for start in range(0, size, 1 << 16):
        yield b" " * min(1 << 16, size - start)


@each_post
def test_a_body_over_a_mebibyte_is_too_large(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    for size in (MAX_BODY_BYTES + 1, 4 * MAX_BODY_BYTES):
        for body in (b" " * size, _chunks(size)):
            _check(_send(shared, operation, body, "application/json"), 413, "request_too_large")
    assert shared.rows() == before


def test_a_body_of_exactly_a_mebibyte_is_read(shared: SeededLedger) -> None:
    body = b'{"count": 1' + b" " * (MAX_BODY_BYTES - 12) + b"}"
    assert len(body) == MAX_BODY_BYTES
    headers = shared.ledger.headers() | {"Content-Type": "application/json"}
    path = f"/v1/runs/{shared.run}/steps?dry_run=true"
    assert shared.ledger.http.post(path, content=body, headers=headers).status_code == 200


@each_post
def test_an_operation_without_a_body_does_not_take_a_broken_one(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    _check(_send(shared, operation, b"{", "application/json"), 422, "invalid_request")
    _check(_send(shared, operation, b"{", None), 415, "unsupported_media_type")
    assert shared.rows() == before


MANY = [{"event": GAUSSIAN}] * 1001
PLANNED = [{"event": GAUSSIAN, "count": 1}] * 1001
TOO_MANY: dict[str, dict[str, object]] = {
    "createPopulation": {
        "name": "many",
        "privacy_unit": "user",
        "neighboring_relation": "add_or_remove_one",
        "limit": {"epsilon": 1.0, "delta": 1e-5},
        "planned": PLANNED,
    },
    "createBudget": {"name": "many", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-5}, "planned": PLANNED},
    "createRun": {"name": "many", "budget": "mimic/icu-team", "planned": PLANNED},
    "createExperiment": {"name": "many", "budget": "mimic/icu-team", "charging_mode": "each_run", "planned": PLANNED},
    "authorizeSteps": {"events": MANY},
    "createReservation": {"plan": MANY},
    "previewWait": {"plan": MANY},
    "computeEpsilon": {"delta": 1e-5, "events": MANY},
    "computeDelta": {"epsilon": 1.0, "events": MANY},
    "computeEpsilonTrajectory": {"delta": 1e-5, "events": MANY},
    "findNoiseMultiplier": {"event": GAUSSIAN, "count": 1, "epsilon": 1.0, "delta": 1e-5, "other_events": MANY},
    "findMaxSteps": {"event": GAUSSIAN, "epsilon": 1.0, "delta": 1e-5, "other_events": MANY},
    "findSamplingProbability": {"event": SAMPLED, "count": 1, "epsilon": 1.0, "delta": 1e-5, "other_events": MANY},
}
WITHOUT_EVENTS = {
    *("computeLaplaceCost", "completeRun", "abortRun", "createAttempt", "commitReservation"),
    *("createApiKey", "rotateApiKey", "revokeApiKey", "changeAccountLimit", "approveProposal", "rejectProposal"),
    *("replaceOrganisationPolicy", "replaceAccountPolicy", "liftQuarantine", "requestLimit"),
    *("updatePopulation", "updateBudget", "updateRun", "archiveAccount", "unarchiveAccount"),
    *("createReceiver", "rotateReceiverSecret", "replaceAlertSettings", "createBlocks"),
    *("replaceBlockSchedule", "replaceAllocation", "cancelReservation", "prioritizeReservation"),
}
each_with_events = pytest.mark.parametrize(
    "operation", [one for one in WITH_BODY if one.id not in WITHOUT_EVENTS], ids=lambda operation: operation.id
)


@each_with_events
def test_a_thousand_and_one_events_are_too_many(shared: SeededLedger, operation: Operation) -> None:
    before = shared.rows()
    body = json.dumps(TOO_MANY[operation.id]).encode()
    _check(_send(shared, operation, body, "application/json"), 413, "request_too_large")
    assert shared.rows() == before


@each_with_events
def test_too_many_are_counted_before_they_are_looked_at(shared: SeededLedger, operation: Operation) -> None:
    before, large = shared.rows(), TOO_MANY[operation.id]
    items: list[object] = [{}, 0, None, []]
    for item in items:
        many = {key: [item] * 1001 if isinstance(value, list) else value for key, value in large.items()}
        _check(_send(shared, operation, json.dumps(many).encode(), "application/json"), 413, "request_too_large")
    assert shared.rows() == before


@pytest.mark.parametrize("field", ["planned", "plan"])
def test_each_list_of_a_run_is_counted(shared: SeededLedger, field: str) -> None:
    body = {"name": "n", "budget": "mimic/icu-team", field: [{}] * 150_000}
    reply = within(1.0, lambda: shared.ledger.post("/v1/runs", body))
    assert (reply.status_code, reply.json()["code"]) == (413, "request_too_large")
    assert reply.json()["detail"].startswith("A request holds at most 1000 events; this one has 150000.")


# Of planning, `make soak` takes them: test_planning_bad_input.py tries the same of it.
@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(one, marks=pytest.mark.soak if "/accounting/" in one.path else ())
        for one in WITH_BODY
        if one.id not in WITHOUT_EVENTS
    ],
    ids=lambda operation: operation.id,
)
def test_a_thousand_events_are_fine(shared: SeededLedger, operation: Operation) -> None:
    few = {key: value[:-1] if isinstance(value, list) else value for key, value in TOO_MANY[operation.id].items()}
    reply = _send(shared, operation, json.dumps(few).encode(), "application/json")
    assert reply.status_code in {200, 201, 403}, reply.text
    assert reply.json().get("code") in {None, "budget_exceeded"}


@pytest.mark.parametrize(
    "body",
    [
        {"x" * 500_000: 1},
        {"event": {"type": "x" * 500_000}},
        {"events": [{"event": GAUSSIAN, "x" * 900: 1}] * 100},
        {"mode": "x" * 500_000},
    ],
    ids=["a field's name", "an event's type", "many fields' names", "a value"],
)
def test_a_problem_does_not_carry_a_large_request_back(shared: SeededLedger, body: dict[str, object]) -> None:
    reply = shared.ledger.post(f"/v1/runs/{shared.run}/steps", body)
    assert reply.status_code == 422
    assert len(reply.content) < 20_000


@pytest.mark.parametrize("how", ["at once", "in chunks"])
def test_a_real_server_stops_reading_a_body_that_is_too_large(live_server: LiveServer, how: str) -> None:
    with live_server.client("trainer") as client:
        for operation in POSTS:
            path = operation.at(**NOWHERE)
            body = b" " * (MAX_BODY_BYTES + 1) if how == "at once" else _chunks(MAX_BODY_BYTES + 1)
            reply = client.post(path, content=body, headers={"Content-Type": "application/json"})
            _check(reply, 413, "request_too_large")
        assert client.get("/v1/runs").json() == {"items": [], "next": None}


def test_the_table_of_too_many_events_knows_every_operation() -> None:
    assert set(TOO_MANY) | WITHOUT_EVENTS == {operation.id for operation in WITH_BODY}
