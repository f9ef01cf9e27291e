"""Plans that wait in a simulation: the pauses of a client are when the ledger looks at them, and a test acts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from app.persistence.database import Database
from app.service.scheduling.grants import expire_waiting, grant_waiting
from epsilon_ledger import AsyncLedgerClient, EventCount, LedgerClient, Run
from tests.sdk.simulation import LOUD, Simulation

HOUR = timedelta(hours=1)
LEASE = 7 * 24 * 3600
"""Of the plan that holds the budget, in seconds."""


def plan(count: int) -> list[EventCount]:
    """A plan of LOUD steps."""
    return [EventCount(event=LOUD, count=count)]


@dataclass
class Waits:
    """An organisation whose budget is held but for 10 steps by the plan of another run.

    `acts` are called at the pauses of these numbers, from 1, before the ledger looks at the plans.
    """

    simulation: Simulation
    acts: dict[int, Callable[[], object]] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)
    free: int = 10
    holder: Run = field(init=False)

    def __post_init__(self) -> None:
        """Hold the budget."""
        most = self.simulation.run().state.steps_remaining
        assert most is not None
        self.most = most
        self.holder = self.simulation.run(plan=plan(most - self.free), lease_seconds=LEASE)

    @property
    def database(self) -> Database:
        return self.simulation.ledger.database

    def give_back(self) -> None:
        """Let the other run end without having used its plan."""
        self.holder.complete(0)

    def client(self) -> LedgerClient:
        made = self.simulation.client()
        policy = made._transport._retry_policy
        made._transport._retry_policy = replace(policy, sleep=self._pause, jitter=lambda _low, high: high)
        return made

    def async_client(self) -> AsyncLedgerClient:
        made = self.simulation.async_client()
        policy = made._transport._retry_policy

        async def pause(seconds: float) -> None:
            await asyncio.sleep(0)
            self._pause(seconds)

        made._transport._retry_policy = replace(policy, async_sleep=pause, jitter=lambda _low, high: high)
        return made

    def look(self) -> None:
        """Let the service's maintenance look at the plans."""
        grant_waiting(self.database)
        expire_waiting(self.database)

    def left(self) -> int | None:
        """How many steps the budget admits now."""
        return self.simulation.run().state.steps_remaining

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        assert len(self.pauses) < 500, "it waits for ever"
        self.simulation.clock.wait(seconds)
        self.acts.get(len(self.pauses), lambda: None)()
        self.look()
