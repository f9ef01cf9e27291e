"""Replicas whose clocks are an hour fast and an hour slow do as the one whose clock is right: the database's counts."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import LiveServer, need_postgresql, new_database
from tests.faketime import wrong_by
from tests.reliability.clients import NOISE, PATIENCE_SECONDS
from tests.reliability.conftest import ROUNDS, issue_keys

pytestmark = pytest.mark.postgresql

HOUR = 3600
MANY = 3 if ROUNDS == 1 else 20 * ROUNDS
"""Leases, windows and keys; 1,000 in `make soak`."""

SOON_SECONDS = 12.0
"""After which a window closes and a key expires; each of them is made a moment before."""

CLOCKS = {"right": 0, "fast": HOUR, "slow": -HOUR}
OFF = ("fast", "slow")


@dataclass
class Replicas:
    """Three servers on one database, by their clocks."""

    servers: dict[str, LiveServer]
    clients: dict[tuple[str, str], httpx2.Client]

    def ask(self, replica: str, method: str, path: str, body: object = None, role: str = "admin") -> httpx2.Response:
        """Ask a replica."""
        return self.clients[replica, role].request(method, path, json=body)

    def made(self, replica: str, path: str, body: object, role: str = "admin") -> dict[str, Any]:
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
        self.made("right", "/v1/budgets", {"name": name, "parent": "p"} | limit | said)
        return f"p/{name}"

    def upkeep(self, replica: str) -> float:
        """When a replica last looked for leases that have run out, by its own clock; 0 before the first time."""
        text = httpx2.get(f"{self.servers[replica].url}/metrics", trust_env=False).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        looked = (
            sample.value
            for sample in samples
            if sample.name.endswith("last_success_timestamp_seconds") and sample.labels["task"] == "maintenance"
        )
        return next(looked, 0.0)


@pytest.fixture
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    need_postgresql()
    with new_database("postgresql", tmp_path_factory.mktemp("unused")) as url:
        servers = {}
        for name, ahead in CLOCKS.items():
            folder = tmp_path_factory.mktemp(name)
            module, wrong = wrong_by(ahead, folder) if ahead else ("app", {})
            unhindered = {"EPSILON_LEDGER_RATE_LIMIT_ANONYMOUS_PER_SECOND": "0"}
            servers[name] = LiveServer(
                folder, url, module=module, environment=wrong | unhindered, interpreted="LD_PRELOAD" in wrong
            )
        try:
            for server in servers.values():
                server.start()
            issue_keys(servers["right"])
            clients = {}
            for name, server in servers.items():
                server.keys = servers["right"].keys
                for role in ("admin", "trainer", "viewer"):
                    clients[name, role] = server.client(role)
            found = Replicas(servers, clients)
            population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
            found.made("right", "/v1/populations", population | {"limit": {"epsilon": 1e4, "delta": 1e-5}})
            yield found
            for client in clients.values():
                client.close()
        finally:
            for server in servers.values():
                if server.process is not None and server.process.poll() is None:
                    server.stop()


def _run(replicas: Replicas, replica: str, name: str, budget: str, **more: object) -> str:
    body = {"name": name, "budget": budget, "event": NOISE | {"noise_multiplier": 1000.0}}
    return str(replicas.made(replica, "/v1/runs", body | more, "trainer")["id"])


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=SOON_SECONDS)


def _key(replicas: Replicas, end: datetime) -> str:
    return str(replicas.made("right", "/v1/api-keys", {"role": "viewer", "expires_at": end.isoformat()})["key"])


def _leases(replicas: Replicas) -> list[str]:
    """Runs with plans, made and prolonged by all replicas."""
    budget = replicas.budget("leases")
    plan = {"plan": [{"event": NOISE | {"noise_multiplier": 1000.0}, "count": 8}], "lease_seconds": 3000}
    runs = []
    for number, replica in zip(range(MANY), cycle(CLOCKS), strict=False):
        runs.append(_run(replicas, replica, f"lease {number}", budget, **plan))
    return runs


def _wrong_leases(replicas: Replicas, runs: list[str]) -> int:
    """How many were forfeited, after every replica has looked for what has run out, and has been asked for a step."""
    before = {name: replicas.upkeep(name) for name in CLOCKS}
    until = time.monotonic() + PATIENCE_SECONDS
    for _ in range(2):  # the first look may have begun before the leases were there
        while any(replicas.upkeep(name) == before[name] for name in CLOCKS):
            assert time.monotonic() < until
            time.sleep(0.5)
        before = {name: replicas.upkeep(name) for name in CLOCKS}
    wrong = 0
    for run, replica in zip(runs, cycle(OFF), strict=False):
        reply = replicas.step(replica, run)
        held = replicas.ask("right", "GET", f"/v1/runs/{run}").json()["reservation"]
        wrong += reply.status_code != httpx2.codes.OK or reply.json()["reservation"] is None or held is None
    return wrong


def test_no_lease_window_or_key_goes_by_the_clock_of_a_replica(replicas: Replicas) -> None:
    leases = _leases(replicas)
    begin = datetime.now(UTC)
    later = begin + timedelta(minutes=50)
    open_still = replicas.budget("open", closes_at=later)
    still = [_run(replicas, "right", f"run {number}", open_still) for number in range(MANY)]
    good, closing, ending = [], [], []
    for number in range(MANY):
        budget = replicas.budget(f"closing {number}", closes_at=_soon())
        closing.append(_run(replicas, "right", "run", budget))
        good.append(_key(replicas, later))
        ending.append(_key(replicas, _soon()))
    not_yet = replicas.budget("not yet", opens_at=later)
    last = _soon()

    wrong = {"leases": _wrong_leases(replicas, leases), "windows": 0, "keys": 0}
    time.sleep(max(0.0, (last - datetime.now(UTC)).total_seconds()) + 0.1)
    for replica in OFF:
        for number in range(MANY):
            wrong["windows"] += replicas.step(replica, still[number]).status_code != httpx2.codes.OK
            late = replicas.step(replica, closing[number])
            wrong["windows"] += late.status_code == httpx2.codes.OK
            early = {"name": f"early {number}", "budget": not_yet, "event": NOISE}
            made = replicas.ask(replica, "POST", "/v1/runs", early, "trainer")
            wrong["windows"] += made.status_code == httpx2.codes.CREATED
            for key, right in ((ending[number], httpx2.codes.UNAUTHORIZED), (good[number], httpx2.codes.OK)):
                headers = {"Authorization": f"Bearer {key}"}
                reply = replicas.clients[replica, "viewer"].get("/v1/runs?limit=1", headers=headers)
                wrong["keys"] += reply.status_code != right
    assert wrong == {"leases": 0, "windows": 0, "keys": 0}
    _the_wrong_ones_say_so(replicas)


def _the_wrong_ones_say_so(replicas: Replicas) -> None:
    """In their answers to `/readyz`, and in their metrics."""
    assert replicas.servers["right"].readiness().json() == {"status": "ok"}
    for replica, how in (("fast", "3600 s ahead of"), ("slow", "3600 s behind")):
        ready = replicas.servers[replica].readiness()
        assert ready.status_code == httpx2.codes.OK
        assert ready.json()["status"] == "degraded"
        assert how in ready.json()["clock_skew"]
        text = httpx2.get(f"{replicas.servers[replica].url}/metrics", trust_env=False).text
        ahead = next(line for line in text.splitlines() if line.startswith("epsilon_ledger_clock_offset_seconds "))
        assert float(ahead.rpartition(" ")[2]) == pytest.approx(CLOCKS[replica], abs=5)
