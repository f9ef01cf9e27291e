"""`step_connections` for asyncio programs."""

import asyncio
import os
import ssl
from typing import cast

import httpx2

from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._net.plain_http import AnswerReader, NotPlainError, PlainAnswer, answer_reader
from epsilon_ledger._net.step_pool import PooledConnection, StepPool
from epsilon_ledger._wire.requests import Request
from epsilon_ledger._wire.responses import HttpAnswer


class AsyncStepConnections(StepPool["_Connection"]):
    """A pool of connections to the ledger, one for each task that waits; tasks of one event loop may share it.

    Args:
        requests: as `StepPool`.
        context: as `StepConnections`.
    """

    def __init__(self, requests: RequestBuilder, context: ssl.SSLContext | None) -> None:
        super().__init__(requests)
        self._context = context

    async def exchange(self, request: Request) -> HttpAnswer:
        """As `StepConnections.exchange`."""
        message, url = self._message(request)
        keeps_alive = False
        connection = self._take_idle() or await self._connect()
        try:
            answer, keeps_alive = await connection.exchange(message, url)
        except NotPlainError:
            self._detour()
            raise
        finally:
            # As there; a task that was cancelled has not read its answer either.
            self._give_back(connection, keeps_alive=keeps_alive)
        return answer

    async def _connect(self) -> "_Connection":
        host, port = self._requests.host_and_port
        timeouts = self._requests.timeout
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeouts["connect"]):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, timeouts["read"]), host, port, ssl=self._context
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        return connection


class _Connection(asyncio.Protocol, PooledConnection):
    """A connection to the ledger, used by one task at a time.

    Args:
        loop: of the tasks.
        timeout: as that of the blocking connection.
    """

    _transport: asyncio.Transport
    _reader: AnswerReader

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        self._loop = loop
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[PlainAnswer] = loop.create_future()
        self._answer.cancel()  # nothing was asked yet

    def is_usable(self) -> bool:
        """As `PooledConnection.is_usable`, in the event loop that opened the connection."""
        ours = self._loop is asyncio.get_running_loop() and not self._transport.is_closing()
        # Also what the loop has not received yet, as it did not run during a training step.
        return ours and super().is_usable()

    async def exchange(self, message: bytes, url: str) -> PlainAnswer:
        """As that of the blocking connection."""
        self._reader = answer_reader(url)
        next(self._reader)
        self._answer = self._loop.create_future()
        if self._transport.is_closing():
            self._read(b"")
        else:
            self._transport.write(message)
        self._restart_timer()
        try:
            answer, keeps_alive = await self._answer
        finally:
            self._stop_timer()
        return PlainAnswer(answer, keeps_alive and not self._transport.get_write_buffer_size())

    def close(self) -> None:
        """Close the connection; a forked process must not, as it shares the event loop's watch on the socket."""
        if self._process == os.getpid() and not self._loop.is_closed():
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        PooledConnection.__init__(self, transport.get_extra_info("socket"))
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is not one by its class

    def resume_writing(self) -> None:
        """Begin the time of the answer, as a long request is nearly sent."""
        if not self._answer.done():
            self._restart_timer()

    def data_received(self, data: bytes) -> None:
        """Read the answer; anything else ends the connection."""
        if self._answer.done():
            self._transport.abort()
        else:
            self._read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if the answer has not arrived."""
        if not self._answer.done():
            if exc is None:
                self._read(b"")
            else:
                self._answer.set_exception(httpx2.ReadError(str(exc)))

    def _read(self, data: bytes) -> None:
        try:
            self._reader.send(data)
        except StopIteration as end:
            self._answer.set_result(end.value)
        except httpx2.RequestError as error:
            self._answer.set_exception(error)

    def _restart_timer(self) -> None:
        self._stop_timer()
        if self._timeout is not None:
            self._timer = self._loop.call_later(self._timeout, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if not self._answer.done():
            late = httpx2.WriteTimeout if self._transport.get_write_buffer_size() else httpx2.ReadTimeout
            self._answer.set_exception(late("timed out"))
