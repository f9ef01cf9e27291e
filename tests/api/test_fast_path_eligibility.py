"""The short way of the hot route: who takes it, who does not, and that one cannot tell from the answer."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx2
import pytest
from sqlalchemy.exc import OperationalError
from starlette.types import Message, Scope

from app.accounting.errors import UnsupportedEventError
from app.api.schemas.steps import StepAuthorization
from app.ledger.errors import LedgerUnavailableError, NotFoundError, SequenceGapError
from app.service.charging.commit_queue import CommitQueue
from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.step_routes import BOTH, serving_both, watched
from tests.api.trainer import LOUD, QUIET, counted
from tests.conftest import SAMPLED

JSON = (b"content-type", b"application/json")
KEY = (b"idempotency-key", b"a-key")
VAST = b'{"count": 1000000000}'
"""It is refused, so that nothing changes."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[SeededLedger]:
    with serving_both(tmp_path_factory.mktemp("shared"), module_database_url) as shared:
        yield shared


def _post(shared: SeededLedger, path: str, content: bytes, *headers: tuple[bytes, bytes]) -> httpx2.Response:
    who = (b"authorization", shared.ledger.headers("trainer")["Authorization"].encode())
    reply: httpx2.Response = shared.ledger.http.post(path, content=content, headers=[who, *headers])
    return reply


@pytest.mark.parametrize("headers", [[JSON], [JSON, KEY], [(b"Content-Type", b"application/json")]])
@pytest.mark.parametrize("event", [LOUD, None])
def test_what_is_as_usual_takes_it(
    shared: SeededLedger, headers: list[tuple[bytes, bytes]], event: dict[str, Any] | None
) -> None:
    content = json.dumps({"count": 10**9, "event": event, "attempt": 1}).encode()
    with watched() as asked:
        assert _post(shared, f"/v1/runs/{shared.run}/steps", content, *headers).status_code in {403, 422}
    assert asked == [shared.run]


@pytest.mark.parametrize(
    ("path", "content", "headers", "status"),
    [
        ("/v1/runs/{run}/steps?dry_run=true", VAST, [JSON], 403),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"x-twice", b"1"), (b"x-twice", b"2")], 403),
        ("/v1/runs/{run}/steps", VAST, [(b"content-type", b"application/json; charset=utf-8")], 403),
        ("/v1/runs/{run}/steps", VAST, [], 415),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"idempotency-key", b"")], 422),
        ("/v1/runs/{run}/steps", VAST, [JSON, (b"idempotency-key", b"\xe4")], 422),
        ("/v1/runs/{run}/steps", b"", [JSON], 422),
        ("/v1/runs/{run}/steps", b"{", [JSON], 422),
        ("/v1/runs/{run}/steps", b'{"count": 0}', [JSON], 422),
        ("/v1/runs/{run}/steps", b'{"count": 1, "count": 1}', [JSON], 422),
        ("/v1/runs/{run}/steps", b" " * (1 << 20) + b"{}", [JSON], 413),
        ("/v1/runs/{run}%00/steps", VAST, [JSON], 404),
        ("/v1/runs/{run}/steps%0A", VAST, [JSON], 403),
        ("/v1/runs/{run}/steps/", VAST, [JSON], 404),
        ("/v1/runs/a/{run}/steps", VAST, [JSON], 404),
        ("/v1/runs//steps", VAST, [JSON], 404),
        ("/v1/runs/steps", VAST, [JSON], 405),
    ],
)
def test_what_is_not_goes_the_usual_way(
    shared: SeededLedger, path: str, content: bytes, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    with watched() as asked:
        assert _post(shared, path.format(run=shared.run), content, *headers).status_code == status
    assert asked == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "post"])
def test_other_methods_go_the_usual_way(shared: SeededLedger, method: str) -> None:
    with watched() as asked:
        scope = {**_scope(shared, BOTH[0]), "method": method}
        [start, *_] = _talk(shared, scope, {"type": "http.request", "body": VAST})
    assert (start["status"], asked) == (405, [])


def test_a_stranger_goes_the_usual_way(shared: SeededLedger) -> None:
    with watched() as asked:
        headers = [JSON, (b"authorization", b"Bearer key_x.secret")]
        path = f"/v1/runs/{shared.run}/steps"
        assert shared.ledger.http.post(path, content=VAST, headers=headers).status_code == 401
    assert asked == []


PAIRS = count()
SAME: list[dict[str, Any]] = [
    {},
    {"first_step": 1, "count": 3},
    {"event": QUIET, "on_exceed": "truncate", "count": 1_000_000},
    {"events": counted((QUIET, 2), (SAMPLED, 1), (LOUD, 1))},
    {"mode": "report", "count": 100_000},
    {"count": 1_000_000},
    {"first_step": 7},
    {"attempt": 2},
]


