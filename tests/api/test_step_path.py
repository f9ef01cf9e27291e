"""A connection whose steps take the fast path goes on as any other: in pieces, one behind the other, and stopped."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import generate_latest
from sqlalchemy.exc import IntegrityError, OperationalError

from app.logging_config import REQUESTS
from app.service.auth.rate_limit import TokenBuckets
from app.service.charging import commit_queue
from app.service.charging.commit_queue import CommitQueue
from app.service.metrics import REGISTRY, TRACES
from tests.api.step_routes import BOTH, JSON, NAMED, SHORT, USUAL, Answer, Client, Ports, request, watched
from tests.api.test_fast_path import VAST, ports
from tests.api.trainer import issue
from tests.conftest import SAMPLED
from tests.polling import await_true

__all__ = ["ports"]

HEALTH = request("/healthz", b"", NAMED, method="GET")
PATIENCE = 20.0


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Groups wait to be written until the function is called, or the block ends."""
    go = threading.Event()
    committed: Any = CommitQueue._committed

    async def wait(self: CommitQueue, commands: Any) -> Any:  # noqa: ANN401 - passed through
        await asyncio.to_thread(go.wait, PATIENCE)
        return await committed(self, commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitQueue, "_committed", wait)
        try:
            yield go.set
        finally:
            go.set()


def _waiting(ports: Ports, count: int) -> None:
    """Wait until so many connections stand."""
    await_true(lambda: len(ports.state.connections) == count, pause=0.01, seconds=PATIENCE)


def _decisions(ports: Ports) -> int:
    return len(ports.seeded.rows()["decisions"])


def test_pieces_of_a_request_are_put_together(ports: Ports) -> None:
    sent = ports.request(VAST, JSON, NAMED)
    whole = ports.same(sent)
    with Client(ports.of[SHORT]) as client, watched() as asked:
        for place in range(0, len(sent), 3):
            client.send(sent[place : place + 3])
            time.sleep(0.0005)
        assert client.answer() == whole
        head, _, body = sent.partition(b"\r\n\r\n")
        for piece in (head + b"\r\n\r\n", body[:5], body[5:]):
            client.send(piece)
            time.sleep(0.02)
        assert client.answer() == whole
    assert asked == [ports.seeded.run] * 2


@pytest.mark.parametrize(("plan", "together"), [("hsushsu", True), ("sssss", True), ("sus", False), ("ushs", False)])
def test_requests_one_behind_the_other_are_answered_in_order(ports: Ports, plan: str, *, together: bool) -> None:
    """Plain steps (s), unusual ones (u) and another path (h), sent at once or each in a packet of its own."""
    kinds = {
        "s": lambda name: ports.request(VAST, JSON, name),
        "u": lambda name: ports.request(VAST, JSON, name, (b"x-twice", b"1"), (b"x-twice", b"2")),
        "h": lambda name: request("/healthz", b"", name, method="GET"),
    }
    names = [b"name-%d" % place for place in range(len(plan))]
    sent = [kinds[kind]((b"x-request-id", name)) for kind, name in zip(plan, names, strict=True)]
    raw: list[list[Answer]] = []
    for way in BOTH:
        with Client(ports.of[way]) as client:
            for piece in [b"".join(sent)] if together else sent:
                client.send(piece)
            raw.append([client.answer() for _ in plan])
            client.send(HEALTH)
            assert client.answer().status == 200
    assert raw[0] == raw[1]
    assert [answer.header(b"x-request-id") for answer in raw[0]] == names


def test_requests_behind_a_waiting_step_are_answered_in_order(ports: Ports) -> None:
    first, second = (ports.request(VAST, JSON, (b"x-request-id", name)) for name in (b"one", b"two"))
    with Client(ports.of[SHORT]) as client, watched() as asked:
        with held_back() as go:
            client.send(first)
            time.sleep(0.1)
            client.send(second + HEALTH)
            time.sleep(0.1)
            go()
            answers = [client.answer() for _ in range(3)]
        assert [answer.header(b"x-request-id") for answer in answers] == [b"one", b"two", b"mine"]
        assert client.ask(first).status == 403
    assert asked == [ports.seeded.run] * 3


