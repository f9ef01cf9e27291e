"""What every reply tells browsers and caches: on both ways, and on errors that nobody foresaw."""

from collections.abc import Awaitable
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = tuple[tuple[bytes, bytes], ...]

PUBLIC: Final = frozenset({"/docs", "/openapi.json"})
"""What is the same for everybody, and may be kept by a cache."""

_ALWAYS: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with none at all, browsers say `Origin: null` to our own pages' forms
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
    """Adds to every reply the headers that it does not set itself.

    Args:
        app: answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = _SETS[scope["path"] in PUBLIC, scope["scheme"] == "https"]

        # No coroutine of its own: it hands on the one of the server, and costs a call less.
        def send_with(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                there = {name for name, _ in headers}
                message["headers"] = [*headers, *(header for header in wanted if header[0] not in there)]
            return send(message)

        await self._app(scope, receive, send_with)


def install(app: FastAPI) -> None:
    """Let an application send the headers with every reply.

    Around everything: what `add_middleware` takes lies inside of what answers an error that nobody foresaw.
    """
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: SecurityHeaders(build())  # type: ignore[method-assign]
