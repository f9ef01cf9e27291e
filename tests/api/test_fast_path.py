"""A step is answered on the fast path as the framework would answer it: the same bytes, whatever was sent."""

import json
from collections.abc import Iterator, Sequence
from itertools import count, product
from typing import Any

import pytest
from fastapi import FastAPI
from uvicorn.server import ServerState

from app.accounting.errors import UnsupportedEventError
from app.api.schemas.steps import StepAuthorization
from app.http.step_path import StepPath
from app.ledger.errors import AttemptSupersededError, LedgerUnavailableError, NotFoundError, SequenceGapError
from app.service.charging import commit_queue
from tests.api.conftest import furnish
from tests.api.step_routes import BOTH, JSON, NAMED, SHORT, USUAL, Answer, Ports, listening, request, watched
from tests.api.trainer import LOUD, QUIET, counted
from tests.conftest import SAMPLED, open_ledger
from tests.soak import in_turns

SMALL, VAST = b"{}", b'{"count": 1000000000}'
"""The second is refused, so that nothing changes but the chain."""
KEY = (b"idempotency-key", b"a-key")
STEPS = "/v1/runs/{run}/steps"


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Ports]:
    with open_ledger(tmp_path_factory.mktemp("shared"), module_database_url) as ledger:
        seeded, state, app, portal = furnish(ledger), ServerState(), ledger.http.app, ledger.http.portal
        assert isinstance(app, FastAPI)
        state.default_headers = [(b"date", b"Mon, 23 Nov 2026 12:00:00 GMT")]
        with (
            listening(StepPath(app), state, portal) as short,
            listening(app, state, portal) as usual,
        ):
            yield Ports(seeded, (short, usual), state)


def _same(ports: Ports, content: bytes, *headers: tuple[bytes, bytes], query: str = "") -> Answer:
    return ports.same(ports.request(content, NAMED, *headers, query=query))


NESTED = b'{"type": "self_composed", "count": 1, "event": '
GOOD: list[bytes] = [
    b"{}",
    b' {"count" : 3 }\n',
    b'{"count": null, "event": null, "events": null, "first_step": null}',
    b'{"first_step": 1, "attempt": 1, "mode": "authorize", "on_exceed": "refuse"}',
    b'{"on_exceed": "truncate", "count": 1000000000}',
    b'{"mode": "report", "count": 100000}',
    json.dumps({"event": LOUD, "count": 2}).encode(),
    json.dumps({"events": counted((LOUD, 2), (SAMPLED, 1), (QUIET, 4))}).encode(),
]
BAD: list[bytes] = [
    *(b"", b" ", b"null", b"[]", b"[{}]", b"1", b"1.5", b"true", b'"{}"', b'""', b"{", b"{}{}", b"{'a': 1}"),
    *(b'{"count": 1, "count": 1}', b'{"count": NaN}', b'{"count": Infinity}', b'{"count": 1e400}', b'{"count": 1.0}'),
    *(b'{"count": 0}', b'{"count": -1}', b'{"count": 1000000001}', b'{"count": true}', b'{"count": "1"}'),
    *(b'{"first_step": -1}', b'{"first_step": 9007199254740993}', b'{"first_step": 1.5}', b'{"attempt": 0}'),
    *(b'{"attempt": null}', b'{"mode": "ask"}', b'{"mode": null}', b'{"on_exceed": "cut"}', b'{"nothing": 1}'),
    *(b'{"mode": "report", "on_exceed": "truncate"}', b'{"count": 1, "events": []}', b'{"events": []}'),
    *(b'{"event": {}}', b'{"event": {"type": "none"}}', b'{"event": {"type": "gaussian"}}', b'{"event": []}'),
    *(b'{"event": {"type": "gaussian", "noise_multiplier": %b}}' % each for each in (b"0", b'"1"', b'1, "more": 2')),
    b'{"event": {"type": "poisson_sampled", "sampling_probability": 2, "event": {"type": "gaussian"}}}',
    b'{"events": [{"event": {"type": "gaussian", "noise_multiplier": 1}, "count": 0}, 7, {"count": 1}]}',
    *(b'{"events": {"0": 1}}', b'{"events": "all"}', b"\xef\xbb\xbf{}", b'{"\xff": 1}', b'{"count": "\\ud800"}'),
    *(b'{"\x00": 1}', b"[" * 5000, b'{"count": ' + b"9" * 5000 + b"}"),
    *(b'{"event": ' + NESTED * depth + SMALL + b"}" * (depth + 1) for depth in (17, 260, 900)),
    *(b'{"events": [' + b",".join([b"{}"] * count) + b"]}" for count in (900, 1001)),
    b"{" + b",".join(b'"%d": 0' % number for number in range(1001)) + b"}",
    b'{"a": "' + b"x" * 1_100_000 + b'"}',
    b'{"events": [' + b",".join([b'{"event": {"type": "gaussian", "noise_multiplier": 50}}'] * 1001) + b"]}",
]
CONTENT_TYPES = [
    *("application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json;charset=latin-1"),
    *("application/merge-patch+json", "application/problem+json", "text/json", "text/plain", "application/jsonx"),
    *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", "", "/", "application/"),
    *(" application/json ", "application/json, text/plain", "*/*", "application/+json"),
]
KEYS = {
    403: (b"k", b"!", b"~" * 10, b"k" * 255),
    422: (b"", b" ", b"a b", b"a\tb", b"\xe4", b"k" * 256, b"k" * 5000),
    400: (b"\x7f",),
}
TRUE, FALSE = ["true", "True", "TRUE", "1", "yes", "on", "t", "y"], ["false", "0", "no", "off", "f", "N"]
NEITHER = ["", "2", "-1", "1.0", "null", "tru", "%20true", "true%20", "%00", "%FF", "true&dry_run=true", "1&x=1"]