@pytest.mark.parametrize("key", [(), (KEY,)])
@pytest.mark.parametrize("body", SAME, ids=json.dumps)
def test_both_ways_charge_the_same(
    shared: SeededLedger, body: dict[str, Any], key: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Twins with populations of their own, once and again: nothing but the names differs."""
    answers = []
    pair = next(PAIRS)
    for way, place in enumerate(BOTH):
        top, team = f"p{way}-{pair}", f"b{way}"
        population = str(shared.ledger.population(top)["id"])
        budget = str(shared.ledger.budget(team, top)["id"])
        run = shared.ledger.run(f"{top}/{team}")
        used = [(b"x-request-id", b"mine"), *((name, value + run.encode()) for name, value in key)]
        path = place.format(run=run)
        assert _post(shared, path, b"{}", JSON).status_code == 200
        content = json.dumps(body).encode()
        with watched() as asked:
            replies = [_post(shared, path, content, JSON, *used) for _ in range(2)]
        assert asked == [run] * 2 * (1 - way)
        for reply in replies:
            if reply.status_code == 200:
                out = StepAuthorization.model_validate_json(reply.content)
                assert reply.content == out.model_dump_json().encode()
        response = [f"{reply.status_code} {_headers(reply)} {reply.text}" for reply in replies]
        for place_holder, name in enumerate((run, budget, population, top, team)):
            response = [text.replace(name, f"<{place_holder}>") for text in response]
        answers.append(response)
    assert answers[0] == answers[1]


def _headers(reply: httpx2.Response) -> list[tuple[bytes, bytes]]:
    """All but the name of the request."""
    return [header for header in reply.headers.raw if header[0] != b"x-request-id"]


ERRORS = [
    NotFoundError("There is no such run."),
    SequenceGapError("Steps are missing.", expected_step=3),
    LedgerUnavailableError("Too many wait."),
    UnsupportedEventError("No bound."),
    OperationalError("SELECT 1", {}, Exception("disk I/O error")),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_both_ways_say_the_same_of_an_error(
    shared: SeededLedger, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _fail(monkeypatch, error)
    with watched() as asked:
        replies = [_post(shared, place.format(run=shared.run), VAST, JSON) for place in BOTH]
    assert asked == [shared.run]
    assert replies[0].status_code >= 400
    assert without_request_id(replies[0]) == without_request_id(replies[1])
    assert _headers(replies[0]) == _headers(replies[1])


@pytest.mark.parametrize("place", BOTH)
def test_a_mistake_of_the_service_is_a_problem_and_reaches_the_server(
    shared: SeededLedger, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    _fail(monkeypatch, ZeroDivisionError("a secret"))
    sent: list[Message] = []
    with watched() as asked, pytest.raises(ZeroDivisionError):
        _talk(shared, _scope(shared, place), {"type": "http.request", "body": VAST}, sent=sent)
    assert len(asked) == (place == BOTH[0])
    start, body = sent
    assert (start["status"], json.loads(body["body"])["code"]) == (500, "internal_error")
    assert b"secret" not in body["body"]


@pytest.mark.parametrize("place", BOTH)
def test_a_body_in_pieces_is_put_together(shared: SeededLedger, place: str) -> None:
    pieces = [b'{"count"', b"", b": 1000000000", b"}"]
    messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    with watched() as asked:
        start, body = _talk(shared, _scope(shared, place), *messages, {"type": "http.request"})
    assert (start["status"], json.loads(body["body"])["count"], asked) == (403, 10**9, [])


@pytest.mark.parametrize("place", BOTH)
@pytest.mark.parametrize("sent", [[], [{"type": "http.request", "body": b"{", "more_body": True}]])
def test_a_trainer_who_leaves_before_the_body_is_there_asks_nothing(
    shared: SeededLedger, place: str, sent: list[Message]
) -> None:
    before = shared.rows()
    answer = _talk(shared, _scope(shared, place), *sent, {"type": "http.disconnect"})
    assert answer[0]["status"] == 400  # nobody hears it; it is no error of the service, and not logged as one
    assert shared.rows() == before


def _fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(CommitQueue, "authorize_steps", failing)


def _scope(shared: SeededLedger, place: str) -> Scope:
    path = place.format(run=shared.run)
    who = (b"authorization", shared.ledger.headers("trainer")["Authorization"].encode())
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [who, JSON],
    }


def _talk(shared: SeededLedger, scope: Scope, *messages: Message, sent: list[Message] | None = None) -> list[Message]:
    """What the application sends to one who sends these messages."""
    waiting = list(messages)
    answer: list[Message] = [] if sent is None else sent

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        answer.append(message)

    assert shared.ledger.http.portal is not None
    shared.ledger.http.portal.call(shared.ledger.http.app, scope, receive, send)
    return answer
