"""Connections that are bounded: in time until a request has arrived, in the length of its head, and in number."""

import asyncio
import logging
import resource
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.api.problems import PROBLEM_JSON, STATUSES, problem_body
from app.service.metrics import counters

MOST_HEAD_BYTES: Final = 65_536
"""How long a request's line and headers may be together."""

SWEEP_SECONDS: Final = 0.5
"""How often all connections are looked at: so much later than its time one is closed."""

OTHER_FILES: Final = 512
"""File descriptors that are no accepted connection: databases, files, and connections that are about to be refused."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may take.

    Args:
        head_seconds: from its begin, or from the first byte of a further request, until the head is complete.
        body_seconds: from there until the body is; also how long an answer may lie there of which nothing is taken.
        connections: of a process at a time.
    """

    head_seconds: float
    body_seconds: float
    connections: int


class BoundedConfig(uvicorn.Config):
    """A configuration of the server that says what a connection may take."""

    limits: Limits


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed when a request does not arrive in time, is too long, or nobody takes its answer.

    No request arms a timer: each notes until when it must go on, and `sweep` looks at all connections now and then.
    """

    config: BoundedConfig
    cycle: RequestResponseCycle | None  # type: ignore[assignment] # as it is, until a head is complete
    _due: float | None
    """Until when the request must go on that arrives; None: none does, or its answer is waited for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Begin to wait for a head, or refuse one connection too many."""
        super().connection_made(transport)
        self._limits = self.config.limits
        self._messages = 0
        self._answered: RequestResponseCycle | None = None
        self._unsent, self._unsent_until = 0, 0.0
        self._await_head(self._limits.head_seconds)
        if len(self.connections) > self._limits.connections:
            self._refuse(
                "too_many_connections",
                f"This process has {self._limits.connections} connections already, and takes no more at a time. "
                "Repeat the request in a moment, and keep fewer connections.",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is being answered: uvicorn itself ends the last request that was read, which may wait behind it."""
        if self._answered is not None:
            self._answered.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; a head that does not end is refused before it fills the memory."""
        messages, in_head = self._messages, self._in_head
        super().data_received(data)
        if in_head and self._in_head and messages == self._messages and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse("headers_too_large", f"A request's line and headers hold at most {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin to read a head."""
        super().on_message_begin()
        self._messages += 1
        self._await_head(self._limits.head_seconds)
        self._head_bytes = 1  # at least; of what came with an earlier request nothing is counted

    def on_headers_complete(self) -> None:
        """Begin to read a body."""
        self._in_head = False
        self._due = self.loop.time() + self._limits.body_seconds
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for nothing while the request is answered."""
        super().on_message_complete()
        self._await_next()

    def on_response_complete(self) -> None:
        """Wait for a further request."""
        super().on_response_complete()
        if self._due is None:
            self._await_next()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def look(self, now: float) -> None:
        """Close the connection if its time is over.

        Args:
            now: by the clock of the event loop.
        """
        if self._is_stuck(now):
            self.transport.abort()
        elif self._due is None or now < self._due or self.transport.is_closing():
            return
        elif self.flow.read_paused:  # it is we who do not read on
            self._due = now + self._limits.body_seconds
        elif self.cycle is not None and self._is_being_answered():
            self.cycle.keep_alive = False
        elif self._in_head and not self._head_bytes:  # of who never said a word none is expected
            self.transport.close()
        else:
            part, seconds = (
                ("head", self._limits.head_seconds) if self._in_head else ("body", self._limits.body_seconds)
            )
            self._refuse("request_timeout", f"The request's {part} did not arrive within {seconds:g} seconds.")

    def _await_head(self, seconds: float) -> None:
        self._in_head, self._head_bytes = True, 0
        self._due = self.loop.time() + seconds

    def _await_next(self) -> None:
        """Wait for the next head; while a request is answered that takes as long as it takes."""
        self._await_head(self.timeout_keep_alive + self._limits.head_seconds)
        if self._is_being_answered():
            self._due = None

    def _is_being_answered(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _is_stuck(self, now: float) -> bool:
        """Whether nothing was taken of what is to be sent, for too long."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_until = unsent, now + self._limits.body_seconds
        return now >= self._unsent_until and unsent > 0

    def _refuse(self, code: str, why: str) -> None:
        """Say why, if nothing else is being said, and close."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            counters.count_problem(code)
            body = problem_body(code, why).encode()
            status = STATUSES[code][0]
            headers = [
                *self.server_state.default_headers,
                (b"content-type", PROBLEM_JSON.encode()),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                headers.append((b"retry-after", b"1"))
            head = [STATUS_LINE[status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n"]
            self.transport.write(b"".join([*head, body]))
        self.transport.close()


async def sweep(state: ServerState) -> None:
    """Close the connections whose time is over, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = loop.time()
        for connection in list(state.connections):
            if isinstance(connection, BoundedConnection):
                connection.look(now)


def connections_within(wanted: int) -> int:
    """Make room for connections among the files that this process may open.

    Args:
        wanted: as many as are set.

    Returns:
        How many there is room for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    fitting = max(1, soft - OTHER_FILES)
    _logger.warning(
        "This process may open %d files: it takes %d connections at a time, not the %d of "
        "EPSILON_LEDGER_MAX_CONNECTIONS; raise its limit (ulimit -n).",
        *(soft, fitting, wanted),
    )
    return fitting
