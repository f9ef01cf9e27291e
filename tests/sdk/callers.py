"""Clients that note which operation of the API each of their methods calls, blocking or awaited."""

import asyncio
import inspect
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2

from epsilon_ledger import AsyncLedgerClient, AsyncRun, LedgerClient, Run
from tests.servers import LiveServer

ROOT = Path(__file__).parents[2]


def operations() -> dict[str, tuple[str, re.Pattern[str]]]:
    """By id: the method and the pattern of the path of every operation of the API."""
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
    return {
        operation["operationId"]: (method.upper(), re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "operationId" in operation
    }


@dataclass
class Calls:
    """The operations that were called, by the method of the client that called them."""

    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    method: str = ""
    known: dict[str, tuple[str, re.Pattern[str]]] = field(default_factory=operations)

    def note(self, request: httpx2.Request) -> None:
        path = request.url.raw_path.decode().partition("?")[0]
        [operation] = [
            name for name, (method, at) in self.known.items() if method == request.method and at.fullmatch(path)
        ]
        self.seen[self.method].add(operation)


class NotingTransport(httpx2.HTTPTransport):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.calls.note(request)
        return super().handle_request(request)


class AsyncNotingTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.calls.note(request)
        return await super().handle_async_request(request)


class Caller:
    """A client or a run whose methods block, and whose lists are read to their end while the method is noted."""

    def __init__(self, inner: object, calls: Calls, run: Callable[[Any], Any]) -> None:
        self._inner, self._calls, self._run = inner, calls, run

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the client has
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: object, **kwargs: object) -> object:
            prefix = "Run." if isinstance(self._inner, Run | AsyncRun) else ""
            self._calls.method = prefix + name
            result = self._finish(found(*args, **kwargs))
            return Caller(result, self._calls, self._run) if isinstance(result, Run | AsyncRun) else result

        return call

    def _finish(self, result: object) -> object:
        if isinstance(result, AsyncIterator):
            return iter(self._run(_collect(result)))
        if inspect.isawaitable(result):
            return self._run(result)
        return iter(list(result)) if isinstance(result, Iterator) else result


async def _collect(items: AsyncIterator[object]) -> list[object]:
    return [item async for item in items]


@contextmanager
def caller(server: LiveServer, role: str, calls: Calls, *, awaited: bool) -> Iterator[LedgerClient]:
    """A client with a key of this role: the blocking one, or the other one, which looks like it.

    Each has an organisation of its own.
    """
    key = server.key(role, "awaited" if awaited else "blocking")
    if not awaited:
        with LedgerClient(server.url, key, timeout=60, transport=NotingTransport(calls)) as client:
            yield cast("LedgerClient", Caller(client, calls, lambda result: result))
        return
    with asyncio.Runner() as runner:
        made = AsyncLedgerClient(server.url, key, timeout=60, transport=AsyncNotingTransport(calls))
        try:
            yield cast("LedgerClient", Caller(made, calls, lambda result: runner.run(_awaited(result))))
        finally:
            runner.run(made.close())


async def _awaited(result: Any) -> Any:  # noqa: ANN401 - whatever the client answers
    return await result
