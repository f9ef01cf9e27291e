"""Runs of a ledger in memory, for the adapters, and a budget of the service."""

import uuid
from typing import Any

from epsilon_ledger import Event, LedgerClient, Limit, Run
from epsilon_ledger._run.grants import PrefetchConfig
from tests.sdk.fake_ledger import RUN, RUN_ID, FakeLedger
from tests.sdk.wire import KEY, URL

N, BATCH = 64, 8
STEPS_PER_EPOCH = N // BATCH


class FakeRun(Run):
    """A run of a ledger in memory, which answers at the first try or not at all."""

    def __init__(self, capacity: int = 1_000, **members: object) -> None:
        members = {"event": None, "population_size": N} | members
        self.ledger = FakeLedger(capacity=capacity, run=RUN | members)
        opened = LedgerClient(URL, KEY, max_attempts=1, transport=self.ledger).get_run(RUN_ID)
        super().__init__(opened._transport, opened.state, PrefetchConfig(), step=0)
        self.ledger.requests.clear()

    @property
    def asked(self) -> list[Event]:
        """The events that were charged."""
        return self.ledger.events

    def hear(self, **members: object) -> None:
        """Let the ledger say this of the run from now on."""
        self.ledger.run |= members
        self.refresh()


def open_budget(admin: LedgerClient, epsilon: float, relation: Any = "add_or_remove_one", **terms: Any) -> str:  # noqa: ANN401 - passed on
    """A budget of its own: its path."""
    name, limit = f"digits-{uuid.uuid4().hex[:8]}", Limit(100.0, 1e-5)
    admin.create_population(name, privacy_unit="record", neighboring_relation=relation, size=N, limit=limit)
    return admin.create_budget("team", parent=name, limit=Limit(epsilon, 1e-5), **terms).path
