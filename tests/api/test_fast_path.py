"""A step is answered on the connection as the framework would answer it: the same bytes, whatever was sent."""

from collections.abc import Iterator
from itertools import product

import httpx2
import pytest

from tests.api.step_routes import BOTH, JSON, NAMED, Answer, Client, Ports, request, serving_both, watched
from tests.api.trainer import LOUD, QUIET, counted
from tests.conftest import SAMPLED

SMALL, VAST = b"{}", b'{"count": 1000000000}'


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Ports]:
    with serving_both(tmp_path_factory.mktemp("shared"), module_database_url) as ports:
        yield ports


def _same(ports: Ports, content: bytes, *headers: tuple[bytes, bytes], query: str = "") -> Answer:
    return ports.same(ports.request(content, NAMED, *headers, query=query))


def test_routes_of_steps_differ(ports: Ports) -> None:
    """What is compared here is not one way with itself."""
    with watched() as asked:
        assert {ports.ask(way, ports.request(VAST)).status for way in BOTH} == {403}
    assert asked == [ports.seeded.run]


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
def test_good_bodies_are_answered_alike(ports: Ports, content: bytes) -> None:
    assert _same(ports, content, JSON, query="?dry_run=true").status == 200


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


def test_bad_bodies_are_answered_alike(ports: Ports) -> None:
    before = ports.seeded.rows()
    for content in BAD:
        assert 400 <= _same(ports, content, JSON).status < 500, content[:40]
    assert ports.seeded.rows() == before


CONTENT_TYPES = [
    *("application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json;charset=latin-1"),
    *("application/merge-patch+json", "application/problem+json", "text/json", "text/plain", "application/jsonx"),
    *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", "", "/", "application/"),
    *(" application/json ", "application/json, text/plain", "*/*", "application/+json"),
]


@pytest.mark.parametrize("content", [VAST, b"", b"{", b"null"])
def test_content_types_are_answered_alike(ports: Ports, content: bytes) -> None:
    for content_type in CONTENT_TYPES:
        _same(ports, content, (b"content-type", content_type.encode()))
    _same(ports, content)
    assert _same(ports, content, JSON, JSON).status == 422


@pytest.mark.parametrize(
    "key", [b"k", b"!", b"~" * 10, b"", b" ", b"a b", b"a\tb", b"\xe4", b"\x7f", b"k" * 255, b"k" * 256, b"k" * 5000]
)
def test_idempotency_keys_are_answered_alike(ports: Ports, key: bytes) -> None:
    """A good key is used up by the first request: each later one gets its answer, and another body is an error."""
    good, unsendable = key in {b"k", b"!", b"~" * 10, b"k" * 255}, key == b"\x7f"
    sent = ((b"idempotency-key", key), JSON)
    ports.ask(0, ports.request(VAST, *sent))
    answer = _same(ports, VAST, *sent)
    assert answer.status == (403 if good else 400 if unsendable else 422)
    assert answer.header(b"idempotent-replayed") == (b"true" if good else None)
    assert _same(ports, SMALL, *sent).status == (400 if unsendable else 422)


@pytest.mark.parametrize(("encoding", "status"), [(b"gzip", 415), (b"identity", 403), (b"", 403)])
def test_content_encodings_are_answered_alike(ports: Ports, encoding: bytes, status: int) -> None:
    assert _same(ports, VAST, JSON, (b"content-encoding", encoding)).status == status


TRUE, FALSE = ["true", "True", "TRUE", "1", "yes", "on", "t", "y"], ["false", "0", "no", "off", "f", "N"]
NEITHER = ["", "2", "-1", "1.0", "null", "tru", "%20true", "true%20", "%00", "%FF", "true&dry_run=true", "1&x=1"]


def test_values_of_dry_run_are_answered_alike(ports: Ports) -> None:
    for value in NEITHER:
        assert _same(ports, VAST, JSON, query=f"?dry_run={value}").status == 422, value
    for value in (*TRUE, *FALSE):
        answer = _same(ports, VAST, JSON, query=f"?dry_run={value}")
        assert answer.status == 403
        assert (b'"dry_run": true' in answer.body) == (value in TRUE), value


