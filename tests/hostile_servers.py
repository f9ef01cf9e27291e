"""Servers that answer slowly, without end or nonsense: what receivers, providers and mail servers may do."""

import gzip
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread

OK = b"HTTP/1.1 200 OK\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(bytes(1 << 24))
"""16 MiB of zeros in 16 kB."""


@dataclass(frozen=True)
class Answer:
    """What a server says: a beginning, then a piece again and again.

    Args:
        begin: once, after it has received something if `listens`.
        piece: repeated until the client leaves; empty: silence.
        pause: seconds before each piece; 0: as fast as it is taken.
        listens: whether the client speaks first.
    """

    begin: bytes = b""
    piece: bytes = b""
    pause: float = 0.0
    listens: bool = True


ENDLESS_HEADS = {
    "interim answers": Answer(piece=CONTINUE * 1000),
    "interim answers with headers": Answer(piece=CONTINUE[:-2] + b"Link: </a>; rel=preload\r\n" * 150 + b"\r\n"),
    "headers": Answer(OK, b"a:b\r\n" * 10_000),
    "one header": Answer(OK + b"X: ", b"y" * 65_536),
    "a reason": Answer(b"HTTP/1.1 200 ", b"O" * 65_536),
    "no HTTP": Answer(piece=b"\0\xff" * 10_000),
    "empty lines": Answer(piece=b"\r\n" * 10_000),
    "another protocol": Answer(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"x" * 1000),
}
"""Answers whose heads have no end: nobody may read them to it."""

ENDLESS_BODIES = {
    "a body": Answer(OK + b"\r\n", b" " * 65_536),
    "small chunks": Answer(CHUNKED, b"1\r\n \r\n" * 10_000),
    "an extension of a chunk": Answer(CHUNKED + b"1;", b"e" * 65_536),
    "trailers": Answer(CHUNKED + b"0\r\n", b"a:b\r\n" * 10_000),
    "a large body": Answer(OK + b"Content-Length: 999999999999\r\n\r\n", b" " * 65_536),
}

SLOW = {
    "silence": Answer(),
    "silence after the head's first line": Answer(OK),
    "a slow first line": Answer(b"HTTP/1.1 200 ", b"O", 0.01),
    "a slow header": Answer(OK + b"X: ", b"y", 0.01),
}
"""Answers that never exceed a size, and never end."""

TLS_FLOODS = {
    # HelloRequest: clients ignore it while they wait for the server's hello, however often it comes.
    "hello requests": Answer(piece=b"\x16\x03\x03\x00\x04\x00\x00\x00\x00" * 5000),
    "a certificate": Answer(b"\x16\x03\x03\x40\x00\x0b\xff\xff\xff", b"\0" * 65_536),
    "no TLS": Answer(piece=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}

GREETINGS = {
    "lines of a greeting": Answer(piece=b"220-welcome\r\n" * 5000, listens=False),
    "one line": Answer(b"220 ", b"w" * 65_536, listens=False),
    "answers": Answer(b"220 mail\r\n", b"250 OK\r\n" * 5000, listens=False),
    "no SMTP": Answer(piece=b"\0\xff\n" * 5000, listens=False),
}


@dataclass
class HostileServer:
    """A server on a port of its own; `left` counts the connections that clients have closed."""

    port: int
    met: int = 0
    left: int = 0
    sent: int = 0

    def serve(self, listening: socket.socket, answer: Answer, stop: Event, tls: ssl.SSLContext | None) -> None:
        """Accept connections until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self.met += 1
                Thread(target=self._speak, args=(connection, answer, stop, tls), daemon=True).start()

    def _speak(self, plain: socket.socket, answer: Answer, stop: Event, tls: ssl.SSLContext | None) -> None:
        with plain, suppress(OSError), tls.wrap_socket(plain, server_side=True) if tls else plain as connection:
            if answer.listens:
                connection.recv(1 << 16)
            connection.sendall(answer.begin)
            if not answer.piece:
                connection.settimeout(60)
                while connection.recv(1 << 16) and not stop.is_set():
                    pass
            while answer.piece and not stop.wait(answer.pause):
                connection.sendall(answer.piece)
                self.sent += len(answer.piece)
        self.left += 1


@contextmanager
def hostile(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[HostileServer]:
    """A server that gives an answer to everybody, for a while."""
    stop = Event()
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listening:
        server = HostileServer(listening.getsockname()[1])
        Thread(target=server.serve, args=(listening, answer, stop, tls), daemon=True).start()
        try:
            yield server
        finally:
            stop.set()
            listening.shutdown(socket.SHUT_RDWR)
