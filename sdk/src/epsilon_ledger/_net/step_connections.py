"""Connections of the client's own for the requests of steps, for which each step of a training waits.

httpx2 takes several times the processor time for one of them, and sends all other requests.
"""

import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final

import httpx2

from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._net.plain_http import NotPlainError, read_plain_answer
from epsilon_ledger._wire.requests import Request
from epsilon_ledger._wire.responses import HttpAnswer

_RECEIVED_BYTES: Final = 64 * 1024

# As httpx2's pool.
_IDLE_SECONDS: Final = 5.0
_MOST_IDLE: Final = 20

_LEAST_SECONDS: Final = 1e-6
"""Of waiting: none at all would mean not to wait for what has not arrived."""

_DETOUR_SECONDS: Final = 600.0
"""For which httpx2 carries steps after an odd answer, which a proxy may give to all of them, or during an outage."""

_MOST_HEADS: Final = 64
"""Remembered heads of requests, one for each run."""


class StepConnections:
    """A pool of connections to the ledger, one for each thread that waits; threads may share it.

    Args:
        requests: builder of the same requests for httpx2.
        context: of TLS; None: the ledger's address is http.
    """

    def __init__(self, requests: RequestBuilder, context: ssl.SSLContext | None) -> None:
        self._requests = requests
        self._context = context
        # A list's own operations are atomic: no lock, which a fork might copy while it is held.
        self._idle: list[_Connection] = []
        self._heads: dict[str, tuple[bytes, str]] = {}
        self._carries_from = 0.0
        self._closed = False

    def carries(self, request: Request) -> bool:
        """Return whether a request goes over these connections."""
        return request.method == "POST" and request.path.endswith("/steps") and monotonic() >= self._carries_from

    def exchange(self, request: Request) -> HttpAnswer:
        """Send a request once, and return its answer.

        Raises:
            NotPlainError: httpx2 is needed to read the answer, and carries what follows for a while.
            httpx2.RequestError: as a transport of httpx2.
        """
        assert request.body is not None, "steps have a body"
        assert request.key is not None, "and a key"
        head, url = self._heads.get(request.path) or self._build_head(request.path)
        key, length = request.key.encode(), len(request.body)
        message = b"%bIdempotency-Key: %b\r\nContent-Length: %d\r\n\r\n%b" % (head, key, length, request.body)
        keeps_alive = False
        connection = self._take_idle() or self._connect()
        try:
            answer, keeps_alive = connection.exchange(message, url)
        except NotPlainError:
            self._carries_from = monotonic() + _DETOUR_SECONDS
            self._close_idle()
            raise
        finally:
            # After an interrupt or an error, the next request must not read what is left of this one's answer.
            if keeps_alive and len(self._idle) < _MOST_IDLE:
                self._keep(connection)
            else:
                connection.close()
        return answer

    def close(self) -> None:
        """Close the connections; those in use are closed after their answers."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _take_idle(self) -> "_Connection | None":
        try:
            while not (connection := self._idle.pop()).is_usable():
                connection.close()
        except IndexError:
            return None
        return connection

    def _keep(self, connection: "_Connection") -> None:
        connection.idle_since = monotonic()
        self._idle.append(connection)
        if self._closed:  # by another thread meanwhile
            self._close_idle()

    def _build_head(self, path: str) -> tuple[bytes, str]:
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        head = self._heads[path] = self._requests.build_head(path)
        return head

    def _connect(self) -> "_Connection":
        address = self._requests.address
        timeouts = self._requests.timeout
        host, port = address.raw_host.decode(), address.port or (80 if self._context is None else 443)
        try:
            return _Connection(_open_socket(host, port, self._context, timeouts["connect"]), timeouts["read"])
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error


class _Connection:
    """A connection to the ledger, used by one thread at a time.

    Args:
        connected: its socket.
        timeout: seconds in which a request is sent, and in which its whole answer is received; None: unlimited.
    """

    def __init__(self, connected: socket.socket, timeout: float | None) -> None:
        self._socket = connected
        self._timeout = timeout
        self._until: float | None = None
        self._is_shortened = True
        self._process = os.getpid()
        self._is_readable = _readability(connected)
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        """Return whether the connection may carry another request, to which the server has not said a word yet.

        A server that has closed it has made it readable. A forked process shares it with its parent.
        """
        fresh = monotonic() - self.idle_since < _IDLE_SECONDS
        return fresh and self._process == os.getpid() and not self._is_readable()

    def exchange(self, message: bytes, url: str) -> tuple[HttpAnswer, bool]:
        """Send a request; return its answer, and whether the connection may carry another one."""
        if self._is_shortened:
            self._socket.settimeout(self._timeout)
            self._is_shortened = False
        self._until = None
        sent = True
        try:
            self._socket.sendall(message)
        except TimeoutError as error:
            raise httpx2.WriteTimeout(str(error)) from error
        except OSError:
            sent = False  # a server may refuse a request, and close, before it has read all of it
        answer, keeps_alive = read_plain_answer(self._receive, url)
        return answer, keeps_alive and sent

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> bytes:
        """Receive bytes within what is left of the time; none: the server has closed the connection."""
        try:
            if self._timeout is not None:
                if self._until is None:
                    self._until = monotonic() + self._timeout
                else:
                    self._is_shortened = True
                    self._socket.settimeout(max(self._until - monotonic(), _LEAST_SECONDS))
            return self._socket.recv(_RECEIVED_BYTES)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpx2.ReadError(str(error)) from error


def _open_socket(host: str, port: int, context: ssl.SSLContext | None, timeout: float | None) -> socket.socket:
    connected = socket.create_connection((host, port), timeout)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected if context is None else context.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise


def _readability(connected: socket.socket) -> Callable[[], object]:
    """Return a function that checks whether a socket can be read without waiting."""
    if not hasattr(select, "poll"):  # on Windows
        return lambda: select.select([connected], [], [], 0)[0]
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return partial(poll.poll, 0)
