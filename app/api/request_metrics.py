"""Metrics of all requests, by path template."""

import logging
from collections.abc import Awaitable
from time import perf_counter
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.logging_config import REQUESTS
from app.service.metrics import counters

TEMPLATE: Final = "epsilon_ledger.template"
"""Key in the scope for the path template of requests that bypass the framework."""

_logger = logging.getLogger(REQUESTS)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetricsMiddleware:
    """Middleware that counts and times requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and record the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at = perf_counter()
        status = 0

        # Not a coroutine: returning the server's saves a call.
        def send_noting(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        try:
            await self._app(scope, receive, send_noting)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route, seconds = template_of(scope), perf_counter() - began_at
            counters.count_request(method, route, status, seconds)
            if _logger.isEnabledFor(logging.INFO):
                _log(method, route, status, seconds)


def _log(method: str, route: str, status: int, seconds: float) -> None:
    """Log a request; its id, which the ledger stores too, identifies the details."""
    facts = {"method": method, "route": route, "status": status, "duration_seconds": round(seconds, 6)}
    _logger.info("%s %s %d in %.1f ms", method, route, status, seconds * 1e3, extra={"facts": facts})


def template_of(scope: Scope) -> str:
    """Return the path template of a request, or "none"."""
    template = scope.get(TEMPLATE) or getattr(scope.get("route"), "path", "none")
    return str(template)


def install(app: FastAPI) -> None:
    """Install the middleware outside of all others, including the handler of unexpected errors."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: RequestMetricsMiddleware(build())  # type: ignore[method-assign]
