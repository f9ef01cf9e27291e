"""A worker that is down stops its own organisations, and nothing else."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from app.ledger.errors import LedgerUnavailableError
from app.ledger.ids import id_of
from app.persistence.database import Database
from app.persistence.pipeline import IN_DOUBT
from app.persistence.repositories import idempotent_responses
from app.persistence.repositories.idempotent_responses import Reply
from app.service.maintenance import expire_reservations
from benchmarks.citus.cluster import CitusCluster
from tests.citus.conftest import UNLIMITED
from tests.reliability.clients import open_budget
from tests.servers import LiveServer

EVENT = {"type": "gaussian", "noise_multiplier": 50.0}
LEASE_SECONDS = 60

pytestmark = pytest.mark.citus

Runs = dict[str, tuple[httpx2.Client, str]]
"""A client and the path of a run, by organisation."""


@pytest.fixture(scope="module")
def runs(service: LiveServer, homes: dict[str, str]) -> Iterator[Runs]:
    """A run of each organisation."""
    found: Runs = {}
    for organisation in homes:
        http = service.client("admin", organisation)
        budget = open_budget(http, "mimic", 100.0)
        made = http.post("/v1/runs", json={"name": "r", "budget": budget, "event": EVENT})
        found[organisation] = http, f"/v1/runs/{made.raise_for_status().json()['id']}"
    yield found
    for http, _ in found.values():
        http.close()


@pytest.fixture
def down(distributed: CitusCluster, runs: Runs) -> Iterator[str]:
    """The name of a worker that was killed."""
    del runs  # they were made before
    distributed.workers[0].kill()
    yield "worker 1"
    distributed.workers[0].start()


def step(http: httpx2.Client, run: str) -> httpx2.Response:
    """Ask for one step."""
    return http.post(f"{run}/steps", json={"count": 1})


def test_only_the_organisations_of_a_dead_worker_get_503(runs: Runs, homes: dict[str, str], down: str) -> None:
    """Others take steps, list, and create."""
    for organisation, (http, run) in runs.items():
        answer = step(http, run)
        if homes[organisation] == down:
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] == "ledger_unavailable"
            continue
        assert answer.status_code == 200, answer.text
        assert http.get(run).json()["next_step"] == answer.json()["next_step"]
        budget = {"name": f"made-by-{organisation}", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-6}}
        assert http.post("/v1/budgets", json=budget).status_code == 201


def test_the_readiness_names_a_dead_worker(service: LiveServer, distributed: CitusCluster, down: str) -> None:
    """The service stays ready for the others; the worker is named by host and port, as Citus does."""
    del down
    answer = service.readiness()
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert answer.json()["unavailable_workers"] == {
        f"127.0.0.1:{distributed.workers[0].port}": "The database does not answer."
    }
    metrics = httpx2.get(f"{service.url}/metrics", trust_env=False).text
    assert "epsilon_ledger_citus_workers_unavailable 1.0" in metrics
    assert "epsilon_ledger_ready 1.0" in metrics


def test_the_readiness_is_ok_again(service: LiveServer, runs: Runs) -> None:
    """After the worker's start every organisation is served."""
    assert service.readiness().json() == {"status": "ok"}
    assert {step(*each).status_code for each in runs.values()} == {200}


def test_a_service_starts_while_a_worker_is_down(
    distributed: CitusCluster, service: LiveServer, homes: dict[str, str], runs: Runs, down: str
) -> None:
    """Its callers are known by their keys, which every node has."""
    second = LiveServer(service.folder, distributed.url, environment=UNLIMITED, interpreted=True, keys=service.keys)
    second.start()
    try:
        for organisation, (_, run) in runs.items():
            with second.client("trainer", organisation) as http:
                wanted = 503 if homes[organisation] == down else 200
                assert step(http, run).status_code == wanted
    finally:
        second.kill()


def test_reservations_expire_while_a_worker_is_down(
    distributed: CitusCluster, runs: Runs, homes: dict[str, str]
) -> None:
    """The upkeep of the other organisations goes on, and that of the worker's is done later."""
    for http, run in runs.values():
        plan = {"events": [{"event": EVENT, "count": 3}], "lease_seconds": LEASE_SECONDS}
        http.post(f"{run}/reservations", json=plan).raise_for_status()
    late = datetime.now(UTC) + timedelta(seconds=2 * LEASE_SECONDS)
    database = Database(distributed.url)
    distributed.workers[0].kill()
    try:
        assert expire_reservations(database, late) == sum(home != "worker 1" for home in homes.values())
    finally:
        distributed.workers[0].start()
    assert expire_reservations(database, late) == sum(home == "worker 1" for home in homes.values())
    database.dispose()


def test_a_commit_that_a_worker_does_not_answer_is_in_doubt(
    distributed: CitusCluster, runs: Runs, homes: dict[str, str], service: LiveServer
) -> None:
    """The worker is stopped after the statements and before the COMMIT."""
    database = Database(distributed.url)
    owner = _id_of(distributed, next(name for name, home in homes.items() if home == "worker 1"))

    def write_and_kill() -> None:
        with database.write(owner) as tx:
            idempotent_responses.add(tx, owner, "a-key", Reply("0" * 64, "{}", 201), datetime.now(UTC))
            distributed.workers[0].kill()

    with pytest.raises(LedgerUnavailableError) as failed:
        write_and_kill()
    assert failed.value.detail == IN_DOUBT
    distributed.workers[0].start()
    database.dispose()
    assert {step(*each).status_code for each in runs.values()} == {200}
    assert service.readiness().json() == {"status": "ok"}


def _id_of(cluster: CitusCluster, name: str) -> str:
    [(number,)] = cluster.execute(f"SELECT id FROM organisations WHERE name = '{name}'")  # noqa: S608 - a test's own
    return id_of(int(str(number)))
