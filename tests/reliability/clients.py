"""Clients that ask for steps and repeat every request until it is answered."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import httpx2

from tests.polling import PATIENCE_SECONDS, PAUSE_SECONDS
from tests.reliability.history import Asked, Journal

NOISE = {"type": "gaussian", "noise_multiplier": 2.0}
SAMPLED = {"type": "poisson_sampled", "sampling_probability": 0.05, "event": NOISE}
COUNTED = {"type": "poisson_sampled", "sampling_probability": 0.05, "event": NOISE | {"noise_multiplier": 3.0}}


def patiently(send: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Repeat a request until it is answered with something other than 503, or a proxy's 502 and 504."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        with suppress(httpx2.TransportError):
            reply = send()
            if reply.status_code not in {502, 503, 504}:
                return reply
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the service did not come back")


class Trainer:
    """A client that takes steps of one run; what it sends and gets is in the journal.

    Args:
        http: where the service is, with a key of a trainer.
        journal: shared with others.
        seed: of what it asks.
    """

    def __init__(self, http: httpx2.Client, journal: Journal, seed: int) -> None:
        self.http = http
        self.journal = journal
        self.chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.name = f"trainer-{seed}"
        self.run = ""
        self.next_step = 0
        self._sent = 0

    def register(self, budget: str) -> Self:
        """Register a run, once, whatever happens to the replies."""
        body = {"name": self.name, "budget": budget, "event": SAMPLED}
        headers = {"Idempotency-Key": f"{budget}/{self.name}"}
        reply = patiently(lambda: self.http.post("/v1/runs", json=body, headers=headers))
        assert reply.status_code == httpx2.codes.CREATED, reply.text
        self.run = str(reply.json()["id"])
        self.journal.events[self.run] = SAMPLED
        return self

    def ask(self, body: dict[str, Any], key: str | None) -> Asked:
        """Ask for steps until there is an answer."""
        asked = self.journal.ask(self.run, body, key)
        self.again(asked)
        if asked.answers[0].status_code == httpx2.codes.OK:
            self.next_step = asked.answers[0].json()["next_step"]
        return asked

    def again(self, asked: Asked) -> None:
        """Ask something that was answered before."""
        asked.answers.append(patiently(lambda: self.once(asked.body, asked.key)))

    def once(self, body: dict[str, Any], key: str | None) -> httpx2.Response:
        """Ask for steps a single time."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.http.post(f"/v1/runs/{self.run}/steps", json=body, headers=headers)

    def step(self, *, numbered: bool = True) -> bool:
        """Take a few steps, known by their number, by a key, or by both; return whether they were admitted.

        Args:
            numbered: False where others take steps of the same run, so that only a key can be meant.
        """
        count = self.chance.randint(1, 3)
        listed = {"events": [{"event": SAMPLED, "count": 2}, {"event": COUNTED, "count": count}]}
        body: dict[str, Any] = self.chance.choice([listed, {"event": COUNTED, "count": count}, {"count": count}])
        if numbered and self.chance.random() < 0.7:
            body["first_step"] = self.next_step
        key = self._new_key() if "first_step" not in body or self.chance.random() < 0.5 else None
        asked = self.ask(body, key)
        if asked.answers[0].status_code != httpx2.codes.OK:
            assert asked.answers[0].json()["code"] == "budget_exceeded", asked.answers[0].text
            return False
        if self.chance.random() < 0.1:
            self.again(asked)
        return True

    def exhaust(self, stop: threading.Event | None = None, *, numbered: bool = True) -> None:
        """Take steps until not even one more is admitted, or until somebody says stop."""
        while stop is None or not stop.is_set():
            if self.step(numbered=numbered):
                continue
            body = {"first_step": self.next_step} if numbered else {}
            if self.ask(body, self._new_key()).answers[0].status_code != httpx2.codes.OK:
                return

    def _new_key(self) -> str:
        self._sent += 1
        return f"{self.run}/{self.name}/{self._sent}"


def open_budget(http: httpx2.Client, name: str, epsilon: float) -> str:
    """A population and, under it, a narrower budget; returns the budget's path."""
    population = {"name": name, "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    wide, narrow = ({"limit": {"epsilon": each, "delta": 1e-5}} for each in (epsilon * 4, epsilon))
    http.post("/v1/populations", json=population | wide).raise_for_status()
    http.post("/v1/budgets", json={"name": "team", "parent": name} | narrow).raise_for_status()
    return f"{name}/team"
