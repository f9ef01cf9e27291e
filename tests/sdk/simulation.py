"""The real service in this process, on a wire that fails on demand, with a clock that tests move and a witness.

The witness notes what was truly released: steps whose `authorize` returned. Whatever happens, that much is charged.
"""

import asyncio
import itertools
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from app.accounting.events import canonical, event_from_dict
from app.ledger.permissions import Role
from app.service.auth import authentication
from app.service.governance.api_keys import create_key
from app.service.verification import verify
from epsilon_ledger import AsyncLedgerClient, AsyncRun, Event, LedgerClient, Run, StepAuthorization, gaussian
from tests.api import trainer
from tests.clocks import stand_at
from tests.conftest import Ledger
from tests.sdk.charges import charged_and_held, within_limits

URL = "http://ledger.test"
BUDGET = "mimic/icu-team"
LOUD: Event = gaussian(40.0)
QUIET: Event = gaussian(60.0)
HUSHED: Event = gaussian(90.0)
TRIES = 3


class Fault(StrEnum):
    """What befalls one try."""

    NONE = "none"
    NEVER_SENT = "never sent"
    """It surely did not arrive, and the client knows."""
    LOST = "lost"
    """It did not arrive, and the client cannot know."""
    UNHEARD = "unheard"
    """It arrives, and the reply does not."""
    TWICE = "twice"
    """It arrives twice, and the second reply is heard."""
    LATE = "late"
    """It arrives when the test says so: `deliver`."""
    BUSY = "busy"
    """The ledger says 503."""
    CRASHED = "crashed"
    """It arrives, and the reply is a 500 without any content of the API's."""
    STRANGE = "strange"
    """It arrives, and the reply is a page of some proxy."""


IN_DOUBT = [Fault.LOST, Fault.UNHEARD, Fault.LATE, Fault.BUSY]
"""After these a request is tried again."""