def test_bodies_are_answered_alike(ports: Ports) -> None:
    for content in GOOD:
        assert _same(ports, content, JSON, query="?dry_run=true").status == 200, content
    before = ports.seeded.rows()
    for content in BAD:
        assert 400 <= _same(ports, content, JSON).status < 500, content[:40]
    assert ports.seeded.rows() == before


def test_headers_are_answered_alike(ports: Ports) -> None:
    for content_type, content in product(CONTENT_TYPES, (VAST, b"{")):
        _same(ports, content, (b"content-type", content_type.encode()))
    for content in (VAST, b"null"):
        _same(ports, content)
        assert _same(ports, content, JSON, JSON).status == 422
    for encoding, status in ((b"gzip", 415), (b"identity", 403), (b"", 403)):
        assert _same(ports, VAST, JSON, (b"content-encoding", encoding)).status == status
    for scheme in (b"https", b" https ", b"http", b"HTTPS", b"wss", b"https, http", b""):
        with watched() as asked:
            answer = _same(ports, VAST, JSON, (b"x-forwarded-proto", scheme), (b"x-forwarded-for", b"192.0.2.1"))
        assert asked == [ports.seeded.run]
        assert (answer.header(b"strict-transport-security") is not None) == (scheme.strip() == b"https")
    for status, key in ((status, key) for status, keys in KEYS.items() for key in keys):
        sent = ((b"idempotency-key", key), JSON)
        ports.ask(0, ports.request(VAST, *sent))  # which uses up a good key: each later request gets its answer
        answer = _same(ports, VAST, *sent)
        replayed = answer.header(b"idempotent-replayed")
        assert (answer.status, replayed) == (status, b"true" if status == 403 else None)
        assert _same(ports, SMALL, *sent).status == (400 if status == 400 else 422)


