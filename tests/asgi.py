"""A client of an application in this process: httpx2's own ASGI transport, in an event loop of another thread.

Starlette's client makes eight calls into that loop for a request, and this one makes one: the two threads that wait for
each other take longer than most answers.
"""

from contextlib import ExitStack
from typing import Any, Self

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI


class _PortalTransport(httpx2.BaseTransport):
    """Carries requests to an application; an answer is there once it is complete."""

    portal: BlockingPortal

    def __init__(self, inner: httpx2.ASGITransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        return self.portal.call(self._ask, request)

    async def _ask(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._inner.handle_async_request(request)
        content = b"".join([part async for part in answer.aiter_raw()])  # as it was sent, compressed perhaps
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=httpx2.ByteStream(content))


class AppClient(httpx2.Client):
    """A client of an application, which runs in its `with` block, or in the event loop of another client, `portal`."""

    def __init__(
        self,
        app: Any,  # noqa: ANN401 - of ASGI, with a lifespan
        base_url: str = "http://testserver",
        client: tuple[str, int] = ("127.0.0.1", 50000),
        portal: BlockingPortal | None = None,
        *,
        follow_redirects: bool = True,
    ) -> None:
        inner = httpx2.ASGITransport(app, raise_app_exceptions=False, client=client)
        self._carrier = _PortalTransport(inner)
        if portal is not None:
            self._carrier.portal = portal
        self._running = ExitStack()
        self.app: FastAPI = app
        super().__init__(base_url=base_url, transport=self._carrier, follow_redirects=follow_redirects)

    @property
    def portal(self) -> BlockingPortal:
        """The event loop of the application."""
        return self._carrier.portal

    def browser(self, url: str = "http://ledger.example", address: str = "127.0.0.1") -> "AppClient":
        """A browser of its own at the same application, which follows no redirects."""
        other = AppClient(self.app, url, (address, 50_000), self.portal, follow_redirects=False)
        other.headers["Origin"] = url
        return other

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._carrier.portal = portal = stack.enter_context(start_blocking_portal())
            lifespan = self.app.router.lifespan_context(self.app)
            stack.enter_context(portal.wrap_async_context_manager(lifespan))
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        self.close()
