"""A ledger behind a real socket, whose answers to steps a test cuts, splits, delays or replaces."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx2

from epsilon_ledger import Run
from tests.certificates import server_context
from tests.sdk.both_clients import Driven
from tests.sdk.fake_ledger import FakeLedger


@dataclass(frozen=True)
class Sent:
    """What the server sends for an answer.

    Args:
        pieces: each in a write of its own.
        closes: whether it then closes the connection.
        between: called before each piece but the first; it may wait.
    """

    pieces: Sequence[bytes]
    closes: bool = False
    between: Callable[[], object] = lambda: None


Spoiler = Callable[[bytes], Sent]
"""Makes what is sent of the answer that a ledger would give."""


@dataclass(frozen=True)
class Asked:
    """A request for steps as it arrived, and the port that it came from."""

    line: str
    headers: dict[str, str]
    port: int

    @property
    def is_by_httpx2(self) -> bool:
        return self.headers["accept-encoding"] != "identity"


def wire(answer: httpx2.Response) -> bytes:
    """Write an answer as the ledger does."""
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    headers["content-length"] = str(len(answer.content))
    lines = [f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + answer.content


@dataclass(eq=False)
class HostileServer:
    """Serves a ledger in memory over sockets; `spoil` says how the next answers to steps are sent."""

    ledger: FakeLedger = field(default_factory=lambda: FakeLedger(capacity=10**6))
    asked: list[Asked] = field(default_factory=list)
    certificates: Path | None = None
    _spoilers: deque[Spoiler] = field(default_factory=deque)
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spoil(self, *spoilers: Spoiler) -> None:
        self._spoilers.extend(spoilers)

    @property
    def url(self) -> str:
        scheme = "http" if self.certificates is None else "https"
        return f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        if self.certificates is not None:
            context, self.root = server_context(self.certificates)
            self._listening = context.wrap_socket(self._listening, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, (_, port, *_) = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection, port), daemon=True).start()

    def _serve(self, connection: socket.socket, port: int) -> None:
        self._open.add(connection)
        # A client may leave whenever it likes.
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as arriving:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while line := arriving.readline():
                headers = dict(self._headers(arriving))
                body = arriving.read(int(headers.get("content-length", 0)))
                if not self._answer(connection, Asked(line.decode().strip(), headers, port), body):
                    break
        self._open.discard(connection)

    def _headers(self, arriving: Iterator[bytes]) -> Iterator[tuple[str, str]]:
        for line in arriving:
            name, colon, value = line.decode().strip().partition(": ")
            if not colon:
                return
            yield name.lower(), value

    def _answer(self, connection: socket.socket, asked: Asked, body: bytes) -> bool:
        """Answer a request; return whether the connection is kept."""
        method, target, _ = asked.line.split()
        spoiler: Spoiler = lambda whole: Sent([whole])  # noqa: E731
        with self._lock:
            url = target if target.startswith("http:") else f"{self.url}{target}"  # to a proxy it is a whole URL
            request = httpx2.Request(method, url, headers=asked.headers, content=body)
            answer = self.ledger.arrive(request)
            if target.endswith("/steps"):
                self.asked.append(asked)
                spoiler = self._spoilers.popleft() if self._spoilers else spoiler
        sent = spoiler(wire(answer))
        for number, piece in enumerate(sent.pieces):
            if number:
                sent.between()
            connection.sendall(piece)
        return not sent.closes


def ports(asked: list[Asked]) -> list[int]:
    return [each.port for each in asked]


def take(run: Run | Driven, server: HostileServer) -> None:
    """Take a step, which is the next one of the ledger's."""
    number = server.ledger.next_step
    answer = run.authorize()
    assert (answer.first_step, answer.next_step, server.ledger.next_step) == (number, number + 1, number + 1)
