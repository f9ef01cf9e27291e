"""A seeded ledger behind two ports of this process: one has the fast path of steps, one has the usual route alone.

Requests and answers are raw bytes, so that every byte can be compared.
"""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pytest
from starlette.types import Message, Scope, Send
from uvicorn.server import ServerState

from app.http.connections import BoundedConfig, BoundedConnection, Limits
from app.http.step_path import StepPath
from tests.api.conftest import SeededLedger

SHORT, USUAL = 0, 1
BOTH = (SHORT, USUAL)
SECONDS = 30.0
JSON = (b"content-type", b"application/json")
NAMED = (b"x-request-id", b"mine")


@dataclass(frozen=True)
class Answer:
    """One answer, byte for byte."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    def header(self, name: bytes) -> bytes | None:
        found = re.search(rb"\r\n%b: (.*?)\r\n" % name, self.head)
        return found and found[1]


class Client:
    """A connection that sends bytes and reads whole answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self.socket.close()

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def answer(self) -> Answer:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._reader.readline()
            assert line, head
            head += line
        length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
        return Answer(head, self._reader.read(int(length[1])) if length else b"")

    def ask(self, request: bytes) -> Answer:
        self.send(request)
        return self.answer()

    def rest(self) -> bytes:
        """All that comes until the service closes the connection."""
        return self._reader.read()


@dataclass(frozen=True)
class Ports:
    """A seeded ledger and its ports: the one with the short way for steps, and the one without."""

    seeded: SeededLedger
    of: tuple[int, int]
    state: ServerState

    def request(
        self, content: bytes, *headers: tuple[bytes, bytes], run: str = "", path: str = "", query: str = ""
    ) -> bytes:
        """A trainer's request for steps; without headers, it is a plain one."""
        key = self.seeded.ledger.headers("trainer")["Authorization"].encode()
        target = path or f"/v1/runs/{run or self.seeded.run}/steps{query}"
        return request(target, content, (b"authorization", key), *(headers or (JSON,)))

    def ask(self, way: int, request: bytes) -> Answer:
        """Ask on a connection of its own."""
        with Client(self.of[way]) as client:
            return client.ask(request)

    def same(self, request: bytes) -> Answer:
        """Ask both ways, and compare the bytes."""
        short, usual = (self.ask(way, request) for way in BOTH)
        assert short == usual
        return short


def request(path: str, content: bytes, *headers: tuple[bytes, bytes], method: str = "POST") -> bytes:
    """Build a request; an empty body has no length."""
    fields = [(b"host", b"ledger"), *headers, *([(b"content-length", b"%d" % len(content))] if content else [])]
    head = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), path.encode(), head, content)


@contextmanager
def listening(app: object, state: ServerState, portal: Any) -> Iterator[int]:  # noqa: ANN401 - anyio's
    """Serve an application on a free port, in the event loop of its test client."""
    config = BoundedConfig(app, http=BoundedConnection, ws="none", lifespan="off", log_config=None, log_level="warning")  # type: ignore[arg-type] # any application
    config.limits = Limits(SECONDS, SECONDS, 100)
    config.load()

    async def listen() -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: BoundedConnection(config, state, {}), "127.0.0.1", 0)

    async def leave() -> None:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()

    server: asyncio.Server = portal.call(listen)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        portal.call(leave)


@contextmanager
def watched() -> Iterator[list[str]]:
    """The runs whose steps are decided on the fast path meanwhile, past the framework."""
    asked: list[str] = []
    answer: Any = StepPath._answer

    async def watch(self: StepPath, scope: Scope, send: Send, *arguments: Any) -> None:  # noqa: ANN401 - passed through
        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                asked.append(scope["path"].split("/")[3])
            await send(message)

        await answer(self, scope, send_watched, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepPath, "_answer", watch)
        yield asked
