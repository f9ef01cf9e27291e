"""Connections of the client's own for the requests of steps, for which each step of a training waits.

httpx2 takes several times the processor time for one of them, and sends all other requests.
"""

import socket
import ssl
from time import monotonic
from typing import Final

import httpx2

from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._net.plain_http import NotPlainError, PlainAnswer, read_plain_answer
from epsilon_ledger._net.step_pool import PooledConnection, StepPool
from epsilon_ledger._wire.requests import Request
from epsilon_ledger._wire.responses import HttpAnswer

_RECEIVED_BYTES: Final = 64 * 1024

_LEAST_SECONDS: Final = 1e-6
"""Of waiting: none at all would mean not to wait for what has not arrived."""


class StepConnections(StepPool["_Connection"]):
    """A pool of connections to the ledger, one for each thread that waits; threads may share it.

    Args:
        requests: as `StepPool`.
        context: of TLS; None: the ledger's address is http.
    """

    def __init__(self, requests: RequestBuilder, context: ssl.SSLContext | None) -> None:
        super().__init__(requests)
        self._context = context

    def exchange(self, request: Request) -> HttpAnswer:
        """Send a request once, and return its answer.

        Raises:
            NotPlainError: httpx2 is needed to read the answer, and carries what follows for a while.
            httpx2.RequestError: as a transport of httpx2.
        """
        message, url = self._message(request)
        keeps_alive = False
        connection = self._take_idle() or self._connect()
        try:
            answer, keeps_alive = connection.exchange(message, url)
        except NotPlainError:
            self._detour()
            raise
        finally:
            # After an interrupt or an error, the next request must not read what is left of this one's answer.
            self._give_back(connection, keeps_alive=keeps_alive)
        return answer

    def _connect(self) -> "_Connection":
        host, port = self._requests.host_and_port
        timeouts = self._requests.timeout
        try:
            return _Connection(_open_socket(host, port, self._context, timeouts["connect"]), timeouts["read"])
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error


class _Connection(PooledConnection):
    """A connection to the ledger, used by one thread at a time.

    Args:
        connected: its socket.
        timeout: seconds in which a request is sent, and in which its whole answer is received; None: unlimited.
    """

    def __init__(self, connected: socket.socket, timeout: float | None) -> None:
        super().__init__(connected)
        self._socket = connected
        self._timeout = timeout
        self._until: float | None = None
        self._is_shortened = True

    def exchange(self, message: bytes, url: str) -> PlainAnswer:
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
        return PlainAnswer(answer, keeps_alive and sent)

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
