"""The pool of the client's own connections for steps, without their I/O: blocking and asynchronous ones share it."""

import os
import select
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, Generic, TypeVar

from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._wire.requests import Request

# As httpx2's pool.
_IDLE_SECONDS: Final = 5.0
_MOST_IDLE: Final = 20

_DETOUR_SECONDS: Final = 600.0
"""For which httpx2 carries steps after an odd answer, which a proxy may give to all of them, or during an outage."""

_MOST_HEADS: Final = 64
"""Remembered heads of requests, one for each run."""


class PooledConnection:
    """A connection to the ledger, used by one caller at a time.

    Args:
        connected: its socket.
    """

    def __init__(self, connected: socket.socket | TransportSocket) -> None:
        self._process = os.getpid()
        self._is_readable = _readability(connected)
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        """Return whether the connection may carry another request, to which the server has not said a word yet.

        A server that has closed it has made it readable. A forked process shares it with its parent.
        """
        fresh = monotonic() - self.idle_since < _IDLE_SECONDS
        return fresh and self._process == os.getpid() and not self._is_readable()

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError


Connection = TypeVar("Connection", bound=PooledConnection)


class StepPool(Generic[Connection]):
    """Idle connections, and the heads of the requests that they carry.

    Args:
        requests: builder of the same requests for httpx2.
    """

    def __init__(self, requests: RequestBuilder) -> None:
        self._requests = requests
        # A list's own operations are atomic: no lock, which a fork might copy while it is held.
        self._idle: list[Connection] = []
        self._heads: dict[str, tuple[bytes, str]] = {}
        self._carries_from = 0.0
        self._closed = False

    def carries(self, request: Request) -> bool:
        """Return whether a request goes over these connections."""
        return request.method == "POST" and request.path.endswith("/steps") and monotonic() >= self._carries_from

    def close(self) -> None:
        """Close the connections; those in use are closed after their answers."""
        self._closed = True
        self._close_idle()

    def _message(self, request: Request) -> tuple[bytes, str]:
        """Write a request, and return its URL, too."""
        assert request.body is not None, "steps have a body"
        assert request.key is not None, "and a key"
        head, url = self._heads.get(request.path) or self._build_head(request.path)
        key, length = request.key.encode(), len(request.body)
        return b"%bIdempotency-Key: %b\r\nContent-Length: %d\r\n\r\n%b" % (head, key, length, request.body), url

    def _build_head(self, path: str) -> tuple[bytes, str]:
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        head = self._heads[path] = self._requests.build_head(path)
        return head

    def _take_idle(self) -> Connection | None:
        try:
            while not (connection := self._idle.pop()).is_usable():
                connection.close()
        except IndexError:
            return None
        return connection

    def _give_back(self, connection: Connection, *, keeps_alive: bool) -> None:
        """Keep a connection for the next request, or close it."""
        if not keeps_alive or len(self._idle) >= _MOST_IDLE:
            connection.close()
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)
        if self._closed:  # by another thread meanwhile
            self._close_idle()

    def _detour(self) -> None:
        """Leave the steps to httpx2 for a while."""
        self._carries_from = monotonic() + _DETOUR_SECONDS
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


def _readability(connected: socket.socket | TransportSocket) -> Callable[[], object]:
    """Return a function that checks whether a socket can be read without waiting."""
    if not hasattr(select, "poll"):  # on Windows
        return lambda: select.select([connected], [], [], 0)[0]
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return partial(poll.poll, 0)
