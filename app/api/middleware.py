"""The outermost middleware: request ids, HEAD, security headers, metrics and the request log.

It is outside of the handler of unexpected errors, so every response passes it.
"""

import logging
import re
import secrets
from collections.abc import Awaitable
from time import perf_counter
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import logging_config
from app.ledger.names import REQUEST_ID_LENGTH
from app.service import metrics

Headers = tuple[tuple[bytes, bytes], ...]

TEMPLATE: Final = "epsilon_ledger.template"
"""Key in the scope for the path template of requests that bypass the framework."""

PUBLIC: Final = frozenset({"/docs", "/openapi.json"})
"""Public paths, which caches may store."""

REQUEST_ID: Final = b"x-request-id"
_READABLE: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,%d}" % REQUEST_ID_LENGTH)

_ALWAYS: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send `Origin: null` with forms
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_PRIVATE: Final[Headers] = ((b"cache-control", b"no-store"),)
_BY_TLS: Final[Headers] = ((b"strict-transport-security", b"max-age=31536000"),)
"""A year; not for subdomains, which may be others' and know no TLS."""

_SETS: Final[dict[tuple[bool, bool], Headers]] = {
    (public, by_tls): _ALWAYS + (() if public else _PRIVATE) + (_BY_TLS if by_tls else ())
    for public in (False, True)
    for by_tls in (False, True)
}

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_logger = logging.getLogger(logging_config.REQUESTS)


class RequestMiddleware:
    """Middleware that names, guards, counts and times requests, and answers HEAD like GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and record the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at, status, method = perf_counter(), 0, scope["method"]
        request_id = _name(scope)
        wanted = (*_SETS[scope["path"] in PUBLIC, scope["scheme"] == "https"], (REQUEST_ID, request_id))
        if method == "HEAD":
            scope["method"] = "GET"

        # Not a coroutine: returning the server's saves a call.
        def send_response(message: Message) -> Awaitable[None]:
            nonlocal status
            scope["method"] = method  # the server computes the length of the body by it
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in wanted if header[0] not in there)]
            elif method == "HEAD" and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            return send(message)

        try:
            await self._app(scope, receive, send_response)
        finally:
            _record(method if method in _METHODS else "other", scope, status, perf_counter() - began_at)


def _name(scope: Scope) -> bytes:
    """Adopt a plain X-Request-Id, or generate one."""
    sent = [value for name, value in scope["headers"] if name == REQUEST_ID]
    plain = len(sent) == 1 and _READABLE.fullmatch(sent[0])
    request_id: bytes = sent[0] if plain else b"req_" + secrets.token_hex(8).encode()
    logging_config.request_id.set(request_id.decode())  # for the rest of this request's task
    return request_id


def _record(method: str, scope: Scope, status: int, seconds: float) -> None:
    """Count and log a request by its path template; its id, which the ledger stores too, identifies the details."""
    route = str(scope.get(TEMPLATE) or getattr(scope.get("route"), "path", "none"))
    metrics.count_request(method, route, status, seconds)
    if _logger.isEnabledFor(logging.INFO):
        facts = {"method": method, "route": route, "status": status, "duration_seconds": round(seconds, 6)}
        _logger.info("%s %s %d in %.1f ms", method, route, status, seconds * 1e3, extra={"facts": facts})


def install(app: FastAPI) -> None:
    """Install the middleware outside of all others, including the handler of unexpected errors."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: RequestMiddleware(build())  # type: ignore[method-assign]
