"""Trainers whose plans wait, on a service that may die or have several replicas."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from app.persistence.database import Database
from app.service.verification import verify
from tests.conftest import LiveServer
from tests.reliability.clients import PATIENCE_SECONDS, SAMPLED, patiently

POLL_SECONDS = 0.1
STEPS = 40
"""Of each plan."""


@dataclass
class Waiters:
    """Plans of one budget, asked for while another holds all of it, and the trainers that wait for them.

    Args:
        servers: that are asked in turns.
        budget: path of a budget of its own.
        plans: reservation and run of each, in the order in which they were asked for.
        seen: statuses that each plan was seen to have, by reservation.
    """

    servers: Sequence[LiveServer]
    budget: str
    plans: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[str, list[str]] = field(default_factory=dict)

    def register(self, http: httpx2.Client, name: str, count: int, *, waits: bool) -> dict[str, Any]:
        """Register a run with a plan, once, whatever happens to the replies."""
        until = {"wait_until": (datetime.now(UTC) + timedelta(days=1)).isoformat()} if waits else {}
        body = {"name": name, "budget": self.budget, "event": SAMPLED, "plan": [{"event": SAMPLED, "count": count}]}
        headers = {"Idempotency-Key": f"{self.budget}/{name}"}
        reply = patiently(lambda: http.post("/v1/runs", json=body | until, headers=headers))
        assert reply.status_code == httpx2.codes.CREATED, reply.text
        made: dict[str, Any] = reply.json()
        return made

    def fill(self, http: httpx2.Client, together: int) -> str:
        """Hold all of the budget, in which so many plans fit; return the reservation."""
        room = http.post("/v1/runs", json={"name": "probe", "budget": self.budget, "event": SAMPLED}).json()
        most = room["steps_remaining"]
        assert most >= together * STEPS
        return str(self.register(http, "full", most - (most - together * STEPS) % STEPS, waits=False)["reservation"])

    def queue(self, many: int) -> None:
        """Ask for plans, at the servers in turns; all of them wait."""
        for place in range(many):
            with self.servers[place % len(self.servers)].client("trainer") as http:
                made = self.register(http, f"waiter{place}", STEPS, waits=True)
            assert made["status"] == "waiting", made
            self.plans.append((made["waiting_reservation"], made["id"]))

    def train(self, place: int) -> None:
        """Wait for a plan, claim it, take a part of its steps, and return the rest."""
        plan, run = self.plans[place]
        seen = self.seen.setdefault(plan, [])
        with self.servers[place % len(self.servers)].client("trainer") as http:
            until = time.monotonic() + PATIENCE_SECONDS
            while not seen or seen[-1] == "waiting":
                assert time.monotonic() < until, seen
                seen.append(patiently(lambda: http.get(f"/v1/reservations/{plan}")).json()["status"])
                time.sleep(POLL_SECONDS)
            assert seen[-1] == "active", seen
            for path, body in (
                (f"reservations/{plan}/renew", None),
                (f"runs/{run}/steps", {"count": 3, "first_step": 0}),
                (f"reservations/{plan}/commit", {"steps_executed": 3}),
            ):
                reply = patiently(lambda path=path, body=body: http.post(f"/v1/{path}", json=body))  # type: ignore[misc]
                assert reply.status_code == httpx2.codes.OK, reply.text

    def check(self, database_url: str) -> None:
        """Prove that each plan was granted once, in the order of arrival, and the ledger."""
        with self.servers[0].client("admin") as http:
            granted = http.get("/v1/audit-events?order=oldest&limit=200&action=reservation.granted").json()["items"]
        own = {plan for plan, _ in self.plans}
        assert [each["subject"] for each in granted if each["subject"] in own] == [plan for plan, _ in self.plans]
        database = Database(database_url)
        try:
            assert verify(database).problems == ()
        finally:
            database.dispose()


def training(waiters: Waiters, meanwhile: Callable[[], None]) -> None:
    """Let all trainers wait, do something meanwhile, and wait for them."""
    failures: list[BaseException] = []

    def train(place: int) -> None:
        try:
            waiters.train(place)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=train, args=(place,)) for place in range(len(waiters.plans))]
    for thread in threads:
        thread.start()
    meanwhile()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
