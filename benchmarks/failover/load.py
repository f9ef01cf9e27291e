"""Trainers at work during a failover, and what the ledger says afterwards."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import httpx2

from app.persistence.database import Database
from benchmarks.failover.tally import Tally, tally
from tests.reliability.clients import Trainer, open_budget
from tests.reliability.history import Asked, Journal

WIDE_TRAINERS: Final = 4
NARROW_TRAINERS: Final = 2
"""Trainers under a budget that is larger than they can spend, and under one that they exhaust after the failover."""

NARROW_EPSILON: Final = 3.0
THINK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 150.0


class TimedTrainer(Trainer):
    """A trainer that notes when it sent each request, and when it had an answer."""

    def __init__(self, http: httpx2.Client, journal: Journal, seed: int, waits: list[tuple[float, float]]) -> None:
        super().__init__(http, journal, seed)
        self._waits = waits

    def ask(self, body: dict[str, Any], key: str | None) -> Asked:
        """Ask for steps until there is an answer."""
        began = time.monotonic()
        asked = super().ask(body, key)
        self._waits.append((began, time.monotonic()))
        return asked


@dataclass
class Load:
    """Trainers of one round.

    Args:
        url: of the service.
        keys: of an admin and of a trainer.
        name: of the round's populations.
    """

    url: str
    keys: dict[str, str]
    name: str
    journal: Journal = field(default_factory=Journal)
    waits: list[tuple[float, float]] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def client(self, role: str) -> httpx2.Client:
        """Make a client with the key of a role."""
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=90, trust_env=False)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the trainers work during the block, and exhaust the narrow budget after it."""
        with self.client("admin") as http:
            self.budgets = [
                open_budget(http, f"{self.name}-wide", 100.0),
                open_budget(http, f"{self.name}-narrow", NARROW_EPSILON),
            ]
        trainers = WIDE_TRAINERS + NARROW_TRAINERS
        with ThreadPoolExecutor(trainers) as pool:
            working = [pool.submit(self._work, place) for place in range(trainers)]
            try:
                yield
            finally:
                self._stop.set()
            for worker in working:
                worker.result()

    def _work(self, place: int) -> None:
        narrow = place >= WIDE_TRAINERS
        with self.client("trainer") as http:
            trainer = TimedTrainer(http, self.journal, place, self.waits)
            trainer.register(self.budgets[narrow])
            while not self._stop.is_set() and trainer.step():
                time.sleep(THINK_SECONDS * (2 if narrow else 1))
            if narrow:
                trainer.exhaust()

    def await_answers(self, more: int, since: float | None = None) -> None:
        """Wait for the answers to so many requests that were sent from now on, or from a moment on."""
        begins = time.monotonic() if since is None else since
        until = time.monotonic() + PATIENCE_SECONDS
        while sum(began >= begins for began, _ in list(self.waits)) < more:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name}: the service does not answer")
            time.sleep(0.02)

    def pause(self, since: float) -> float:
        """Return the longest time from a moment on in which no request was answered, in seconds."""
        answers = [since, *sorted(ended for _, ended in self.waits if ended >= since)]
        return max((later - earlier for earlier, later in pairwise(answers)), default=0.0)

    def longest_wait(self, since: float) -> float:
        """Return the longest time that one trainer waited for an answer after a moment, in seconds."""
        return max(ended - began for began, ended in self.waits if ended >= since)

    def over_budget(self) -> int:
        """Count the round's budgets and populations that have spent more than their limit."""
        over = 0
        with self.client("admin") as http:
            for path in {*self.budgets, *(path.partition("/")[0] for path in self.budgets)}:
                kind = "budgets" if "/" in path else "populations"
                [account] = http.get(f"/v1/{kind}?path={path}").raise_for_status().json()["items"]
                over += account["epsilon"] > account["limit"]["epsilon"]
        return over

    def tally(self, database_url: str) -> Tally:
        """Count what was lost and doubled, by a database."""
        database = Database(database_url)
        try:
            return tally(self.journal, database)
        finally:
            database.dispose()
