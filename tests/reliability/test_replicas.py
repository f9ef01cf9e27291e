"""Two replicas on one database: what one of them has answered binds the other one."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.conftest import LiveServer
from tests.polling import PATIENCE_SECONDS, PAUSE_SECONDS, await_true
from tests.reliability.clients import SAMPLED
from tests.reliability.conftest import LONG, ROUNDS

pytestmark = pytest.mark.postgresql

GOVERNED = 12 * ROUNDS if LONG else 1

RULE_SECONDS = 1.0
"""So long after the acknowledgement of its revocation, a key may still open."""

_numbers = itertools.count()


class Replicas:
    """Clients of two servers on one database."""

    def __init__(self, servers: list[LiveServer]) -> None:
        self.servers = servers
        self.clients = [server.client("admin") for server in servers]

    def made(self, path: str, **body: object) -> dict[str, Any]:
        reply = self.clients[0].post(path, json=body)
        assert reply.status_code == 201, reply.text
        made: dict[str, Any] = reply.json()
        return made

    def run(self) -> tuple[str, str]:
        """A run under a budget of its own; the paths of the budget's account and of the run's steps."""
        name = f"budget{next(_numbers)}"
        limit = {"epsilon": 1000.0, "delta": 1e-6}
        account = self.made("/v1/budgets", name=name, parent="mimic", limit=limit)["id"]
        run = self.made("/v1/runs", name="model", budget=f"mimic/{name}", event=SAMPLED)["id"]
        return f"/v1/accounts/{account}", f"/v1/runs/{run}/steps"


@pytest.fixture(scope="module")
def racing(replicas: list[LiveServer]) -> Iterator[Replicas]:
    made = Replicas(replicas)
    population = {"name": "mimic", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    made.made("/v1/populations", **population, limit={"epsilon": 10_000, "delta": 0.1})
    yield made
    for client in made.clients:
        client.close()


def _watched(racing: Replicas, steps: str, change: Callable[[], httpx2.Response]) -> list[httpx2.Response]:
    """The answers to steps that one replica is asked for after the other has answered a change."""
    answered, stop = threading.Event(), threading.Event()
    later: list[httpx2.Response] = []

    def ask() -> None:
        while not stop.is_set() and len(later) < 3:
            after = answered.is_set()
            reply = racing.clients[1].post(steps, json={})
            later.extend([reply] if after else [])

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            reply = change()
            assert reply.status_code in {200, 201}, reply.text
            answered.set()
            asking.result(timeout=60)
        finally:
            stop.set()
    return later


def _codes(replies: list[httpx2.Response]) -> set[tuple[int, str | None]]:
    return {(reply.status_code, reply.json().get("code")) for reply in replies}


def test_policy_binds_the_other_replica_from_its_answer_on(racing: Replicas) -> None:
    account, steps = racing.run()

    def put(policy: dict[str, object]) -> httpx2.Response:
        body = {"policy": policy, "reason": "The board has met."}
        return racing.clients[0].put(f"{account}/policy", json=body, headers={"If-Match": "*"})

    with racing.servers[0].client("privacy_officer") as approver:
        for _ in range(GOVERNED):
            assert _codes(_watched(racing, steps, lambda: put({"mechanisms": ["laplace"]}))) == {
                (403, "policy_violation")
            }
            proposal = put({}).json()["id"]  # looser than before: another person approves it
            path = f"/v1/proposals/{proposal}/approve"
            assert _codes(_watched(racing, steps, lambda path=path: approver.post(path, json={}))) == {(200, None)}  # type: ignore[misc]


def test_lowered_limit_binds_the_other_replica_from_its_answer_on(racing: Replicas) -> None:
    for _ in range(GOVERNED):
        account, steps = racing.run()
        spent = racing.clients[0].post(steps, json={}).json()["epsilon"]
        body: dict[str, object] = {"limit": {"epsilon": spent, "delta": 1e-6}, "reason": "The study is over."}

        def lower(path: str = f"{account}/limit", body: dict[str, object] = body) -> httpx2.Response:
            return racing.clients[0].post(path, json=body, headers={"If-Match": "*"})

        assert _codes(_watched(racing, steps, lower)) == {(403, "budget_exceeded")}


@pytest.mark.parametrize("pause", [PAUSE_SECONDS, RULE_SECONDS + 0.1], ids=["busy", "quiet"])
def test_revoked_key_is_refused_by_the_other_replica_within_a_second(racing: Replicas, pause: float) -> None:
    _, steps = racing.run()
    issued = racing.made("/v1/api-keys", role="trainer")
    headers = {"Authorization": f"Bearer {issued['key']}"}
    answers: list[tuple[float, int]] = []
    revoked_at: list[float] = []

    def late() -> list[int]:
        """The answers to what was sent when the key may open no more; read after the acknowledgement, and before."""
        return [status for sent_at, status in answers if revoked_at and sent_at > revoked_at[0] + RULE_SECONDS]

    def ask_on() -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        with httpx2.Client(base_url=racing.servers[1].url, headers=headers, trust_env=False, timeout=60) as http:
            while len(late()) < 3:
                assert time.monotonic() < until, "the key was never revoked"
                sent_at = time.monotonic()
                answers.append((sent_at, http.post(steps, json={}).status_code))
                time.sleep(pause)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        while not answers:
            assert not asking.done()
            time.sleep(PAUSE_SECONDS)
        assert racing.clients[0].post(f"/v1/api-keys/{issued['id']}/revoke").status_code == 200
        revoked_at.append(time.monotonic())
        asking.result()
    assert answers[0][1] == 200
    assert set(late()) == {401}


def test_last_use_of_a_key_is_shown_by_the_other_replica(racing: Replicas) -> None:
    issued = racing.made("/v1/api-keys", role="trainer")
    before = datetime.now(UTC)
    reply = racing.clients[1].get("/v1/runs", headers={"Authorization": f"Bearer {issued['key']}"})
    assert reply.status_code == 200
    key = f"/v1/api-keys/{issued['id']}"
    await_true(lambda: racing.clients[0].get(key).json()["last_used_at"] is not None)
    used = datetime.fromisoformat(racing.clients[0].get(key).json()["last_used_at"])
    assert before <= used <= datetime.now(UTC)
