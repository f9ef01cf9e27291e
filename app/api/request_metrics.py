"""Every request is counted, however it is answered: by the template of its path, never by the path itself."""

import logging
from collections.abc import Awaitable
from time import perf_counter
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.logging_config import REQUESTS
from app.service.metrics import counters

TEMPLATE: Final = "epsilon_ledger.template"
"""Where in a scope who answers past the framework names the template of the path."""

_logger = logging.getLogger(REQUESTS)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetricsMiddleware:
    """Counts requests and measures how long they take.

    Args:
        app: answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at = perf_counter()
        status = 0

        # No coroutine of its own: it hands on the one of the server, and costs a call less.
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
    """A line for a request: what was asked is known by its id, which stands in the ledger, too."""
    facts = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
    _logger.info("%s %s %d in %.1f ms", method, route, status, seconds * 1e3, extra={"facts": facts})


def template_of(scope: Scope) -> str:
    """The template of the path of a request that was answered; "none" where no route took it."""
    template = scope.get(TEMPLATE) or getattr(scope.get("route"), "path", "none")
    return str(template)


def install(app: FastAPI) -> None:
    """Let an application count every request.

    Around everything: what `add_middleware` takes lies inside of what answers an error that nobody foresaw.
    """
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: RequestMetricsMiddleware(build())  # type: ignore[method-assign]