def test_targets_are_answered_alike(ports: Ports) -> None:
    for value in (*NEITHER, *TRUE, *FALSE):
        answer = _same(ports, VAST, JSON, query=f"?dry_run={value}")
        assert answer.status == (422 if value in NEITHER else 403), value
        assert (b'"dry_run": true' in answer.body) == (value in TRUE), value
    for query in ("?", "?&", "?dryrun=true", "?Dry_run=1", "?dry_run", "?=1", "?dry_run=1;x=1", "?a&b"):
        before = ports.seeded.rows()
        answer = _same(ports, VAST, JSON, query=query)
        assert answer.status in {403, 422}
        assert (ports.seeded.rows() == before) == (answer.status == 422)
    several = (b'{"count": 0, "x": 1}', b"null", b"{"), ("?dry_run=maybe", "?dry_run=maybe&x=1", ""), (b"a b", b"good")
    for content, query, key in product(*several):  # the errors are told in the same order
        _same(ports, content, JSON, (b"idempotency-key", key), query=query)
    for run in ("run_nothing", "%20", "run_%C3%A9", "a%2Fb", "%00", "run_x%0A", ".", "..", "a/b", ""):
        assert ports.same(ports.request(SMALL, JSON, NAMED, path=f"/v1/runs/{run}/steps")).status == 404, run
    for credential, content in product((None, b"Bearer nothing", b"Basic x", b"Bearer key_x.secret"), (b"{", VAST)):
        known = () if credential is None else ((b"authorization", credential),)
        sent = request(f"/v1/runs/{ports.seeded.run}/steps", content, *known, JSON, NAMED)
        assert ports.same(sent).status == 401
    viewer = (b"authorization", ports.seeded.ledger.headers("viewer")["Authorization"].encode())
    sent = request(f"/v1/runs/{ports.seeded.run}/steps", SMALL, viewer, JSON, NAMED)
    ports.same(sent)  # afterwards the caller is known
    with watched() as asked:
        assert ports.same(sent).status == 403
    assert asked == [ports.seeded.run]


def test_request_ids_are_answered_alike(ports: Ports) -> None:
    for name in (b"a name", b"x" * 500, b"", b"r/1.2:3_4+5=-"):
        answers = [ports.ask(way, ports.request(VAST, JSON, (b"x-request-id", name))) for way in BOTH]
        given = [answer.header(b"x-request-id") or b"?" for answer in answers]
        assert all(found == name if name.startswith(b"r/") else found.startswith(b"req_") for found in given)
        one, two = (
            Answer(answer.head.replace(found, b"N"), answer.body.replace(found, b"N"))
            for answer, found in zip(answers, given, strict=True)
        )
        assert one == two


USUALLY: list[list[tuple[bytes, bytes]]] = [
    [JSON],
    [JSON, KEY],
    [(b"Content-Type", b"application/json")],
    [JSON, (b"connection", b"close")],
    [JSON, (b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"192.0.2.1"), (b"user-agent", b"x")],
]


def test_usual_request_is_answered_on_the_fast_path(ports: Ports) -> None:
    for headers, event in product(USUALLY, (LOUD, None)):
        content = json.dumps({"count": 10**9, "event": event, "attempt": 1}).encode()
        with watched() as asked:
            assert ports.ask(SHORT, ports.request(content, *headers)).status in {403, 422}
        assert asked == [ports.seeded.run], headers
    with watched() as asked:  # whose path the server has read
        absolute = f"http://ledger{STEPS}".format(run=ports.seeded.run)
        assert ports.same(ports.request(VAST, JSON, NAMED, path=absolute)).status == 403
    assert asked == [ports.seeded.run]


UNUSUAL: list[tuple[str, bytes, list[tuple[bytes, bytes]], int]] = [
    (f"{STEPS}?dry_run=true", VAST, [JSON], 403),
    (STEPS, VAST, [JSON, (b"x-twice", b"1"), (b"x-twice", b"2")], 403),
    (STEPS, VAST, [(b"content-type", b"application/json; charset=utf-8")], 403),
    (STEPS, VAST, [NAMED], 415),
    (STEPS, VAST, [JSON, (b"idempotency-key", b"")], 422),
    (STEPS, VAST, [JSON, (b"idempotency-key", b"\xe4")], 422),
    (STEPS, VAST, [JSON, (b"content-encoding", b"identity")], 403),
    (STEPS, VAST, [JSON, (b"upgrade", b"h2c"), (b"connection", b"upgrade")], 422),
    (STEPS, b"", [JSON], 422),
    (STEPS, b'{"count": 0}', [JSON], 422),
    (STEPS, b'{"count": 1, "count": 1}', [JSON], 422),
    (STEPS, b" " * (1 << 16) + VAST, [JSON], 403),
    (STEPS, b" " * (1 << 20) + VAST, [JSON], 413),
    ("/v1/runs/{run}%00/steps", VAST, [JSON], 404),
    (f"{STEPS}%0A", VAST, [JSON], 403),
    (f"{STEPS}/", VAST, [JSON], 404),
    ("/v1/runs/a/{run}/steps", VAST, [JSON], 404),
    ("/v1/runs/steps", VAST, [JSON], 405),
]


