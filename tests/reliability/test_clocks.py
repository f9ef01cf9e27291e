"""Replicas whose clocks are an hour fast and slow are right about leases, windows and keys: the database's counts."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import httpx2
import pytest

from tests.conftest import LiveServer, need_postgresql, new_database
from tests.faketime import wrong_by
from tests.reliability.clients import NOISE, PATIENCE_SECONDS
from tests.reliability.conftest import LONG, ROUNDS, started

pytestmark = pytest.mark.postgresql

HOUR = 3600
MANY = 20 * ROUNDS if LONG else 2
"""Leases, windows and keys; 1,000 in `make soak`."""

SOON_SECONDS = 12.0 if LONG else 4.0
"""After which a window closes and a key expires; each of them is made a moment before."""

CLOCKS = {"fast": HOUR, "slow": -HOUR}
FAINT = NOISE | {"noise_multiplier": 1000.0}


@dataclass
class Replicas:
    """Two servers on one database, by their clocks."""

    servers: dict[str, LiveServer]

    def ask(self, replica: str, method: str, path: str, body: object = None, role: str = "admin") -> httpx2.Response:
        """Ask a replica."""
        with self.servers[replica].client(role) as http:
            return http.request(method, path, json=body)

    def made(self, path: str, body: object, role: str = "admin", replica: str = "slow") -> dict[str, Any]:
        """Make something by a replica."""
        reply = self.ask(replica, "POST", path, body, role)
        assert reply.status_code == httpx2.codes.CREATED, f"{reply.text}\n{self.servers[replica].log()}"
        made: dict[str, Any] = reply.json()
        return made

    def step(self, replica: str, run: str) -> httpx2.Response:
        """Take one step of a run by a replica."""
        return self.ask(replica, "POST", f"/v1/runs/{run}/steps", {}, "trainer")

    def budget(self, name: str, **window: datetime) -> str:
        """A budget of its own for each run, so that none waits for another."""
        limit = {"limit": {"epsilon": 8.0, "delta": 1e-5}}
        said = {bound: moment.isoformat() for bound, moment in window.items()}
        self.made("/v1/budgets", {"name": name, "parent": "p"} | limit | said)
        return f"p/{name}"

    def run(self, name: str, budget: str, replica: str = "slow", **more: object) -> str:
        """Register a run by a replica."""
        body = {"name": name, "budget": budget, "event": FAINT}
        return str(self.made("/v1/runs", body | more, "trainer", replica)["id"])

    def key(self, end: datetime) -> str:
        """A key that expires."""
        return str(self.made("/v1/api-keys", {"role": "viewer", "expires_at": end.isoformat()})["key"])

    def upkeep(self) -> list[float | None]:
        """When each replica last looked for leases that have run out, by its own clock; None before the first time."""
        servers = self.servers.values()
        return [
            server.metric("background_task_last_success_timestamp_seconds", task="maintenance") for server in servers
        ]


@pytest.fixture
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    need_postgresql()
    with new_database("postgresql", tmp_path_factory.mktemp("unused")) as url:
        servers = {}
        for name, ahead in CLOCKS.items():
            folder = tmp_path_factory.mktemp(name)
            module, wrong = wrong_by(ahead, folder)
            unhindered = {"EPSILON_LEDGER_RATE_LIMIT_ANONYMOUS_PER_SECOND": "0"}
            servers[name] = LiveServer(
                folder, url, module=module, environment=wrong | unhindered, interpreted="LD_PRELOAD" in wrong
            )
        with started(*servers.values()):
            found = Replicas(servers)
            population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
            found.made("/v1/populations", population | {"limit": {"epsilon": 1e4, "delta": 1e-5}})
            yield found


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=SOON_SECONDS)


def _await_upkeep(replicas: Replicas) -> None:
    """Wait until every replica has looked for what has run out; the first look may have begun before the leases."""
    until = time.monotonic() + PATIENCE_SECONDS
    for _ in range(2):
        before = replicas.upkeep()
        while any(now == then for now, then in zip(replicas.upkeep(), before, strict=True)):
            assert time.monotonic() < until
            time.sleep(0.2)


def _wrong_leases(replicas: Replicas, runs: list[str]) -> int:
    """How many were forfeited, after each replica has been asked for a step."""
    wrong = 0
    for run, replica in zip(runs, cycle(CLOCKS), strict=False):
        reply = replicas.step(replica, run)
        held = replicas.ask("slow", "GET", f"/v1/runs/{run}").json()["reservation"]
        wrong += reply.status_code != httpx2.codes.OK or reply.json()["reservation"] is None or held is None
    return wrong


def test_lease_window_and_key_go_by_the_database_when_the_clocks_of_replicas_are_wrong(replicas: Replicas) -> None:
    plan = {"plan": [{"event": FAINT, "count": 8}], "lease_seconds": 3000}
    shared = replicas.budget("leases")
    leases = [
        replicas.run(f"lease {number}", shared, replica, **plan)
        for number, replica in zip(range(MANY), cycle(CLOCKS), strict=False)
    ]
    _await_upkeep(replicas)
    later = datetime.now(UTC) + timedelta(minutes=50)
    open_still, not_yet = replicas.budget("open", closes_at=later), replicas.budget("not yet", opens_at=later)
    still = [replicas.run(f"run {number}", open_still) for number in range(MANY)]
    good, closing, ending = [], [], []
    for number in range(MANY):
        closing.append(replicas.run("run", replicas.budget(f"closing {number}", closes_at=_soon())))
        good.append(replicas.key(later))
        ending.append(replicas.key(_soon()))
    last = _soon()
    wrong = {"leases": _wrong_leases(replicas, leases), "windows": 0, "keys": 0}
    time.sleep(max(0.0, (last - datetime.now(UTC)).total_seconds()) + 0.1)
    for replica in CLOCKS:
        for number in range(MANY):
            wrong["windows"] += replicas.step(replica, still[number]).status_code != httpx2.codes.OK
            wrong["windows"] += replicas.step(replica, closing[number]).status_code == httpx2.codes.OK
            early = {"name": f"early {number}", "budget": not_yet, "event": NOISE}
            made = replicas.ask(replica, "POST", "/v1/runs", early, "trainer")
            wrong["windows"] += made.status_code == httpx2.codes.CREATED
            for key, right in ((ending[number], httpx2.codes.UNAUTHORIZED), (good[number], httpx2.codes.OK)):
                headers = {"Authorization": f"Bearer {key}"}
                reply = httpx2.get(f"{replicas.servers[replica].url}/v1/runs", headers=headers, trust_env=False)
                wrong["keys"] += reply.status_code != right
    assert wrong == {"leases": 0, "windows": 0, "keys": 0}
    for replica, skew in (("fast", "3600 s ahead of"), ("slow", "3600 s behind")):
        server = replicas.servers[replica]
        ready = server.readiness()
        assert (ready.status_code, ready.json()["status"]) == (httpx2.codes.OK, "degraded")
        assert skew in ready.json()["clock_skew"]
        assert server.metric("clock_offset_seconds") == pytest.approx(CLOCKS[replica], abs=5)
