"""Connections to others' servers, bounded in what they take of this process.

TLS runs here, over a plain socket: the bounds then count everything that a server sends, also what TLS would swallow,
such as endless handshakes, tickets and key updates.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from app.service.background import run_detached

T = TypeVar("T")

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Resolver of a host's addresses."""

OVERHEAD_BYTES: Final = 256 << 10
"""Bytes that a server may send besides the content of its answer: certificates, heads, chunk sizes."""

FREE_READS: Final = 16
PAUSE_SECONDS: Final = 0.02
"""Reads without a pause, and the pause before each one after them.

A server that sends byte by byte is read in few pieces. A well-behaved one fills the kernel's buffer meanwhile, so that
1 MiB takes less than a second.
"""

PIECE: Final = 65_536


class EgressError(OSError):
    """Another server cannot be reached, or exceeds a bound; the message is a sentence."""


class ForbiddenAddressError(EgressError):
    """A host has a forbidden address; the message does not disclose it."""


class Connection:
    """A connection that takes a limited number of bytes; used from one event loop, without concurrent reads."""

    def __init__(self, connected: socket.socket, most_bytes: int) -> None:
        self._socket = connected
        self._most = self._left = most_bytes
        self._reads = 0
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()

    async def start_tls(self, trust: ssl.SSLContext, host: str) -> None:
        """Encrypt the connection.

        Raises:
            OSError: the server's certificate is not that of the host, or the handshake failed.
        """
        self._tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        await self._run_tls(self._tls.do_handshake)

    async def send(self, content: bytes) -> None:
        """Send bytes."""
        tls = self._tls
        if tls is None:
            await asyncio.get_running_loop().sock_sendall(self._socket, content)
        elif content:
            await self._run_tls(lambda: tls.write(content))

    async def receive(self) -> bytes:
        """Receive some bytes; none: the server has ended the connection.

        Raises:
            EgressError: the server has sent too much.
            OSError: the connection is broken.
        """
        tls = self._tls
        if tls is None:
            return await self._read()
        try:
            return await self._run_tls(lambda: tls.read(PIECE))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # many servers end without saying so
            return b""

    def close(self) -> None:
        """Close the connection without a farewell, which a hostile server would not hear."""
        self._socket.close()

    async def _run_tls(self, step: Callable[[], T]) -> T:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                piece = await self._read()
                self._incoming.write(piece) if piece else self._incoming.write_eof()
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await asyncio.get_running_loop().sock_sendall(self._socket, self._outgoing.read())

    async def _read(self) -> bytes:
        self._reads += 1
        if self._reads > FREE_READS:
            await asyncio.sleep(PAUSE_SECONDS)
        piece = await asyncio.get_running_loop().sock_recv(self._socket, PIECE)
        self._left -= len(piece)
        if self._left < 0:
            raise EgressError(f"The server sent more than {self._most} bytes.")
        return piece


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a host to its addresses, in the order to try them.

    In a thread of its own: a name server that does not answer must not hold threads that others' hosts wait for.
    """
    found: list[str] = []

    def look_up() -> None:
        listed = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.extend(dict.fromkeys(str(address[0]) for *_, address in listed))

    await run_detached(look_up)
    return found


async def connect(
    host: str,
    port: int,
    most_bytes: int,
    *,
    permitted: Callable[[str], bool] | None = None,
    resolver: Resolver = resolve,
) -> Connection:
    """Connect to a host.

    The addresses are checked here, so that a second look-up with another answer (DNS rebinding) does not happen.

    Args:
        host: name or address.
        port: TCP port.
        most_bytes: that the server may send.
        permitted: whether an address may be connected to; None: all may.
        resolver: finds the host's addresses.

    Raises:
        ForbiddenAddressError: an address is not permitted.
        EgressError: the host has no address, or does not answer.
    """
    try:
        addresses = await resolver(host, port)
    except (OSError, UnicodeError):
        addresses = []
    if permitted is not None and not all(map(permitted, addresses)):
        raise ForbiddenAddressError(f"The host {host} is not at a public address; nothing was sent.")
    failure = EgressError(f"The host {host} has no address.")
    for address in addresses:
        try:
            return Connection(await _connected(address, port), most_bytes)
        except OSError as error:  # its own text would disclose the address
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            failure = EgressError(f"The host {host} cannot be connected to: {reason}.")
    raise failure


async def _connected(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setblocking(False)  # noqa: FBT003 - as the standard library names it
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return made
