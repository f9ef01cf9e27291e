"""Two replicas on one database: a key that one of them revokes opens nothing at the other from a second later on."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.conftest import LiveServer
from tests.reliability.clients import PATIENCE_SECONDS, PAUSE_SECONDS, SAMPLED, open_budget
from tests.reliability.conftest import ROUNDS, replicated

RULE_SECONDS = 1.0
"""So long after its revocation was acknowledged, a key may still open."""

AFTERWARDS = 20
"""How many requests are sent when it may not any more."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[list[LiveServer]]:
    with replicated(tmp_path_factory, module_database_url) as started:
        yield started


@pytest.fixture(scope="module")
def run(servers: list[LiveServer]) -> str:
    """A run that can take as many steps as anybody asks for."""
    with servers[0].client("admin") as http:
        budget = open_budget(http, "mimic", 1000.0)
        made = http.post("/v1/runs", json={"name": "model", "budget": budget, "event": SAMPLED})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])


def _issued(servers: list[LiveServer]) -> dict[str, Any]:
    with servers[0].client("admin") as http:
        reply = http.post("/v1/api-keys", json={"role": "trainer"})
        assert reply.status_code == 201, reply.text
        issued: dict[str, Any] = reply.json()
        return issued


def _client(server: LiveServer, issued: dict[str, Any]) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {issued['key']}"}
    return httpx2.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False)


@dataclass
class Asking:
    """Requests for steps with one key at one replica, and what became of each.

    Args:
        http: has the key.
        run: takes the steps.
        answers: when each was about to be sent, by the monotonic clock, and its answer's status.
        revoked_at: when the revocation had been acknowledged.
    """

    http: httpx2.Client
    run: str
    answers: list[tuple[float, int]] = field(default_factory=list)
    revoked_at: float | None = None
    admitted: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> int:
        # Read before it is sent, as the acknowledgement's after it came: on a slow machine, too, a request that counts
        # as late is late.
        sent_at = time.monotonic()
        status = self.http.post(f"/v1/runs/{self.run}/steps", json={}).status_code
        self.answers.append((sent_at, status))
        if status == httpx2.codes.OK:
            self.admitted.set()
        return status

    def ask_on(self) -> None:
        """Ask until enough requests were sent too late."""
        until = time.monotonic() + PATIENCE_SECONDS
        while len(self.late()) < AFTERWARDS:
            assert time.monotonic() < until, "the key was never revoked"
            self.ask()
            time.sleep(PAUSE_SECONDS)

    def late(self) -> list[int]:
        """The answers to what was sent when the key may open no more."""
        revoked_at = self.revoked_at
        return [] if revoked_at is None else [code for at, code in self.answers if at > revoked_at + RULE_SECONDS]


def _revoke(server: LiveServer, issued: dict[str, Any]) -> float:
    """Revoke a key; returns when that had been acknowledged."""
    with server.client("admin") as http:
        reply = http.post(f"/v1/api-keys/{issued['id']}/revoke")
        acknowledged_at = time.monotonic()
    assert reply.status_code == 200, reply.text
    assert reply.json()["revoked_at"] is not None
    return acknowledged_at


@pytest.mark.parametrize("round_number", range(2 * ROUNDS))
def test_a_revoked_key_that_is_busy_is_refused_by_the_other_replica_within_a_second(
    servers: list[LiveServer], run: str, round_number: int
) -> None:
    here, there = servers[round_number % 2], servers[1 - round_number % 2]
    issued = _issued(servers)
    with _client(there, issued) as http, ThreadPoolExecutor(1) as pool:
        asking = Asking(http, run)
        busy = pool.submit(asking.ask_on)
        assert asking.admitted.wait(PATIENCE_SECONDS)
        asking.revoked_at = _revoke(here, issued)
        busy.result()
    assert 200 not in asking.late()
    assert 401 in asking.late()


def test_a_revoked_key_that_was_quiet_meanwhile_is_refused_by_both(servers: list[LiveServer], run: str) -> None:
    issued = _issued(servers)
    with _client(servers[0], issued) as one, _client(servers[1], issued) as other:
        asked = [Asking(one, run), Asking(other, run)]
        assert [asking.ask() for asking in asked] == [200, 200]
        revoked_at = _revoke(servers[0], issued)
        while time.monotonic() <= revoked_at + RULE_SECONDS:
            time.sleep(PAUSE_SECONDS)
        assert 200 not in [asking.ask() for asking in asked]


def test_the_last_use_of_a_key_is_shown_by_the_other_replica(servers: list[LiveServer], run: str) -> None:
    issued = _issued(servers)
    with servers[0].client("admin") as officer, _client(servers[1], issued) as http:

        def last_use() -> datetime | None:
            shown = officer.get(f"/v1/api-keys/{issued['id']}").json()["last_used_at"]
            return None if shown is None else datetime.fromisoformat(shown)

        assert last_use() is None
        before = datetime.now(UTC)
        assert http.get(f"/v1/runs/{run}").status_code == 200
        until = time.monotonic() + PATIENCE_SECONDS
        while (used := last_use()) is None:
            assert time.monotonic() < until, "no use was written"
            time.sleep(PAUSE_SECONDS)
        assert before <= used <= datetime.now(UTC)
