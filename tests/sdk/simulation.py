"""The real service in this process, with a witness.

The witness notes what was truly released: steps whose `authorize` returned. Whatever happens, that much is charged.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx2
import pytest
from sqlalchemy import select

from app.accounting.events import canonical, event_from_dict
from app.ledger.accounts.account import Account
from app.ledger.runs.decisions import DecisionOutcome
from app.ledger.runs.reservations import Reservation
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, decisions, reservations, runs
from app.persistence.tables import runs as runs_table
from app.service.verification.verify import verify
from epsilon_ledger import AsyncLedgerClient, AsyncRun, Event, LedgerClient, Run, StepAuthorization, gaussian
from tests.api.trainer import within_limits
from tests.clocks import stand_at
from tests.conftest import Furnish, Ledger, new_database, open_ledger
from tests.sdk.wire import URL, Clock, Wire, with_policy

BUDGET = "mimic/icu-team"
LOUD, QUIET, HUSHED = gaussian(40.0), gaussian(60.0), gaussian(90.0)
TRIES = 3
HOUR = timedelta(hours=1)


AT_ONCE = 20
"""So few decisions that no steps of them are truncated."""


class Charges(NamedTuple):
    """How often each event was charged (asked for, reported or forfeited), and how often it may be yet."""

    charged: Counter[bytes]
    held: Counter[bytes]
    reservation: Reservation | None
    path: list[Account]


def charges_of(database: Database, run_id: str) -> Charges:
    charged: Counter[bytes] = Counter()
    with database.read(ALL_TENANTS) as tx:
        owner = str(tx.scalar(select(runs_table.c.organisation_id).where(runs_table.c.account_id == run_id)))
        run = runs.get(tx, owner, run_id)
        for first in range(0, run.decisions, AT_ONCE):
            for entry in decisions.at_positions(tx, owner, run_id, range(first, first + AT_ONCE)):
                if entry.outcome is not DecisionOutcome.REFUSED:
                    for step in entry.steps:
                        charged[canonical(step.event)] += step.count
        active = None if run.reservation_id is None else reservations.find(tx, owner, run.reservation_id)
        assert (active is None) is (run.reservation_id is None)
        path = [record.account for record in accounts.path_of(tx, owner, run_id)]
    held = {canonical(item.event): item.left for item in (active.items if active else ()) if item.left}
    return Charges(charged, Counter(held), active, path)


def covers(
    database: Database, run_id: str, released: Counter[bytes], *, exactly: bool = False, limits: bool = True
) -> bool:
    """Whether all that was released is charged or set aside, or exactly that charged; and no limit is passed."""
    charged, held, _, path = charges_of(database, run_id)
    said = f"{run_id} released {released}: {charged} charged, {held} held"
    assert released <= charged + held, said
    assert not exactly or (charged, held) == (released, Counter()), said
    assert not limits or within_limits(path)
    return True


@dataclass(eq=False, kw_only=True)
class LedgerWire(Wire):
    """Carries requests to the application of this process."""

    ledger: Ledger

    def client(self, role: str = "trainer", organisation: str = "hospital", **policy: Any) -> LedgerClient:  # noqa: ANN401 - of retries
        """Another process, as far as the ledger can tell; it repeats requests at once."""
        made = LedgerClient(URL, self.ledger.keys[organisation, role], transport=self)
        return with_policy(made, **{"max_attempts": TRIES, "sleep": lambda _: None} | policy)

    def async_client(self, **policy: Any) -> AsyncLedgerClient:  # noqa: ANN401 - of retries
        made = AsyncLedgerClient(URL, self.ledger.keys["hospital", "trainer"], transport=self)
        return with_policy(made, **{"max_attempts": TRIES, "async_sleep": lambda _: asyncio.sleep(0)} | policy)

    def arrive(self, request: httpx2.Request) -> httpx2.Response:
        response = self.ledger.http._transport.handle_request(request)
        assert response.status_code != httpx2.codes.INTERNAL_SERVER_ERROR, response.read()
        return response


def icu_team(ledger: Ledger) -> None:
    """Make a budget of epsilon 1."""
    ledger.population()
    ledger.budget()


@dataclass(eq=False, kw_only=True)
class Simulation(LedgerWire):
    """An organisation with a budget, and trainers on it."""

    clock: Clock
    released: dict[str, Counter[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, **terms: Any) -> Run:  # noqa: ANN401 - passed on
        """A new run in a process of its own; LOUD is its event."""
        return self.client().create_run("model", **({"budget": BUDGET, "event": LOUD} | terms))

    def authorize(self, run: Run, count: int = 1, event: Event | None = None) -> StepAuthorization:
        """Ask for steps, and release them."""
        doing = self.foretold(run, count, event)
        authorization = run.authorize(count, event=event)
        self.note(run, doing)
        return authorization

    def take(self, run: Run, steps: int) -> None:
        """Release steps one by one."""
        for _ in range(steps):
            self.authorize(run)

    async def authorize_async(self, run: AsyncRun, count: int = 1, event: Event | None = None) -> StepAuthorization:
        doing = self.foretold(run, count, event)
        authorization = await run.authorize(count, event=event)
        self.note(run, doing)
        return authorization

    def pass_time(self, run: Run, seconds: float) -> None:
        """Let time pass when what is on its way has arrived."""
        wait([run._inflight] if run._inflight is not None else [])
        self.clock.sleep(seconds)

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
        return charges_of(self.ledger.database, run.id).charged

    def covers(self, *, limits: bool = True) -> bool:
        """Whether all that was released is charged, or set aside; and no account is over its limit."""
        return all(covers(self.ledger.database, run, noted, limits=limits) for run, noted in self.released.items())

    def exact(self, *runs: Run | AsyncRun, limits: bool = True) -> bool:
        """Whether exactly what was released is charged for these runs, and nothing is set aside for them."""
        noted = {run.id: self.released.get(run.id, Counter[bytes]()) for run in runs}
        return all(covers(self.ledger.database, run, noted[run], exactly=True, limits=limits) for run in noted)

    def sound(self) -> bool:
        """Whether every balance follows from its charges."""
        found = verify(self.ledger.database)
        assert found.sound, found.problems
        return True


@contextmanager
def simulated(folder: Path, furnish: Furnish = icu_team) -> Iterator[Simulation]:
    """Copy a ledger with a budget, and open it; the service and its clients look at a clock that only a test moves."""
    clock = Clock()
    with (
        pytest.MonkeyPatch.context() as patch,
        new_database("sqlite", folder, furnish=furnish) as url,
        open_ledger(folder, url) as ledger,
    ):
        stand_at(patch, clock.now)
        patch.setattr("epsilon_ledger._run.run_base.time", SimpleNamespace(monotonic=lambda: clock.seconds))
        yield Simulation(ledger=ledger, clock=clock)
