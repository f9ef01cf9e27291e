"""The hot route answers as FastAPI would: the same endpoint behind a plain route gets the same answer to everything."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2
import pytest

from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.step_routes import BOTH, serving_both, watched
from tests.api.trainer import LOUD, QUIET, counted
from tests.conftest import SAMPLED

JSON = {"content-type": "application/json"}
SMALL, VAST = b"{}", b'{"count": 1000000000}'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[SeededLedger]:
    with serving_both(tmp_path_factory.mktemp("shared"), module_database_url) as shared:
        yield shared


def _ask(
    shared: SeededLedger, place: str, content: bytes, query: str, headers: dict[str, str] | list[tuple[bytes, bytes]]
) -> httpx2.Response:
    known = [*shared.ledger.headers("trainer").items(), ("X-Request-Id", "mine")]
    sent: Any = [*known, *(headers.items() if isinstance(headers, dict) else headers)]
    sent = [
        (name.encode() if isinstance(name, str) else name, value.encode() if isinstance(value, str) else value)
        for name, value in sent
    ]
    reply: httpx2.Response = shared.ledger.http.post(
        place.format(run=shared.run) + query, content=content, headers=sent
    )
    return reply


def _same(
    shared: SeededLedger,
    content: bytes,
    query: str = "",
    headers: dict[str, str] | list[tuple[bytes, bytes]] | None = None,
) -> httpx2.Response:
    """Ask both ways, and compare all of the answers."""
    hot, plain = (_ask(shared, place, content, query, JSON if headers is None else headers) for place in BOTH)
    assert hot.status_code == plain.status_code, (hot.text, plain.text)
    assert hot.json() == plain.json()
    kept = [{name: reply.headers.get(name) for name in ("content-type", "retry-after")} for reply in (hot, plain)]
    assert kept[0] == kept[1]
    return hot


def test_the_two_ways_are_two(shared: SeededLedger) -> None:
    """What is compared here is not one way with itself."""
    with watched() as asked:
        assert {_ask(shared, place, VAST, "", JSON).status_code for place in BOTH} == {403}
    assert asked == [shared.run]


GOOD: list[bytes] = [
    b"{}",
    b' {"count" : 3 }\n',
    b'{"count": null, "event": null, "events": null, "first_step": null}',
    b'{"first_step": 1, "attempt": 1, "mode": "authorize", "on_exceed": "refuse"}',
    b'{"on_exceed": "truncate", "count": 1000000000}',
    b'{"mode": "report", "count": 100000}',
    httpx2.Request("POST", "http://x", json={"event": LOUD, "count": 2}).content,
    httpx2.Request("POST", "http://x", json={"events": counted((LOUD, 2), (SAMPLED, 1), (QUIET, 4))}).content,
]


@pytest.mark.parametrize("content", GOOD)
def test_good_bodies(shared: SeededLedger, content: bytes) -> None:
    assert _same(shared, content, "?dry_run=true").status_code == 200


BAD: list[bytes] = [
    *(b"", b" ", b"null", b"[]", b"[{}]", b"1", b"1.5", b"true", b'"{}"', b'""', b"{", b"{}{}", b"{'a': 1}"),
    *(b'{"count": 1, "count": 1}', b'{"count": NaN}', b'{"count": Infinity}', b'{"count": 1e400}', b'{"count": 1.0}'),
    *(b'{"count": 0}', b'{"count": -1}', b'{"count": 1000000001}', b'{"count": true}', b'{"count": "1"}'),
    *(b'{"first_step": -1}', b'{"first_step": 9007199254740993}', b'{"first_step": 1.5}', b'{"attempt": 0}'),
    *(b'{"attempt": null}', b'{"mode": "ask"}', b'{"mode": null}', b'{"on_exceed": "cut"}', b'{"nothing": 1}'),
    *(b'{"mode": "report", "on_exceed": "truncate"}', b'{"count": 1, "events": []}', b'{"events": []}'),
    *(b'{"event": {}}', b'{"event": {"type": "none"}}', b'{"event": {"type": "gaussian"}}', b'{"event": []}'),
    b'{"event": {"type": "gaussian", "noise_multiplier": 0}}',
    b'{"event": {"type": "gaussian", "noise_multiplier": "1"}}',
    b'{"event": {"type": "gaussian", "noise_multiplier": 1, "more": 2}}',
    b'{"event": {"type": "poisson_sampled", "sampling_probability": 2, "event": {"type": "gaussian"}}}',
    b'{"events": [{"event": {"type": "gaussian", "noise_multiplier": 1}, "count": 0}, 7, {"count": 1}]}',
    b'{"events": {"0": 1}}',
    b'{"events": "all"}',
    b"\xef\xbb\xbf{}",
    b'{"\xff": 1}',
    b'{"count": "\\ud800"}',
    b'{"\x00": 1}',
    b"[" * 5000,
    b'{"event": ' + b'{"type": "self_composed", "count": 1, "event": ' * 900 + b"{}" + b"}" * 901,
    b'{"count": ' + b"9" * 5000 + b"}",
    b'{"event": ' + b'{"type": "self_composed", "count": 1, "event": ' * 260 + SMALL + b"}" * 261,
    b'{"event": ' + b'{"type": "self_composed", "count": 1, "event": ' * 17 + SMALL + b"}" * 18,
    b'{"events": [' + b",".join([b"{}"] * 900) + b"]}",
    b'{"events": [' + b",".join([b"{}"] * 1001) + b"]}",
    b"{" + b",".join(b'"%d": 0' % number for number in range(1001)) + b"}",
    b'{"a": "' + b"x" * 1_100_000 + b'"}',
    b'{"events": [' + b",".join([b'{"event": {"type": "gaussian", "noise_multiplier": 50}}'] * 1001) + b"]}",
]


def test_bad_bodies(shared: SeededLedger) -> None:
    before = shared.rows()
    for content in BAD:
        assert 400 <= _same(shared, content).status_code < 500, content[:40]
    assert shared.rows() == before


CONTENT_TYPES = [
    *("application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json;charset=latin-1"),
    *("application/merge-patch+json", "application/problem+json", "text/json", "text/plain", "application/jsonx"),
    *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", "", "/", "application/"),
    *(" application/json ", "application/json, text/plain", "*/*", "application/+json"),
]


@pytest.mark.parametrize("content", [VAST, b"", b"{", b"null"])
def test_content_types(shared: SeededLedger, content: bytes) -> None:
    for content_type in CONTENT_TYPES:
        _same(shared, content, headers={"content-type": content_type})


@pytest.mark.parametrize("content", [VAST, b"", b"{"])
def test_no_content_type(shared: SeededLedger, content: bytes) -> None:
    _same(shared, content, headers={})


@pytest.mark.parametrize(
    "key", [b"k", b"!", b"~" * 10, b"", b" ", b"a b", b"a\tb", b"\xe4", b"\x7f", b"k" * 255, b"k" * 256, b"k" * 5000]
)
def test_keys(shared: SeededLedger, key: bytes) -> None:
    """A good key is used up by the first way: the second one gets the first answer."""
    good = key in {b"k", b"!", b"~" * 10, b"k" * 255}
    reply = _same(shared, VAST, headers=[(b"content-type", b"application/json"), (b"idempotency-key", key)])
    assert reply.status_code == (403 if good else 422)
    again = _same(shared, b"{}", headers=[(b"content-type", b"application/json"), (b"idempotency-key", key)])
    assert again.status_code == 422


def test_two_keys(shared: SeededLedger) -> None:
    headers = [(b"content-type", b"application/json"), (b"idempotency-key", b"one"), (b"idempotency-key", b"two")]
    assert _same(shared, VAST, headers=headers).status_code == 422
    _same(shared, b"{}", headers=[headers[0], (b"idempotency-key", b"")])


def test_two_content_types(shared: SeededLedger) -> None:
    headers = [(b"content-type", b"application/json")] * 2
    assert _same(shared, VAST, headers=headers).status_code == 422


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("identity", 403), ("", 403)])
def test_encodings(shared: SeededLedger, encoding: str, status: int) -> None:
    assert _same(shared, VAST, headers=JSON | {"content-encoding": encoding}).status_code == status


TRUE, FALSE = ["true", "True", "TRUE", "1", "yes", "on", "t", "y"], ["false", "0", "no", "off", "f", "N"]
NEITHER = ["", "2", "-1", "1.0", "null", "tru", "%20true", "true%20", "%00", "%FF", "true&dry_run=true", "1&x=1"]


def test_dry_run(shared: SeededLedger) -> None:
    for value in NEITHER:
        assert _same(shared, VAST, f"?dry_run={value}").status_code == 422, value
    for value in (*TRUE, *FALSE):
        reply = _same(shared, VAST, f"?dry_run={value}")
        assert (reply.status_code, reply.json()["dry_run"]) == (403, value in TRUE), value


@pytest.mark.parametrize(
    "query", ["?", "?&", "?dryrun=true", "?Dry_run=1", "?dry_run", "?=1", "?dry_run=1;x=1", "?a&b"]
)
def test_other_queries(shared: SeededLedger, query: str) -> None:
    before = shared.rows()
    reply = _same(shared, VAST, query)
    assert reply.status_code in {403, 422}
    assert (shared.rows() == before) == (reply.status_code == 422)


@pytest.mark.parametrize("content", [b'{"count": 0, "first_step": -1, "x": 1}', b"null", b"", b"[]", b"{"])
def test_all_at_once(shared: SeededLedger, content: bytes) -> None:
    """What is wrong is told in the same order."""
    for query, key in product(("?dry_run=maybe", "?dry_run=maybe&x=1", "?dry_run=true"), ("a b", "good")):
        _same(shared, content, query, {"content-type": "application/json", "idempotency-key": key})


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nothing"}, {"authorization": "Basic x"}])
def test_who_asks_is_found_out_first(shared: SeededLedger, headers: dict[str, str]) -> None:
    replies = [
        shared.ledger.http.post(place.format(run=shared.run) + "?x=1", content=b"{", headers=headers) for place in BOTH
    ]
    assert {reply.status_code for reply in replies} == {401}
    assert without_request_id(replies[0]) == without_request_id(replies[1])


@pytest.mark.parametrize("run", ["run_nothing", "%20", "run_%C3%A9", "a%2Fb", "%00", "run_x%0A"])
def test_runs_that_are_not_there(shared: SeededLedger, run: str) -> None:
    replies = [
        shared.ledger.http.post(place.format(run=run), content=SMALL, headers=shared.ledger.headers("trainer") | JSON)
        for place in BOTH
    ]
    assert [reply.status_code for reply in replies] == [404, 404]
    plain, hot = (json.dumps(without_request_id(reply)).replace("/plain/", "/runs/") for reply in replies)
    assert plain == hot


def test_a_viewer_is_told_the_same(shared: SeededLedger) -> None:
    headers = shared.ledger.headers("viewer") | JSON
    replies = [shared.ledger.http.post(place.format(run=shared.run), content=SMALL, headers=headers) for place in BOTH]
    assert [reply.status_code for reply in replies] == [403, 403]
    assert without_request_id(replies[0]) == without_request_id(replies[1])