@pytest.mark.parametrize(
    "query", ["?", "?&", "?dryrun=true", "?Dry_run=1", "?dry_run", "?=1", "?dry_run=1;x=1", "?a&b"]
)
def test_unknown_queries_are_answered_alike(ports: Ports, query: str) -> None:
    before = ports.seeded.rows()
    answer = _same(ports, VAST, JSON, query=query)
    assert answer.status in {403, 422}
    assert (ports.seeded.rows() == before) == (answer.status == 422)


@pytest.mark.parametrize("content", [b'{"count": 0, "first_step": -1, "x": 1}', b"null", b"", b"[]", b"{"])
def test_several_errors_are_answered_in_the_same_order(ports: Ports, content: bytes) -> None:
    """What is wrong is told in the same order."""
    for query, key in product(("?dry_run=maybe", "?dry_run=maybe&x=1", "?dry_run=true", ""), (b"a b", b"good")):
        _same(ports, content, JSON, (b"idempotency-key", key), query=query)


@pytest.mark.parametrize("credential", [None, b"Bearer nothing", b"Basic x", b"Bearer key_x.secret"])
def test_unknown_credentials_are_answered_alike(ports: Ports, credential: bytes | None) -> None:
    known = () if credential is None else ((b"authorization", credential),)
    for content in (b"{", VAST):
        sent = request(f"/v1/runs/{ports.seeded.run}/steps", content, *known, JSON, NAMED)
        assert ports.same(sent).status == 401


@pytest.mark.parametrize("run", ["run_nothing", "%20", "run_%C3%A9", "a%2Fb", "%00", "run_x%0A", ".", "..", "a/b", ""])
def test_missing_runs_are_answered_alike(ports: Ports, run: str) -> None:
    answer = ports.same(ports.request(SMALL, JSON, NAMED, path=f"/v1/runs/{run}/steps"))
    assert answer.status == 404


def test_viewer_is_answered_alike(ports: Ports) -> None:
    who = ports.seeded.ledger.headers("viewer")["Authorization"].encode()
    sent = request(f"/v1/runs/{ports.seeded.run}/steps", SMALL, (b"authorization", who), JSON, NAMED)
    ports.same(sent)  # afterwards the caller is known
    with watched() as asked:
        assert ports.same(sent).status == 403
    assert asked == [ports.seeded.run]


@pytest.mark.parametrize("scheme", [b"https", b" https ", b"http", b"HTTPS", b"wss", b"https, http", b""])
def test_forwarded_scheme_is_answered_alike(ports: Ports, scheme: bytes) -> None:
    forwarded = ((b"x-forwarded-proto", scheme), (b"x-forwarded-for", b"192.0.2.1"))
    with watched() as asked:
        answer = _same(ports, VAST, JSON, *forwarded)
    assert asked == [ports.seeded.run]
    assert (answer.header(b"strict-transport-security") is not None) == (scheme.strip() == b"https")


@pytest.mark.parametrize("name", [b"a name", b"x" * 500, b"", b"r/1.2:3_4+5=-"])
def test_request_ids_are_answered_alike(ports: Ports, name: bytes) -> None:
    answers = [ports.ask(way, ports.request(VAST, JSON, (b"x-request-id", name))) for way in BOTH]
    given = [answer.header(b"x-request-id") for answer in answers]
    assert all(found == name if name.startswith(b"r/") else found and found.startswith(b"req_") for found in given)
    one, two = (
        Answer(answer.head.replace(found or b"", b"N"), answer.body.replace(found or b"", b"N"))
        for answer, found in zip(answers, given, strict=True)
    )
    assert one == two


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_answered_alike(ports: Ports, method: str) -> None:
    who = ports.seeded.ledger.headers("trainer")["Authorization"].encode()
    sent = request(
        f"/v1/runs/{ports.seeded.run}/steps",
        VAST,
        (b"authorization", who),
        JSON,
        NAMED,
        (b"connection", b"close"),
        method=method,
    )
    raw = []
    for way in BOTH:
        with Client(ports.of[way]) as client, watched() as asked:
            client.send(sent)
            raw.append(client.rest())
        assert asked == []
    assert raw[0] == raw[1]
    assert raw[0].startswith(b"HTTP/1.1 405 ")
