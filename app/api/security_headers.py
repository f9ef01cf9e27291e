"""Security and cache headers of every response, errors included."""

from collections.abc import Awaitable
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = tuple[tuple[bytes, bytes], ...]

PUBLIC: Final = frozenset({"/docs", "/openapi.json"})
"""Public paths, which caches may store."""

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


class SecurityHeaders:
    """Middleware that adds missing security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = _SETS[scope["path"] in PUBLIC, scope["scheme"] == "https"]

        # Not a coroutine: returning the server's saves a call.
        def send_with(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                there = {name for name, _ in headers}
                message["headers"] = [*headers, *(header for header in wanted if header[0] not in there)]
            return send(message)

        await self._app(scope, receive, send_with)


def install(app: FastAPI) -> None:
    """Install the middleware outside of all others, including the handler of unexpected errors."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: SecurityHeaders(build())  # type: ignore[method-assign]
