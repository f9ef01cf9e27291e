"""Replicas whose clocks are an hour fast and slow are right about leases, windows and keys: the database's counts."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import count, cycle
from operator import ne
from typing import Any

import httpx2
import pytest

from tests.conftest import LiveServer
from tests.polling import await_true
from tests.reliability.clients import NOISE
from tests.reliability.conftest import BROKEN, LONG, ROUNDS, started

pytestmark = pytest.mark.postgresql

MANY = 20 * ROUNDS if LONG else 2
"""Leases, windows and keys; 1,000 in `make soak`."""

SOON_SECONDS = 12.0 if LONG else 4.0
"""After which a window closes and a key expires; each of them is made a moment before."""

CLOCKS = {"fast": 3600, "slow": -3600}
FAINT = NOISE | {"noise_multiplier": 1000.0}
_numbers = count()


class Replicas:
    """Two servers on one database, by their clocks."""

    def __init__(self, servers: dict[str, LiveServer], stack: ExitStack) -> None:
        self.servers = servers
        self._clients = {name: stack.enter_context(server.client("admin")) for name, server in servers.items()}

    def ask(self, replica: str, method: str, path: str, body: object = None) -> httpx2.Response:
        """Ask a replica."""
        return self._clients[replica].request(method, f"/v1/{path}", json=body)

    def made(self, path: str, replica: str = "slow", **body: object) -> dict[str, Any]:
        """Make something by a replica."""
        reply = self.ask(replica, "POST", path, body)
        assert reply.status_code == httpx2.codes.CREATED, f"{reply.text}\n{self.servers[replica].log()}"
        made: dict[str, Any] = reply.json()
        return made

    def budget(self, **window: datetime) -> str:
        """A budget of its own, with a window."""
        name, said = f"b{next(_numbers)}", {bound: moment.isoformat() for bound, moment in window.items()}
        self.made("budgets", name=name, parent="p", limit={"epsilon": 8.0, "delta": 1e-5}, **said)
        return f"p/{name}"

    def run(self, budget: str, replica: str = "slow", **more: object) -> str:
        """Register a run by a replica."""
        return str(self.made("runs", replica, name="run", budget=budget, event=FAINT, **more)["id"])

    def key(self, end: datetime) -> str:
        """A key that expires."""
        return str(self.made("api-keys", role="viewer", expires_at=end.isoformat())["key"])

    def upkeep(self) -> list[float | None]:
        """When each replica last looked for leases that have run out, by its own clock; None before the first time."""
        name = "background_task_last_success_timestamp_seconds"
        return [server.metric(name, task="maintenance") for server in self.servers.values()]

    def await_upkeep(self) -> None:
        """Wait until every replica has looked for what has run out; the first look may have begun before the leases."""
        for _ in range(2):
            before = self.upkeep()
            await_true(lambda before=before: all(map(ne, self.upkeep(), before)), pause=1.0)  # type: ignore[misc]


@pytest.fixture
def replicas(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Replicas]:
    servers = {}
    for name, ahead in CLOCKS.items():
        environment = {"CLOCK": str(ahead), "EPSILON_LEDGER_RATE_LIMIT_ANONYMOUS_PER_SECOND": "0"}
        servers[name] = LiveServer(tmp_path_factory.mktemp(name), database_url, BROKEN, environment=environment)
    with started(*servers.values()), ExitStack() as stack:
        found = Replicas(servers, stack)
        population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
        found.made("populations", **population, limit={"epsilon": 1e4, "delta": 1e-5})
        yield found


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=SOON_SECONDS)


def test_lease_window_and_key_go_by_the_database_when_the_clocks_of_replicas_are_wrong(replicas: Replicas) -> None:
    shared, turns = replicas.budget(), cycle(CLOCKS)
    plan = {"reserve": [{"event": FAINT, "count": 8}], "lease_seconds": 3000}
    leases = [replicas.run(shared, next(turns), **plan) for _ in range(MANY)]
    replicas.await_upkeep()
    later = datetime.now(UTC) + timedelta(minutes=50)
    open_still, not_yet = replicas.budget(closes_at=later), replicas.budget(opens_at=later)
    still = [replicas.run(open_still) for _ in range(MANY)]
    closing = [replicas.run(replicas.budget(closes_at=_soon())) for _ in range(MANY)]
    good = [replicas.key(later) for _ in range(MANY)]
    ending = [replicas.key(_soon()) for _ in range(MANY)]
    last, wrong = _soon(), Counter[str]()
    for run in leases:
        reply = replicas.ask(next(turns), "POST", f"runs/{run}/steps", {})
        held = replicas.ask("slow", "GET", f"runs/{run}").json()["reservation"]
        wrong["leases"] += reply.status_code != httpx2.codes.OK or reply.json()["reservation"] is None or held is None
    time.sleep(max(0.0, (last - datetime.now(UTC)).total_seconds()) + 0.1)
    for replica, server in replicas.servers.items():
        for number in range(MANY):
            early = {"name": f"early {number}", "budget": not_yet, "event": NOISE}
            for path, body, right in (
                (f"runs/{still[number]}/steps", {}, {httpx2.codes.OK}),
                (f"runs/{closing[number]}/steps", {}, {httpx2.codes.CONFLICT, httpx2.codes.FORBIDDEN}),
                ("runs", early, {httpx2.codes.CONFLICT, httpx2.codes.FORBIDDEN}),
            ):
                wrong["windows"] += replicas.ask(replica, "POST", path, body).status_code not in right
            for key, status in ((ending[number], httpx2.codes.UNAUTHORIZED), (good[number], httpx2.codes.OK)):
                headers = {"Authorization": f"Bearer {key}"}
                wrong["keys"] += (
                    httpx2.get(f"{server.url}/v1/runs", headers=headers, trust_env=False).status_code != status
                )
        ready, skew = server.readiness(), {"fast": "3600 s ahead of", "slow": "3600 s behind"}[replica]
        assert (ready.status_code, ready.json()["status"]) == (httpx2.codes.OK, "degraded")
        assert skew in ready.json()["clock_skew"]
        assert server.metric("clock_offset_seconds") == pytest.approx(CLOCKS[replica], abs=5)
    assert wrong.total() == 0, wrong
