"""A proxy of our own that breaks HTTP connections on purpose.

It speaks just enough HTTP/1.1 to know where a message ends: keep-alive, and bodies with Content-Length.
"""

import asyncio
import random
import threading
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Self

LONGEST_DELAY_SECONDS = 0.05


class Fault(StrEnum):
    """What happens to one request and its reply."""

    PASS = "pass"
    DELAY = "delay"
    CUT_REQUEST = "cut request"
    """The server gets half of the request, the client no reply."""
    CUT_REPLY = "cut reply"
    """The server gets the request, the client half of the reply."""
    DROP_REPLY = "drop reply"
    """The server gets the request, the client no reply."""
    DUPLICATE = "duplicate"
    """The server gets the request twice, at once, on two connections; the client either reply."""


Plan = Callable[[int], Fault]
"""What happens to the n-th request, from 0."""


def at_random(seed: int, share: float = 0.4) -> Plan:
    """A plan that breaks this share of the requests, the same for the same seed."""
    faults = [fault for fault in Fault if fault is not Fault.PASS]

    def plan(number: int) -> Fault:
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable, not secret
        return chance.choice(faults) if chance.random() < share else Fault.PASS

    return plan


class FaultProxy:
    """Stands between clients and the server at a port, in a thread of its own.

    Args:
        upstream: the server's port; the server may die and come back there.
        plan: what to do to each request.
        seed: of the delays, and of which reply to a doubled request is passed on.
    """

    def __init__(self, upstream: int, plan: Plan, seed: int = 0) -> None:
        self.upstream = upstream
        self.counts: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.port = 0
        self._plan = plan
        self._chance = random.Random(seed)  # noqa: S311 - as above
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        # The loop itself forgets a talk whose client is gone, and the collector takes it away before it has ended.
        self._talks: set[asyncio.Task[None] | None] = set()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        while talks := asyncio.all_tasks() - {asyncio.current_task()}:
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            await asyncio.sleep(0.01)  # streams that were closed end, and what was just accepted becomes a talk

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, with one of its own to the server; a fault may end both."""
        server: asyncio.StreamWriter | None = None
        self._talks.add(asyncio.current_task())
        try:
            replies, server = await asyncio.open_connection("127.0.0.1", self.upstream)
            while True:
                request = await _message(reader)
                number = sum(self.counts.values())
                fault = self._plan(number)
                self.counts[fault] += 1
                if fault is Fault.CUT_REQUEST:
                    server.write(request[: len(request) // 2])
                    await server.drain()
                    return
                if fault is Fault.DELAY:
                    await asyncio.sleep(self._chance.uniform(0, LONGEST_DELAY_SECONDS))
                server.write(request)
                ways = [_message(replies)]
                if fault is Fault.DUPLICATE:
                    ways.append(self._once(request))
                reply = self._chance.choice(await asyncio.gather(*ways, return_exceptions=True))
                if fault is Fault.DROP_REPLY or isinstance(reply, BaseException):
                    return
                if fault is Fault.CUT_REPLY:
                    writer.write(reply[: len(reply) // 2])
                    await writer.drain()
                    return
                writer.write(reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # either side is gone, or the proxy ends: so is the other, below
        finally:
            # Nothing is awaited here: a talk that is cancelled meanwhile would leave a stream open.
            for stream in (writer, server):
                if stream is not None:
                    stream.close()
            self._talks.discard(asyncio.current_task())

    async def _once(self, request: bytes) -> bytes:
        """Send a whole request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            writer.write(request)
            return await _message(reader)
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read one whole request or reply."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if line)
    assert b"transfer-encoding" not in fields, "bodies here have a length"
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))
