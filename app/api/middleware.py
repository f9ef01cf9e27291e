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

PUBLIC: Final = frozenset({"/docs", "/openapi.json"})
"""Public paths, which caches may store."""

REQUEST_ID: Final = b"x-request-id"
_READABLE: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,%d}" % REQUEST_ID_LENGTH)

_ALWAYS: Final[Headers] = ((b"x-content-type-options", b"nosniff"),)
_FOR_BROWSERS: Final[Headers] = (
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send `Origin: null` with forms
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_PRIVATE: Final[Headers] = ((b"cache-control", b"no-store"),)
_BY_TLS: Final[Headers] = ((b"strict-transport-security", b"max-age=31536000"),)
"""A year; not for subdomains, which may be others' and know no TLS."""

_SETS: Final[dict[tuple[bool, bool, bool], Headers]] = {
    (public, by_tls, shown): _ALWAYS
    + (_FOR_BROWSERS if shown else ())
    + (() if public else _PRIVATE)
    + (_BY_TLS if by_tls else ())
    for public in (False, True)
    for by_tls in (False, True)
    for shown in (False, True)
}
_JSON: Final = frozenset({b"application/json", b"application/problem+json"})

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
        sent = [value for name, value in scope["headers"] if name == REQUEST_ID]
        request_id = name_request(sent[0] if len(sent) == 1 else None)
        logging_config.request_id.set(request_id.decode())  # for the rest of this request's task
        by_tls = scope["scheme"] == "https"
        by_program = any(name == b"authorization" for name, _ in scope["headers"])
        if method == "HEAD":
            scope["method"] = "GET"

        # Not a coroutine: returning the server's saves a call.
        def send_response(message: Message) -> Awaitable[None]:
            nonlocal status
            scope["method"] = method  # the server computes the length of the body by it
            if message["type"] == "http.response.start":
                status = message["status"]
                there = dict(message["headers"])
                shown = not by_program or there.get(b"content-type") not in _JSON
                always = security_headers(public=scope["path"] in PUBLIC, by_tls=by_tls, shown=shown)
                wanted = (header for header in (*always, (REQUEST_ID, request_id)) if header[0] not in there)
                message["headers"] = [*message["headers"], *wanted]
            elif method == "HEAD" and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            return send(message)

        try:
            await self._app(scope, receive, send_response)
        finally:
            route = str(getattr(scope.get("route"), "path", "none"))
            record(method if method in _METHODS else "other", route, status, perf_counter() - began_at)


def security_headers(*, public: bool, by_tls: bool, shown: bool) -> Headers:
    """Return the headers of every response that has none of their names.

    Args:
        public: whether caches may store the response.
        by_tls: whether the request came by https.
        shown: whether a browser may show the response. It sends no Authorization header when it opens or frames a page,
            so JSON for such a request is a program's.
    """
    return _SETS[public, by_tls, shown]


def name_request(sent: bytes | None) -> bytes:
    """Adopt a plain X-Request-Id, or generate one."""
    if sent is not None and _READABLE.fullmatch(sent):
        return sent
    return b"req_" + secrets.token_hex(8).encode()


def record(method: str, route: str, status: int, seconds: float) -> None:
    """Count and log a request by its path template; its id, which the ledger stores too, identifies the details."""
    metrics.count_request(method, route, status, seconds)
    if _logger.isEnabledFor(logging.INFO):
        facts = {"method": method, "route": route, "status": status, "duration_seconds": round(seconds, 6)}
        _logger.info("%s %s %d in %.1f ms", method, route, status, seconds * 1e3, extra={"facts": facts})


def install(app: FastAPI) -> None:
    """Install the middleware outside of all others, including the handler of unexpected errors."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: RequestMiddleware(build())  # type: ignore[method-assign]
