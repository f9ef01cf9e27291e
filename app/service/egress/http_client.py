"""HTTP/1.1 requests to others' servers: one connection each, no redirects, bounded answers."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app.service.egress.connection import OVERHEAD_BYTES, Connection, EgressError
from app.service.egress.proxies import Proxy

Connect = Callable[[str, int, int], Awaitable[Connection]]
"""Connects to a host and port; the third argument is how many bytes the server may send."""

MOST_INTERIM: Final = 8
"""Interim answers (100 Continue, 103 Early Hints) before the answer."""

MOST_HEADERS: Final = 200
MOST_HEAD_BYTES: Final = 64 << 10
"""Headers of all heads of an answer, and their bytes."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to a checked URL.

    Args:
        method: of HTTP.
        url: http or https, of printable ASCII.
        headers: besides those of the connection.
        body: empty: none.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer; without its body if that was not asked for."""

    status: int
    body: bytes

    @property
    def succeeded(self) -> bool:
        """Whether the server did what was asked; a redirect did not."""
        return self.status in range(200, 300)


async def exchange(
    request: HttpRequest,
    connect: Connect,
    trust: ssl.SSLContext,
    *,
    seconds: float,
    most_body: int = 0,
    proxy: Proxy | None = None,
) -> HttpResponse:
    """Send a request and read the answer, which is never decompressed.

    Args:
        request: to send.
        connect: opens the connection.
        trust: the authorities of https.
        seconds: for all of it, from the name's resolution to the last byte.
        most_body: bytes that the body may have; 0: it is not read.
        proxy: to ask instead of the host; None: none.

    Raises:
        TimeoutError: the time is over.
        EgressError: the server cannot be reached, or its answer exceeds a bound or is not HTTP.
        OSError: the connection or TLS failed.
        ValueError: the request cannot be written.
    """
    parts = urlsplit(request.url)
    host, encrypted = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if encrypted else 80)
    head = _request_head(request, parts, to_proxy=proxy is not None and not encrypted, proxy=proxy)
    async with asyncio.timeout(seconds):
        where = (host, port) if proxy is None else (proxy.host, proxy.port)
        with closing(await connect(*where, most_body + OVERHEAD_BYTES)) as connection:
            if proxy is not None and encrypted:
                target = f"[{host}]" if ":" in host else host
                await _open_tunnel(connection, proxy, f"{target}:{port}")
            if encrypted:
                await connection.start_tls(trust, host)
            await connection.send(head + request.body)
            return await _answer(connection, most_body)


class _Answer:
    """An answer as httptools reads it: the parser calls the methods that begin with `on_`."""

    def __init__(self, most_body: int) -> None:
        self.status: int | None = None
        self.body = bytearray()
        self.complete = False
        self.framed = False
        """Whether the head says where the body ends; otherwise it ends with the connection."""
        self._most_body = most_body
        self._interim = self._headers = self._head_bytes = 0
        self._fault = ""
        self._parser = HttpResponseParser(self)

    def feed(self, piece: bytes) -> None:
        """Read a piece of the answer.

        Raises:
            EgressError: it is not HTTP, or exceeds a bound.
        """
        if self.status is None:
            self._head_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except (HttpParserError, HttpParserUpgrade):
            if self.status is None or self._most_body:
                raise EgressError(self._fault or "The server's answer is not HTTP.") from None
        if self.status is None and self._head_bytes > MOST_HEAD_BYTES:
            raise EgressError(f"The head of the server's answer is longer than {MOST_HEAD_BYTES} bytes.")

    def on_header(self, name: bytes, _: bytes) -> None:
        self._headers += 1
        if self._headers > MOST_HEADERS:
            self._refuse(f"The server's answer has more than {MOST_HEADERS} headers.")
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self.framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status not in range(200):
            self.status = status
            return
        self._interim += 1
        self.framed = False
        if self._interim > MOST_INTERIM:
            self._refuse(f"The server sent more than {MOST_INTERIM} interim answers.")

    def on_body(self, piece: bytes) -> None:
        if not self._most_body:
            return
        self.body += piece
        if len(self.body) > self._most_body:
            self._refuse(f"The server's answer is longer than {self._most_body} bytes.")

    def on_message_complete(self) -> None:
        self.complete = self.status is not None

    def _refuse(self, fault: str) -> None:
        self._fault = fault
        raise EgressError(fault)  # ends the parser, whose own error follows


async def _answer(connection: Connection, most_body: int) -> HttpResponse:
    answer = _Answer(most_body)
    while not answer.complete:
        if answer.status is not None and not most_body:
            break
        piece = await connection.receive()
        if not piece:
            if answer.status is None or answer.framed:
                raise EgressError("The server ended the connection before its answer.")
            break
        answer.feed(piece)
    assert answer.status is not None, "a complete answer has one"
    return HttpResponse(answer.status, bytes(answer.body))


async def _open_tunnel(connection: Connection, proxy: Proxy, target: str) -> None:
    """Ask a proxy for a connection to a host."""
    await connection.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{_lines(proxy.headers)}\r\n".encode())
    answer = await _answer(connection, 0)
    if not answer.succeeded:
        raise EgressError(f"The proxy {proxy.host} answered {answer.status}.")


def _request_head(request: HttpRequest, parts: SplitResult, *, to_proxy: bool, proxy: Proxy | None) -> bytes:
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    own = {"Host": parts.netloc.rpartition("@")[2], "Connection": "close", "Accept-Encoding": "identity"}
    if request.body or request.method == "POST":
        own["Content-Length"] = str(len(request.body))
    if to_proxy and proxy is not None:
        path, own = request.url, own | proxy.headers
    return f"{request.method} {path} HTTP/1.1\r\n{_lines(own | dict(request.headers))}\r\n".encode("ascii")


def _lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if not value.isprintable():
            raise ValueError(f"the header {name} has a character that is not printable")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