WRONG = [b"\x00\x01garbage\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 300_000]
CUT_OFF = b"POST /v1/runs HTTP/1.1\r\nHost: ledger\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n"


@pytest.mark.parametrize("wrong", [*WRONG, CUT_OFF], ids=["garbage", "long head", "broken chunk"])
@pytest.mark.parametrize("together", [True, False])
def test_wrong_bytes_behind_steps_are_refused_after_their_answers(
    ports: Ports, wrong: bytes, *, together: bool
) -> None:
    before = _decisions(ports)
    plain, unusual = ports.request(b"{}"), ports.request(b"{}", JSON, (b"x-twice", b"1"), (b"x-twice", b"2"))
    for way, sent in product(BOTH, ([plain], [plain, unusual, plain])):
        with held_back() as go, Client(ports.of[way]) as client:
            for piece in [b"".join([*sent, wrong])] if together else [*sent, wrong]:
                client.send(piece)
            time.sleep(0.05)
            go()
            statuses = [client.answer().status for _ in sent]
            refused = client.answer()
            assert statuses == [200] * len(sent)
            assert refused.status == (431 if wrong == WRONG[1] else 400)
            assert refused.header(b"connection") == b"close"
            assert client.rest() == b""
    assert _decisions(ports) == before + 2 * 4


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_connection_is_kept_as_the_client_wants(ports: Ports, version: bytes) -> None:
    for headers in ((), ((b"connection", b"keep-alive"),), ((b"connection", b"close"),)):
        sent = ports.request(VAST, JSON, NAMED, *headers).replace(b" HTTP/1.1\r\n", b" HTTP/%b\r\n" % version)
        raw = []
        with watched() as asked:
            for way in BOTH:
                with Client(ports.of[way]) as client:
                    raw.append(client.ask(sent))
                    closes = raw[-1].header(b"connection") == b"close"
                    assert client.rest() == b"" if closes else client.ask(sent) == raw[-1]
        assert raw[0] == raw[1]
        assert set(asked) == {ports.seeded.run}


def test_step_of_a_closed_connection_is_decided(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    run, before = ports.seeded.ledger.run(), _decisions(ports)
    _waiting(ports, 0)
    answered = ports.state.total_requests
    with watched() as asked, held_back() as go, Client(ports.of[SHORT]) as client:
        client.send(ports.request(b"{}", run=run) + HEALTH[:10])
        _waiting(ports, 1)
        time.sleep(0.1)
        client.socket.close()
        client.__exit__()
        _waiting(ports, 0)
        go()
        await_true(lambda: asked, pause=0.01, seconds=PATIENCE)
    assert (_decisions(ports), ports.state.total_requests) == (before + 1, answered)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_request_that_is_left_before_its_end_is_counted_on_both_routes(ports: Ports) -> None:
    labels = 'method="POST",route="/v1/runs/{run_id}/steps",status="4xx"'
    name = f"epsilon_ledger_http_request_duration_seconds_count{{{labels}}}"
    counted, decided = _metrics(name).get(name, 0), _decisions(ports)
    for way in BOTH:
        with Client(ports.of[way]) as client:
            client.send(ports.request(b"{}")[:-1])
    await_true(lambda: _metrics(name).get(name) == counted + 2, pause=0.01, seconds=PATIENCE)
    assert _decisions(ports) == decided


@pytest.mark.parametrize("in_queue", [True, False])
def test_stop_lets_a_step_be_answered_and_closes(ports: Ports, *, in_queue: bool) -> None:
    """As `app.http.server` stops: a connection with a request is told to shut down, before or after its body came."""
    sent = ports.request(VAST, JSON, NAMED)

    def stop() -> None:
        for connection in ports.state.connections:
            connection.shutdown()

    _waiting(ports, 0)
    with watched() as asked, held_back() as go, Client(ports.of[SHORT]) as client:
        client.send(sent if in_queue else sent[:-3])
        _waiting(ports, 1)
        time.sleep(0.1)
        ports.seeded.ledger.http.portal.call(stop)
        if not in_queue:
            client.send(sent[-3:])
        go()
        answer = client.answer()
        assert (answer.status, answer.header(b"connection"), client.rest()) == (403, b"close", b"")
    assert asked == [ports.seeded.run]


def _metrics(*names: str) -> dict[str, float]:
    lines = generate_latest(REGISTRY).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)}


def test_both_routes_are_counted_and_logged_alike(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    counted = [f"epsilon_ledger_{kind}_duration_seconds_count" for kind in ("http_request", "step_authorization")]
    counted += [f"epsilon_ledger_{kind}_total" for kind in ("problems", "decisions")]
    grown, logs = [], []
    caplog.set_level(logging.INFO, REQUESTS)
    for way in BOTH:
        run, before = ports.seeded.ledger.run(), _metrics(*counted)
        caplog.clear()
        for content in (b"{}", VAST, b'{"first_step": 0}', b'{"first_step": 9}', b'{"count": 0}'):
            ports.ask(way, ports.request(content, JSON, NAMED, run=run))
        # The last one is written behind its answer.
        await_true(lambda: sum(each.name == REQUESTS for each in caplog.records) >= 5, pause=0.01, seconds=PATIENCE)
        lines = [each.getMessage() for each in caplog.records if each.name == REQUESTS]
        after = _metrics(*counted)
        grown.append({name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name)})
        logs.append([line.rsplit(" in ", 1)[0] for line in lines])
    assert grown[0] == grown[1]
    assert logs[0] == logs[1] == [f"POST /v1/runs/{{run_id}}/steps {status}" for status in (200, 403, 200, 409, 422)]


