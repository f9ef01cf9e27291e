"""A wire to a ledger that fails on demand, and a clock that tests move."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import httpx2

from epsilon_ledger import AsyncLedgerClient, LedgerClient

Client = TypeVar("Client", LedgerClient, AsyncLedgerClient)
Reply = httpx2.Response | BaseException

KEY = "key_test.s3cr3t-part"
URL = "http://ledger.test"


class Try(NamedTuple):
    """What a client hears, by default the ledger's reply, and how often its request arrives."""

    heard: Reply | None = None
    arrivals: int = 1


class Fault(Enum):
    """What befalls one try."""

    NONE = Try()
    NEVER_SENT = Try(httpx2.ConnectError("refused"), 0)  # as the client knows
    LOST = Try(httpx2.ReadTimeout("no answer"), 0)  # as the client cannot know
    UNHEARD = Try(httpx2.ReadTimeout("no answer"))
    TWICE = Try(arrivals=2)
    LATE = Try(httpx2.ReadTimeout("no answer"), 0)  # noqa: PIE796 - it arrives when the test says so: `deliver`
    BUSY = Try(httpx2.Response(503), 0)
    CRASHED = Try(httpx2.Response(500))  # without any content of the API's
    STRANGE = Try(httpx2.Response(200, text="<html>Welcome</html>"))  # a page of some proxy


@dataclass(eq=False, kw_only=True)
class Wire(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Carries requests to a ledger."""

    faults: deque[Fault | Try] = field(default_factory=deque)
    requests: list[httpx2.Request] = field(default_factory=list)
    late: list[httpx2.Request] = field(default_factory=list)
    before: Callable[[httpx2.Request], object] = lambda _: None
    after: Callable[[httpx2.Request], object] = lambda _: None
    awaited: Callable[[], object] = lambda: None

    def arrive(self, request: httpx2.Request) -> httpx2.Response:
        """Answer as the ledger."""
        raise NotImplementedError

    @property
    def asked(self) -> list[str]:
        """The last part of each path."""
        return [request.url.path.rsplit("/", 1)[-1] for request in self.requests]

    def fails(self, *faults: Fault | Try) -> None:
        """Let the next tries fail so."""
        self.faults.extend(faults)

    def answers(self, *replies: Reply) -> None:
        """Let the next requests be answered so, instead of by the ledger."""
        self.fails(*(Try(reply, 0) for reply in replies))

    def deliver(self) -> None:
        """Let everything arrive that was late; nobody hears the replies."""
        late, self.late = self.late, []
        for request in late:
            self.arrive(request)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.before(request)
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.LATE:
            self.late.append(request)
        heard, arrivals = fault.value if isinstance(fault, Fault) else fault
        replies = [self.arrive(request) for _ in range(arrivals)]
        reply: Reply = replies[-1] if heard is None else heard
        if isinstance(reply, BaseException):
            raise reply.with_traceback(None)
        self.after(request)
        return reply

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.awaited()
        await asyncio.sleep(0)
        response = self.handle_request(request)
        self.awaited()
        await asyncio.sleep(0)
        return response


def with_policy(client: Client, **policy: Any) -> Client:  # noqa: ANN401 - of the retry policy
    """Change how a client repeats requests."""
    client._transport._retry_policy = replace(client._transport._retry_policy, **policy)
    return client


@dataclass
class Clock:
    """Seconds that pass where a test says so, or somebody sleeps."""

    seconds: float = 0.0
    naps: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.seconds += seconds

    def now(self, tz: tzinfo = UTC) -> datetime:
        """The time of day, later by these seconds."""
        return datetime.now(tz) + timedelta(seconds=self.seconds)