def test_unusual_request_is_handed_on(ports: Ports) -> None:
    with watched() as asked:
        for path, content, headers, status in UNUSUAL:
            target = path.format(run=ports.seeded.run)
            assert ports.ask(SHORT, ports.request(content, *headers, path=target)).status == status, (path, content[:9])
        chunks = b"15\r\n%b\r\n0\r\n\r\n" % VAST
        assert ports.same(ports.request(b"", JSON, NAMED, (b"transfer-encoding", b"chunked")) + chunks).status == 403
        stranger = (b"authorization", b"Bearer key_x.secret")
        sent = request(f"/v1/runs/{ports.seeded.run}/steps", VAST, stranger, JSON)
        assert ports.ask(SHORT, sent).status == 401
    assert asked == []


PAIRS = count()
SAME: list[dict[str, Any]] = [
    {},
    {"first_step": 1, "count": 3},
    {"event": QUIET, "on_exceed": "truncate", "count": 1_000_000},
    {"events": counted((QUIET, 2), (SAMPLED, 1), (LOUD, 1))},
    {"mode": "report", "count": 100_000},
    {"count": 1_000_000},
    {"first_step": 0},
    {"first_step": 0, "count": 2},
    {"first_step": 7},
    {"attempt": 2},
]


@pytest.mark.parametrize(
    ("body", "key"), in_turns(SAME, [(), (KEY,)]), ids=lambda value: json.dumps(value, default=str)
)
def test_both_routes_charge_the_same(ports: Ports, body: dict[str, Any], key: tuple[tuple[bytes, bytes], ...]) -> None:
    """Twins with populations of their own, once and again: nothing but the names differs."""
    answers = []
    pair, ledger = next(PAIRS), ports.seeded.ledger
    for way in BOTH:
        top, team = f"p{way}-{pair}", f"b{way}"
        population, budget = str(ledger.population(top)["id"]), str(ledger.budget(team, top)["id"])
        run = ledger.run(f"{top}/{team}")
        assert ports.ask(way, ports.request(b"{}", run=run)).status == 200
        own = [(name, value + run.encode()) for name, value in key]
        sent = ports.request(json.dumps(body).encode(), JSON, NAMED, *own, run=run)
        with watched() as asked:
            both = [ports.ask(way, sent) for _ in range(2)]
        assert asked == ([run] * 2 if way == SHORT else [])
        for answer in both:
            if answer.status == 200:
                assert answer.body == StepAuthorization.model_validate_json(answer.body).model_dump_json().encode()
        response = [repr(answer) for answer in both]
        for place_holder, name in enumerate((run, budget, population, top, team)):
            response = [text.replace(name, f"<{place_holder}>") for text in response]
        answers.append(response)
    assert answers[SHORT] == answers[USUAL]


def test_ended_run_and_an_older_attempt_are_refused_alike(ports: Ports) -> None:
    ledger = ports.seeded.ledger
    population = f"e-{next(PAIRS)}"
    ledger.population(population)
    ledger.budget("team", population)
    run = ledger.run(f"{population}/team")
    assert ledger.post(f"/v1/runs/{run}/attempts", {}, "trainer").status_code == 201
    for body in (b"{}", b'{"attempt": 1}', b'{"attempt": 1, "first_step": 3}'):
        assert ports.same(ports.request(body, JSON, NAMED, run=run)).status == 412
    assert ledger.post(f"/v1/runs/{run}/complete", {"attempt": 2}, "trainer").status_code == 200
    with watched() as asked:
        assert ports.same(ports.request(b'{"attempt": 2}', JSON, NAMED, run=run)).status == 409
    assert asked == [run]


ERRORS = [
    (NotFoundError("There is no such run."), 404),
    (SequenceGapError("Steps are missing.", expected_step=3), 409),
    (AttemptSupersededError("Another one.", current_attempt=3), 412),
    (LedgerUnavailableError("Too many wait."), 503),
    (UnsupportedEventError("No bound."), 422),
]


def test_errors_are_answered_alike(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status in ERRORS:

        def decide(
            _db: object, _memory: object, commands: Sequence[object], error: Exception = error, **_: object
        ) -> list[Exception]:
            return [error] * len(commands)

        monkeypatch.setattr(commit_queue, "commit_group", decide)
        with watched() as asked:
            assert ports.same(ports.request(VAST, JSON, NAMED)).status == status
        assert asked == [ports.seeded.run]
