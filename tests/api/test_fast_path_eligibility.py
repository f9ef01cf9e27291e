"""Which requests for steps are answered on the connection, and that nobody can tell from the answer or the ledger."""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from app.accounting.errors import UnsupportedEventError
from app.api.schemas.steps import StepAuthorization
from app.ledger.errors import AttemptSupersededError, LedgerUnavailableError, NotFoundError, SequenceGapError
from app.service.charging import commit_queue
from tests.api.step_routes import BOTH, JSON, NAMED, SHORT, USUAL, Client, Ports, request, serving_both, watched
from tests.api.trainer import LOUD, QUIET, counted
from tests.conftest import SAMPLED
from tests.soak import in_turns

KEY = (b"idempotency-key", b"a-key")
VAST = b'{"count": 1000000000}'
"""It is refused, so that nothing changes."""


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Ports]:
    with serving_both(tmp_path_factory.mktemp("shared"), module_database_url) as ports:
        yield ports


@pytest.mark.parametrize(
    "headers",
    [
        [JSON],
        [JSON, KEY],
        [(b"Content-Type", b"application/json")],
        [JSON, (b"connection", b"keep-alive")],
        [JSON, (b"connection", b"close")],
        [JSON, (b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"192.0.2.1"), (b"user-agent", b"x")],
    ],
)
@pytest.mark.parametrize("event", [LOUD, None])
def test_usual_request_is_answered_on_the_connection(
    ports: Ports, headers: list[tuple[bytes, bytes]], event: dict[str, Any] | None
) -> None:
    content = json.dumps({"count": 10**9, "event": event, "attempt": 1}).encode()
    with watched() as asked:
        assert ports.ask(SHORT, ports.request(content, *headers)).status in {403, 422}
    assert asked == [ports.seeded.run]


@pytest.mark.parametrize(
    ("path", "content", "headers", "status"),
    [
        ("/v1/runs/{run}/steps?dry_run=true", VAST, [JSON], 403),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"x-twice", b"1"), (b"x-twice", b"2")], 403),
        ("/v1/runs/{run}/steps", VAST, [(b"content-type", b"application/json; charset=utf-8")], 403),
        ("/v1/runs/{run}/steps", VAST, [NAMED], 415),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"idempotency-key", b"")], 422),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"idempotency-key", b"\xe4")], 422),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"content-encoding", b"identity")], 403),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"upgrade", b"h2c"), (b"connection", b"upgrade")], 422),
        ("/v1/runs/{run}/steps", b"", [JSON], 422),
        ("/v1/runs/{run}/steps", b"{", [JSON], 422),
        ("/v1/runs/{run}/steps", b'{"count": 0}', [JSON], 422),
        ("/v1/runs/{run}/steps", b'{"count": 1, "count": 1}', [JSON], 422),
        ("/v1/runs/{run}/steps", b" " * (1 << 16) + VAST, [JSON], 403),
        ("/v1/runs/{run}/steps", b" " * (1 << 20) + VAST, [JSON], 413),
        ("/v1/runs/{run}%00/steps", VAST, [JSON], 404),
        ("/v1/runs/{run}/steps%0A", VAST, [JSON], 403),
        ("/v1/runs/{run}/steps/", VAST, [JSON], 404),
        ("/v1/runs/a/{run}/steps", VAST, [JSON], 404),
        ("/v1/runs//steps", VAST, [JSON], 404),
        ("/v1/runs/steps", VAST, [JSON], 405),
        ("http://ledger/v1/runs/{run}/steps", VAST, [JSON], 403),
    ],
)
def test_unusual_request_is_handed_on(
    ports: Ports, path: str, content: bytes, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    with watched() as asked:
        target = path.format(run=ports.seeded.run)
        assert ports.ask(SHORT, ports.request(content, *headers, path=target)).status == status
    assert asked == []


def test_body_in_chunks_is_handed_on(ports: Ports) -> None:
    sent = ports.request(b"", JSON, NAMED, (b"transfer-encoding", b"chunked")) + b"15\r\n%b\r\n0\r\n\r\n" % VAST
    with watched() as asked:
        assert ports.same(sent).status == 403
    assert asked == []


def test_client_that_expects_100_is_told_to_continue(ports: Ports) -> None:
    head, _, body = ports.request(VAST, JSON, NAMED, (b"expect", b"100-continue")).partition(b"\r\n\r\n")
    with Client(ports.of[SHORT]) as client, watched() as asked:
        assert client.ask(head + b"\r\n\r\n").head == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.ask(body).status == 403
    assert asked == []


def test_stranger_is_handed_on(ports: Ports) -> None:
    with watched() as asked:
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
FAILURES = [
    (OperationalError("SELECT 1", {}, Exception("disk I/O error")), 503),
    (IntegrityError("INSERT 1", {}, Exception("twice")), 503),
    (ZeroDivisionError("a secret"), 500),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda each: type(each).__name__)
def test_error_is_answered_alike(ports: Ports, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int) -> None:
    def decide(_db: object, _memory: object, commands: Sequence[object], **_: object) -> list[Exception]:
        return [error] * len(commands)

    monkeypatch.setattr(commit_queue, "commit_group", decide)
    with watched() as asked:
        assert ports.same(ports.request(VAST, JSON, NAMED)).status == status
    assert asked == [ports.seeded.run]


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

    monkeypatch.setattr("app.step_connection.admitted_content", broken)
    before = len(ports.seeded.rows()["decisions"])
    assert ports.ask(SHORT, ports.request(b"{}", run=run)).status == 500
    assert len(ports.seeded.rows()["decisions"]) == before + 1