def test_rate_of_a_key_is_limited_on_both_routes(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    app = ports.seeded.ledger.http.app
    assert isinstance(app, FastAPI)
    monkeypatch.setattr(app.state.rates, "keys", TokenBuckets(0.001, 2, "Too many."))
    with watched() as asked:
        statuses = [ports.ask(way, ports.request(VAST)).status for way in (*BOTH, SHORT)]
        assert statuses == [403, 403, 429]
        ways = [ports.ask(way, ports.request(VAST, JSON, NAMED)) for way in BOTH]
    assert [answer.header(b"retry-after") is None for answer in ways] == [False, False]
    assert ways[0].body == ways[1].body
    assert len(asked) == 3
    limited, counted = [], 'epsilon_ledger_problems_total{code="rate_limited"}'
    for way in BOTH:
        before = _metrics(counted)[counted]
        with Client(ports.of[way]) as client:
            client.send(ports.request(VAST, JSON, (b"connection", b"close")) + ports.request(VAST))
            assert client.rest().count(b"HTTP/1.1 ") == 1
        limited.append(_metrics(counted)[counted] - before)
    assert limited == [1, 1]


def test_key_that_is_revoked_while_a_body_arrives_changes_nothing(ports: Ports) -> None:
    ledger, before = ports.seeded.ledger, _decisions(ports)
    assert isinstance(ledger.http.app, FastAPI)
    steps, runs = f"/v1/runs/{ports.seeded.run}/steps", "/v1/runs"
    registers = json.dumps({"name": "late", "budget": ports.seeded.budget, "event": SAMPLED}).encode()
    for way, (path, body) in product(BOTH, ((steps, b'{"count": 1}'), (runs, registers))):
        key = issue(ledger, "late", "trainer")["id"]
        authorization = (b"authorization", ledger.headers("late")["Authorization"].encode())
        head, _, content = request(path, body, authorization, JSON).partition(b"\r\n\r\n")
        assert ledger.get("/v1/runs", "late").status_code == 200  # now this process knows it
        with Client(ports.of[way]) as client:
            client.send(head + b"\r\n\r\n" + content[:1])
            time.sleep(0.1)
            assert ledger.post(f"/v1/api-keys/{key}/revoke", {}).is_success
            ledger.http.app.state.keys.refresh()  # as a task does every 0.4 seconds
            client.send(content[1:])
            answer = client.answer()
        assert (answer.status, json.loads(answer.body)["detail"]) == (401, "This API key was revoked."), (way, path)
    assert _decisions(ports) == before
    assert "late" not in {run["name"] for run in ledger.get("/v1/runs").json()["items"]}


def test_with_traces_every_step_takes_the_framework(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(TRACES), "active", True)
    with watched() as asked:
        assert ports.ask(SHORT, ports.request(VAST)).status == 403
    assert asked == []


def test_other_methods_are_answered_alike(ports: Ports) -> None:
    who = (b"authorization", ports.seeded.ledger.headers("trainer")["Authorization"].encode())
    path, headers = f"/v1/runs/{ports.seeded.run}/steps", (who, JSON, NAMED, (b"connection", b"close"))
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        raw = []
        for way in BOTH:
            with Client(ports.of[way]) as client, watched() as asked:
                client.send(request(path, VAST, *headers, method=method))
                raw.append(client.rest())
            assert asked == []
        assert raw[0] == raw[1]
        assert raw[0].startswith(b"HTTP/1.1 405 ")


def test_client_that_expects_100_is_told_to_continue(ports: Ports) -> None:
    head, _, body = ports.request(VAST, JSON, NAMED, (b"expect", b"100-continue")).partition(b"\r\n\r\n")
    with Client(ports.of[SHORT]) as client, watched() as asked:
        assert client.ask(head + b"\r\n\r\n").head == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.ask(body).status == 403
    assert asked == []


FAILURES = [
    (OperationalError("SELECT 1", {}, Exception("disk I/O error")), 503),
    (IntegrityError("INSERT 1", {}, Exception("twice")), 503),
    (ZeroDivisionError("a secret"), 500),
]


@pytest.mark.parametrize(("error", "status"), FAILURES, ids=lambda each: type(each).__name__)
def test_failed_group_is_answered_alike(
    ports: Ports, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(commit_queue, "commit_group", fail)
    raw, logs = [], []
    for way in BOTH:
        caplog.clear()
        with Client(ports.of[way]) as client:
            client.send(ports.request(VAST, JSON, NAMED))
            answer = client.answer()
            closes = status == 500  # uvicorn closes after what nobody foresaw
            assert not closes or client.rest() == b""
            assert closes or client.ask(ports.request(VAST, JSON, NAMED)) == answer
        raw.append(answer)
        logs.append([(record.name, record.levelname, record.getMessage()) for record in caplog.records])
    assert raw[SHORT] == raw[USUAL]
    assert (raw[SHORT].status, b"secret" in raw[SHORT].body) == (status, False)
    assert logs[SHORT] == logs[USUAL]


def test_decision_that_cannot_be_rendered_is_not_repeated(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ports.seeded.ledger.run()

    def broken(_: object) -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("app.http.step_path.admitted_content", broken)
    before = len(ports.seeded.rows()["decisions"])
    assert ports.ask(SHORT, ports.request(b"{}", run=run)).status == 500
    assert len(ports.seeded.rows()["decisions"]) == before + 1
