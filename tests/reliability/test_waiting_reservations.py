"""Reservations that wait are granted once and in turn, by a service that dies, and by several replicas."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx2
import pytest

from tests.conftest import LiveServer
from tests.open_databases import is_sound
from tests.polling import await_true
from tests.reliability.clients import SAMPLED, open_budget, patiently
from tests.reliability.conftest import LONG, ROUNDS, Service

PLANS, KILLS = (30, 2) if LONG else (4, 1)
STEPS = 40
"""Of each reservation."""

POLL_SECONDS = 0.3
_names = (f"people{number}" for number in itertools.count())


class Waiters:
    """Reservations of one budget, asked for while another holds all of it, and the trainers that wait for them.

    Args:
        servers: that are asked in turns.
        together: how many of the reservations fit into the budget at once.
    """

    def __init__(self, servers: Sequence[LiveServer], together: int = 3) -> None:
        self.servers = servers
        self.plans: list[tuple[str, str]] = []
        """Reservation and run of each, in the order in which they were asked for."""
        with servers[0].client("admin") as http:
            self.budget = open_budget(http, next(_names), epsilon=2.0)
            probe = {"name": "probe", "budget": self.budget, "event": SAMPLED}
            most = http.post("/v1/runs", json=probe).json()["steps_remaining"]
            assert most >= together * STEPS
            full = self._register(0, "full", most - (most - together * STEPS) % STEPS, waits=False)["reservation"]
            for place in range(PLANS):
                made = self._register(place, f"waiter{place}", STEPS, waits=True)
                assert made["status"] == "waiting", made
                self.plans.append((made["waiting_reservation"], made["id"]))
            http.post(f"/v1/reservations/{full}/void").raise_for_status()

    def _register(self, place: int, name: str, count: int, *, waits: bool) -> dict[str, Any]:
        """Register a run with a reservation, once, whatever happens to the replies."""
        until = {"wait_until": (datetime.now(UTC) + timedelta(days=1)).isoformat()} if waits else {}
        body = {"name": name, "budget": self.budget, "event": SAMPLED, "reserve": [{"event": SAMPLED, "count": count}]}
        headers = {"Idempotency-Key": f"{self.budget}/{name}"}
        with self.servers[place % len(self.servers)].client("trainer") as http:
            reply = patiently(lambda: http.post("/v1/runs", json=body | until, headers=headers))
        made: dict[str, Any] = reply.raise_for_status().json()
        return made

    def _train(self, place: int) -> None:
        """Wait for a reservation, claim it, take a part of its steps, and return the rest."""
        plan, run = self.plans[place]
        with self.servers[place % len(self.servers)].client("trainer") as http:

            def status() -> str:
                return str(patiently(lambda: http.get(f"/v1/reservations/{plan}")).json()["status"])

            await_true(lambda: status() != "waiting", pause=POLL_SECONDS)
            assert status() == "active"
            for path, body in (
                (f"reservations/{plan}/claim", None),
                (f"runs/{run}/steps", {"count": 3, "first_step": 0}),
                (f"reservations/{plan}/commit", {"steps_executed": 3}),
            ):
                reply = patiently(lambda path=path, body=body: http.post(f"/v1/{path}", json=body))  # type: ignore[misc]
                assert reply.status_code == httpx2.codes.OK, reply.text

    def train(self, meanwhile: Callable[[], object] = bool) -> None:
        """Let all trainers wait, do something meanwhile, and prove that grants are in the order of arrival."""
        with ThreadPoolExecutor(PLANS) as pool:
            training = [pool.submit(self._train, place) for place in range(PLANS)]
            meanwhile()
            for each in training:
                each.result()
        with self.servers[0].client("admin") as http:
            granted = http.get("/v1/audit-events?order=oldest&limit=200&action=reservation.granted").json()["items"]
        own = [plan for plan, _ in self.plans]
        assert [each["subject"] for each in granted if each["subject"] in own] == own
        is_sound(self.servers[0].database_url)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_waiting_reservations_are_granted_once_and_in_turn_when_the_server_is_killed(
    service: Service, round_: int
) -> None:
    """Reservations that fit when nothing serves are granted by the next process, though nothing changed since."""
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    waiters = Waiters([service.server])
    service.restart()

    def kill() -> None:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 1.0))
            service.restart()

    waiters.train(kill)


@pytest.mark.postgresql
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_waiting_reservations_are_granted_once_and_in_turn_by_replicas(replicas: list[LiveServer], round_: int) -> None:
    """Another organisation goes on with its steps meanwhile."""
    replicas[0].key("admin", f"other{round_}")
    with replicas[1].client("admin", f"other{round_}") as others, ThreadPoolExecutor(1) as pool:
        body = {"name": "run", "budget": open_budget(others, "p", 20.0), "event": SAMPLED}
        steps = f"/v1/runs/{others.post('/v1/runs', json=body).json()['id']}/steps"
        done = threading.Event()

        def step() -> set[int]:
            taken = set()
            while not done.is_set():
                taken.add(others.post(steps, json={}).status_code)
                time.sleep(0.2)
            return taken

        waiters = Waiters(replicas)
        stepping = pool.submit(step)
        try:
            waiters.train()
        finally:
            done.set()
        assert stepping.result() == {200}
