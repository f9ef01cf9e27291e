"""The fast path of a step: plain requests are answered without the framework's routing, parsing and dependencies.

A request is plain if nothing about it needs the framework: see `_plain_head` and `_read`. Any other one is handed on
whole, before anything is decided, and then only the usual route answers it. Both ways send the same bytes. ADR 0047
has the reasons.
"""

import re
from time import perf_counter
from typing import Final, NamedTuple

from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import logging_config
from app.api.links import remember_origin
from app.api.middleware import REQUEST_ID, name_request, record, security_headers
from app.api.problems import EXPECTED_ERRORS, problem_from_exception
from app.api.route import IdempotencyKey
from app.api.routers.steps import admitted_content, step_response
from app.api.strict_json import MAX_BODY_BYTES
from app.http.step_batches import read_long_body
from app.http.step_bodies import MOST_KEPT_BYTES, StepBody, read_body
from app.ledger.errors import AttemptSupersededError
from app.ledger.runs.decisions import DecisionOutcome
from app.service.auth.authentication import Principal
from app.service.auth.credential_cache import BODY_SECONDS, Authenticator, fingerprint
from app.service.auth.rate_limit import RequestLimits
from app.service.charging.requests import StepResult
from app.service.ledger_store import LedgerStore
from app.service.metrics import TRACES

TEMPLATE: Final = "/v1/runs/{run_id}/steps"
MOST_HEADS: Final = 4096
MOST_HEAD_BYTES: Final = 2048
"""Number and length of the heads that are kept."""

_Headers = tuple[tuple[bytes, bytes], ...]
_Text = tuple[bytes, _Headers]
"""Path and headers."""

_PATH: Final = re.compile(rb"/v1/runs/([A-Za-z0-9_.~-]+)/steps")
_UNUSUAL: Final = frozenset({b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that the framework or the server acts on."""

_JSON: Final = (b"content-type", b"application/json")
_Parts = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and content of a response."""

_IDEMPOTENCY_KEY: Final[TypeAdapter[str | None]] = TypeAdapter(IdempotencyKey)


class _Head(NamedTuple):
    """The head of a plain request.

    Args:
        credential: fingerprint of the Authorization header.
        key: Idempotency-Key; None: not sent.
        name: X-Request-Id as sent; None: not sent.
    """

    run_id: str
    credential: bytes
    key: str | None
    name: bytes | None


class StepPath:
    """ASGI application that answers plain requests for steps, and hands others on to the framework's."""

    def __init__(self, app: FastAPI) -> None:
        state = app.state
        self._usual: Final[ASGIApp] = app
        self._keys: Final[Authenticator] = state.keys
        self._rates: Final[RequestLimits] = state.rates
        self._store: Final[LedgerStore] = state.store
        self._public_url: Final[str | None] = state.public_url
        self._heads: Final[dict[_Text, _Head]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a plain request, or hand it on."""
        began_at = perf_counter()
        head = self._plain_head(scope) if scope["type"] == "http" else None
        caller = head and self._keys.find_by_fingerprint(head.credential)
        if head is None or caller is None:
            await self._usual(scope, receive, send)
            return
        message = await receive()
        if message.get("more_body"):
            message = await _whole(message, receive)
        body = _read(message, head)
        if body is not None and perf_counter() - began_at > BODY_SECONDS:
            caller = self._keys.find_by_fingerprint(head.credential)
        if body is None or caller is None:
            await self._usual(scope, _replayed(message, receive), send)
            return
        await self._answer(scope, send, began_at, head, caller, body)

    def _plain_head(self, scope: Scope) -> _Head | None:
        """Get the head of a request; None: it is not plain."""
        if scope["method"] != "POST" or scope["query_string"] or scope["root_path"] or TRACES.active:
            return None
        text = scope.get("raw_path") or b"", tuple(scope["headers"])
        head = self._heads.get(text)
        if head is None:
            head = _read_head(*text)
            if head is not None and head.key is None and head.name is None:
                self._keep(text, head)
        return head

    def _keep(self, text: _Text, head: _Head) -> None:
        """Keep a short head for the requests that repeat it."""
        if sum(len(name) + len(value) for name, value in text[1]) <= MOST_HEAD_BYTES:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[text] = head

    async def _answer(
        self, scope: Scope, send: Send, began_at: float, head: _Head, caller: Principal, body: StepBody
    ) -> None:
        """Send and record the response to a decision; raise an unexpected error, which the server logs."""
        name = name_request(head.name)
        logging_config.request_id.set(name.decode())  # for the rest of this request's task
        failure: Exception | None = None
        try:
            self._rates.keys.take(caller.actor)
            context = self._store.context(caller, name.decode())
            answered = await self._store.charges.authorize_steps(context, body.request)
            status, headers, content = self._rendered(scope, answered)
        except Exception as error:  # noqa: BLE001 - rendered, and raised again if it is not expected
            failure = error
            if isinstance(error, AttemptSupersededError) and not body.names_attempt:
                failure = error.unnamed()
            status, headers, content = _parts(problem_from_exception(Request(scope), failure))
        headers += security_headers(public=False, by_tls=scope["scheme"] == "https", shown=False)
        headers.append((REQUEST_ID, name))
        try:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})
        finally:
            record("POST", TEMPLATE, status, perf_counter() - began_at)
        if failure is not None and not isinstance(failure, EXPECTED_ERRORS):
            raise failure

    def _rendered(self, scope: Scope, answered: StepResult) -> _Parts:
        if answered.decision.admitted and not answered.replayed:  # as `step_response`, without its object
            content = admitted_content(answered.decision)
            return 200, [(b"content-length", b"%d" % len(content)), _JSON], content
        if answered.decision.outcome is DecisionOutcome.REFUSED:  # it has the URL of its run's page
            remember_origin(Request(scope), self._public_url)
        return _parts(step_response(answered))


def _parts(response: Response) -> _Parts:
    return response.status_code, response.raw_headers, bytes(response.body)


def _read_head(raw_path: bytes, sent: _Headers) -> _Head | None:
    """Read path and headers; None: the request is not plain."""
    path = _PATH.fullmatch(raw_path)
    headers = dict(sent)
    if (
        path is None
        or len(headers) < len(sent)
        or headers.get(b"content-type") != b"application/json"
        or not 0 < int(headers.get(b"content-length", 0)) <= MAX_BODY_BYTES
        or not headers.keys().isdisjoint(_UNUSUAL)
    ):
        return None
    key = headers.get(b"idempotency-key")
    try:
        key_text = None if key is None else _IDEMPOTENCY_KEY.validate_python(key.decode("latin-1"))
    except ValidationError:
        return None
    credential = fingerprint(headers.get(b"authorization", b"").decode("latin-1"))
    return _Head(path[1].decode(), credential, key_text, headers.get(REQUEST_ID))


async def _whole(first: Message, receive: Receive) -> Message:
    """Receive the rest of a body; `more_body` is true if the client left before its end."""
    content, message = [first["body"]], first
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return {"type": "http.request", "body": b"".join(content), "more_body": True}
        content.append(message.get("body", b""))
    return {"type": "http.request", "body": b"".join(content), "more_body": False}


def _replayed(message: Message, receive: Receive) -> Receive:
    """Build a function that receives a message again, and then what follows it."""
    waiting = [message]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _read(message: Message, head: _Head) -> StepBody | None:
    """Parse a whole body; None: it is not plain, or the client left."""
    if message["type"] != "http.request" or message.get("more_body"):
        return None
    content = message["body"]
    read = read_body if len(content) <= MOST_KEPT_BYTES else read_long_body
    return read(content, head.run_id, head.key)
