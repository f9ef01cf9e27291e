"""HTTP connections with limits on request time, header size and number."""

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.api.problems import PROBLEM_JSON, STATUSES, problem_body
from app.service import metrics

MOST_HEAD_BYTES: Final = 65_536
"""Maximum size of the request line and headers together."""

SWEEP_SECONDS: Final = 0.5
"""Interval between deadline checks: the longest delay after a deadline."""

LINGER_SECONDS: Final = 2.0
"""How long a refused client may go on sending before its connection is closed."""

OTHER_FILES: Final = 512
"""File descriptors reserved for databases, files and connections about to be refused."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the connections of a process.

    Args:
        head_seconds: from connecting, or from the first byte of a later request, until the head is complete.
        body_seconds: for the body after the head; also for a client that reads nothing of its response.
        connections: at the same time.
    """

    head_seconds: float
    body_seconds: float
    connections: int


class BoundedConfig(uvicorn.Config):
    """Uvicorn configuration with connection limits."""

    limits: Limits


class _JoinedWrites:
    """Transport that sends head and body of a response together: the server writes one after the other."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the transport
        """Get what is not joined from the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data at the end of the response or of the event loop's turn, or at once if it is long."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)
        if len(data) > HIGH_WATER_LIMIT:  # the transport must learn of it, to pause who writes
            self.flush()

    def write_eof(self) -> None:
        """Send what waits, and close the sending side."""
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Send what waits, and close."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._transport.write(b"".join(waiting))


class BoundedConnection(HttpToolsProtocol):
    """Connection that closes when a request is late or too long, or its response is not read.

    Requests arm no timers: each connection stores its deadline, and `sweep` checks all of them periodically.
    """

    config: BoundedConfig
    cycle: RequestResponseCycle | None  # type: ignore[assignment] # None until a head is complete
    _due: float | None
    """Deadline of the arriving request; None while there is none or it is being processed."""
    _lingers: bool = False
    """Whether what still arrives is discarded: a refusal is sent, or waits for its turn."""
    _refusal: tuple[str, str] | None = None
    """Code and detail of a refusal that waits until the requests before it are answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Wait for a request head, or refuse a connection over the limit."""
        super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type] # as a transport
        self._limits = self.config.limits
        self._messages = 0
        self._answered: RequestResponseCycle | None = None
        self._unsent, self._unsent_until = 0, 0.0
        self._await_head(self._limits.head_seconds)
        if len(self.connections) > self._limits.connections:
            self._refuse(
                "too_many_connections",
                f"This process has {self._limits.connections} connections already, its limit. "
                "Retry the request shortly, and keep fewer connections.",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect the running request; uvicorn itself only disconnects the last pipelined one."""
        if self._answered is not None:
            self._answered.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and refuse an unfinished head over the size limit."""
        if self._lingers:
            return
        messages, in_head = self._messages, self._in_head
        super().data_received(data)
        if in_head and self._in_head and messages == self._messages and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse("headers_too_large", f"A request's line and headers hold at most {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Start the deadline of the head."""
        super().on_message_begin()
        self._messages += 1
        self._await_head(self._limits.head_seconds)
        self._head_bytes = 1  # a lower bound: bytes that arrived with the previous request are not counted

    def on_headers_complete(self) -> None:
        """Start the deadline of the body."""
        self._in_head = False
        self._due = self.loop.time() + self._limits.body_seconds
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Suspend the deadline while the request is processed."""
        super().on_message_complete()
        self._await_next()

    def on_response_complete(self) -> None:
        """Start waiting for the next request, or send the refusal of the one that was wrong."""
        self.transport.flush()  # type: ignore[attr-defined] # see `_JoinedWrites`
        super().on_response_complete()
        if self._refusal is not None and not self._is_answering_earlier() and not self.transport.is_closing():
            self._send_refusal(*self._refusal)
            return
        if self._due is None:
            self._await_next()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def enforce_deadline(self, now: float) -> None:
        """Close the connection if its deadline has passed on the event loop's clock."""
        if self._is_stuck(now):
            self.transport.abort()
        elif self._due is None or now < self._due or self._refusal is not None or self.transport.is_closing():
            return
        elif self.flow.read_paused:  # this side stopped reading
            self._due = now + self._limits.body_seconds
        elif self.cycle is not None and self._is_being_answered():
            self.cycle.keep_alive = False
        elif self._in_head and not self._head_bytes:  # an idle client expects no response
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
        """Wait for the next head; the deadline is suspended while a request is processed."""
        if self._is_being_answered():
            self._in_head, self._head_bytes, self._due = True, 0, None
        else:
            self._await_head(self.timeout_keep_alive + self._limits.head_seconds)

    def _is_being_answered(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _is_stuck(self, now: float) -> bool:
        """Return whether the client has read nothing for `body_seconds`."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_until = unsent, now + self._limits.body_seconds
        return now >= self._unsent_until and unsent > 0

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words
        """Refuse bytes that are no request."""
        self._refuse("bad_request", "What was sent here is no HTTP request. Nothing behind it was read.")

    def _refuse(self, code: str, why: str) -> None:
        """Refuse the request that arrives, once those before it are answered, and read no more."""
        if self.pipeline and self.pipeline[0][0].more_body:  # it is the refused one
            self.pipeline.popleft()
        if self._is_answering_earlier():
            self._refusal, self._lingers = (code, why), True
        else:
            self._send_refusal(code, why)

    def _is_answering_earlier(self) -> bool:
        """Return whether a complete request waits for its response."""
        running = self._answered
        return bool(self.pipeline) or (running is not None and not running.more_body and not running.response_complete)

    def _send_refusal(self, code: str, why: str) -> None:
        """Send a problem response unless another is in progress, and close.

        A socket that is closed with unread data resets the connection, and the client may lose the response (RFC 9112,
        section 9.6). Therefore only the sending side is closed at first.
        """
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            metrics.count_problem(code)
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
            if len(self.connections) <= self._limits.connections:
                self._linger()
                return
        self.transport.close()

    def _linger(self) -> None:
        """Close the sending side, and discard what arrives until the client closes or its time is over."""
        self._lingers, self._due, self._refusal = True, None, None
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


async def sweep(state: ServerState) -> None:
    """Close connections past their deadlines, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = loop.time()
        for connection in list(state.connections):
            if isinstance(connection, BoundedConnection):
                connection.enforce_deadline(now)


def connections_within(wanted: int) -> int:
    """Raise the open-file limit for `wanted` connections; return the number that fits."""
    import resource  # noqa: PLC0415 - Windows has none, and no service, but imports this

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