class Wire(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Carries requests to the application of this process.

    Args:
        ledger: the application.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._application = httpx2.ASGITransport(ledger.http.app, raise_app_exceptions=False)
        self.faults: deque[Fault] = deque()
        self.requests: list[httpx2.Request] = []
        self.late: list[httpx2.Request] = []
        self.before: Callable[[httpx2.Request], None] = lambda _: None
        self.after: Callable[[httpx2.Request], None] = lambda _: None
        self.awaited: Callable[[], None] = lambda: None

    @property
    def asked(self) -> list[str]:
        """The last part of each path."""
        return [request.url.path.rsplit("/", 1)[-1] for request in self.requests]

    def fails(self, *faults: Fault) -> None:
        """Let the next tries fail so."""
        self.faults.extend(faults)

    def deliver(self) -> list[httpx2.Response]:
        """Let everything arrive that was late; nobody hears the replies."""
        late, self.late = self.late, []
        return [self._arrive(request) for request in late]

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.before(request)
        response = self._befall(request, self.faults.popleft() if self.faults else Fault.NONE)
        self.after(request)
        return response

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.awaited()
        await asyncio.sleep(0)
        response = self.handle_request(request)
        self.awaited()
        await asyncio.sleep(0)
        return response

    def _befall(self, request: httpx2.Request, fault: Fault) -> httpx2.Response:
        if fault is Fault.NEVER_SENT:
            raise httpx2.ConnectError("refused", request=request)
        if fault is Fault.BUSY:
            return httpx2.Response(503)
        if fault is Fault.LATE:
            self.late.append(request)
        if fault in {Fault.LOST, Fault.LATE}:
            raise httpx2.ReadTimeout("no answer", request=request)
        response = self._arrive(request)
        if fault is Fault.UNHEARD:
            raise httpx2.ReadTimeout("no answer", request=request)
        if fault is Fault.TWICE:
            return self._arrive(request)
        if fault is Fault.CRASHED:
            return httpx2.Response(500)
        if fault is Fault.STRANGE:
            return httpx2.Response(200, text="<html>Welcome</html>")
        return response

    def _arrive(self, request: httpx2.Request) -> httpx2.Response:
        portal = self.ledger.http.portal
        response = portal.call(self._answered, request)
        assert response.status_code != httpx2.codes.INTERNAL_SERVER_ERROR, response.text
        return httpx2.Response(response.status_code, content=response.content, headers=response.headers)

    async def _answered(self, request: httpx2.Request) -> httpx2.Response:
        # As the test client does, which asks its loop eight times for each request.
        response = await self._application.handle_async_request(request)
        await response.aread()
        return response


@dataclass
class Clock:
    """Seconds that pass where a test says so, for the service and its clients alike."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def reset(self) -> None:
        self.seconds = 0.0
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        trainer.Clock.ahead = timedelta(seconds=self.seconds)


_numbers = itertools.count()
_ROLES = (Role.ADMIN, Role.TRAINER, Role.VIEWER)


@dataclass
class Simulation:
    """An organisation with a budget of epsilon 1, and who trains on it."""

    ledger: Ledger
    owner: str
    wire: Wire
    clock: Clock
    released: dict[str, Counter[bytes]] = field(default_factory=dict)
    clients: list[LedgerClient] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, role: str = "trainer") -> LedgerClient:
        """Another process, as far as the ledger can tell."""
        made = LedgerClient(URL, self.key(role), transport=self.wire, max_attempts=TRIES)
        made._transport._retry_policy = replace(made._transport._retry_policy, sleep=lambda _: None)
        self.clients.append(made)
        return made

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def async_client(self) -> AsyncLedgerClient:
        made = AsyncLedgerClient(URL, self.key(), transport=self.wire, max_attempts=TRIES)
        made._transport._retry_policy = replace(made._transport._retry_policy, async_sleep=lambda _: asyncio.sleep(0))
        return made

    def key(self, role: str = "trainer") -> str:
        return self.ledger.keys["hospital", role]

    def run(self, **terms: Any) -> Run:  # noqa: ANN401 - passed on
        """A new run in a process of its own; LOUD is its event."""
        return self.client().create_run("model", **({"budget": BUDGET, "event": LOUD} | terms))

    def authorize(self, run: Run, count: int = 1, event: Event | None = None) -> StepAuthorization:
        """Ask for steps, and release them."""
        doing = self.foretold(run, count, event)
        authorization = run.authorize(count, event=event)
        self.note(run, doing)
        return authorization

    async def authorize_async(self, run: AsyncRun, count: int = 1, event: Event | None = None) -> StepAuthorization:
        """The same, awaited."""
        doing = self.foretold(run, count, event)
        authorization = await run.authorize(count, event=event)
        self.note(run, doing)
        return authorization

    def pass_time(self, run: Run, seconds: float) -> None:
        """Let time pass when what is on its way has arrived."""
        wait([run._inflight] if run._inflight is not None else [])
        self.clock.wait(seconds)

    def foretold(self, run: Run | AsyncRun, count: int, event: Event | None) -> list[Event]:
        """What the trainer does in its next steps, by its own count."""
        schedule = run._protocol.grants.prefetch.schedule
        if event is None and schedule is not None:
            taken = run.step
            assert taken is not None
            return [schedule(taken + further) for further in range(count)]
        event = event or run.state.event
        assert event is not None
        return [event] * count

    def note(self, run: Run | AsyncRun, events: Sequence[Event]) -> None:
        """Write down what is released."""
        with self._lock:
            noted = self.released.setdefault(run.id, Counter())
            noted.update(canonical(event_from_dict(json.loads(json.dumps(event)))) for event in events)

    def charged(self, run: Run | AsyncRun) -> Counter[bytes]:
        """What the ledger has charged for a run, by event."""
        return charged_and_held(self.ledger.database, run.id)[0]

    def covers(self, *, limits: bool = True) -> bool:
        """Whether all that was released is charged, or set aside; and no account is over its limit."""
        for run_id, released in self.released.items():
            charged, held = charged_and_held(self.ledger.database, run_id)
            assert released <= charged + held, f"{run_id} released {released}: {charged} charged, {held} held"
            assert not limits or within_limits(self.ledger.database, run_id)
        return True

    def exact(self, *runs: Run | AsyncRun) -> bool:
        """Whether exactly what was released is charged for these runs, and nothing is set aside for them."""
        for run in runs:
            charged, held = charged_and_held(self.ledger.database, run.id)
            released = self.released.get(run.id, Counter())
            assert (charged, held) == (released, Counter()), f"{run.id} released {released}: {charged} charged"
        return self.covers() and self.sound()

    def sound(self) -> bool:
        """Whether every balance follows from its charges."""
        found = verify(self.ledger.database, self.owner)
        assert found.sound, found.problems
        return True


def new_world(ledger: Ledger, clock: Clock, epsilon: float = 1.0) -> Simulation:
    """A new organisation with a population and a budget."""
    name, now = f"organisation{next(_numbers)}", datetime.now(UTC)
    owner = authentication.create_organisation(ledger.database, name, now)
    keys = {("hospital", str(role)): create_key(ledger.database, name, role, now).key for role in _ROLES}
    own = replace(ledger, keys=keys)
    own.population(limit={"epsilon": 3.0 * epsilon, "delta": 1e-5})
    own.budget(limit={"epsilon": epsilon, "delta": 1e-5})
    return Simulation(own, owner, Wire(own), clock)


@contextmanager
def clock_of_all() -> Iterator[Clock]:
    """Let the service and its clients look at a clock that only a test moves."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Clock, "ahead", timedelta())
        stand_at(patch, lambda: trainer.Clock.now(UTC))
        patch.setattr("epsilon_ledger._run.run_base.time", SimpleNamespace(monotonic=clock))
        yield clock
