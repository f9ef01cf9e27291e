"""Requests to an application in this process, each in one call of the application's event loop.

Starlette's client makes eight calls for a request, since it also hands over the parts of an answer that has no end. For
each of them two threads wait for each other, which takes longer than most answers.
"""

import asyncio
from typing import Any, Final

import httpx2
from starlette import testclient
from starlette.types import Message

CLASS: Final = "_TestClientTransport"
"""How Starlette's client finds what carries its requests."""

Transport: Any = vars(testclient)[CLASS]


class OneCallTransport(Transport):  # type: ignore[misc]  # its class is not public
    """Carries requests; an answer is there once it is complete."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = request.read()
        with self.portal_factory() as portal:
            status, headers, content = portal.call(self._ask, self._scope(request), body)
        shown = b"" if request.method == "HEAD" else content
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(shown), request=request)

    def _scope(self, request: httpx2.Request) -> dict[str, Any]:
        url = request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "root_path": self.root_path,
            "scheme": url.scheme,
            "query_string": url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": self.client,
            "server": [url.host, url.port or {"http": 80, "https": 443}[url.scheme]],
            "state": self.app_state.copy(),
        }

    async def _ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        answered = asyncio.Event()
        received = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if received:
                return received.pop()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            assert not answered.is_set(), "it goes on after its answer's end"
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                answered.set()

        try:
            await self.app(scope, receive, send)
        except Exception:
            if self.raise_server_exceptions:
                raise
        start, *parts = sent or [{"type": "http.response.start", "status": 500}]
        assert start["type"] == "http.response.start", "no answer begins so"
        return start["status"], start.get("headers", []), b"".join(part.get("body", b"") for part in parts)


def install() -> None:
    """Let each of Starlette's clients that is made from now on carry its requests so."""
    vars(testclient)[CLASS] = OneCallTransport
