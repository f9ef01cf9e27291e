"""PostgreSQL itself dies, under load: nothing that was acknowledged is lost, and the service returns by itself."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from app.persistence.database import Database
from app.persistence.schema import upgrade
from tests import postgres
from tests.conftest import need_postgresql
from tests.postgres import Cluster
from tests.reliability.clients import PATIENCE_SECONDS, Trainer
from tests.reliability.conftest import ROUNDS, Service, at_work, serving
from tests.reliability.waiters import Waiters, training

pytestmark = pytest.mark.postgresql
CLIENTS = 32
STOPS = 2 if ROUNDS > 1 else 1
UNANSWERED_SECONDS = 2.0
WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = 'ledger'"
"""Whether a commit waits for the standby."""


@pytest.fixture
def primary() -> Iterator[Cluster]:
    """A server of its own, with a migrated database `ledger`."""
    need_postgresql()
    cluster = Cluster.create()
    try:
        database = Database(cluster.create_database("ledger"))
        upgrade(database)
        database.dispose()
        yield cluster
    finally:
        cluster.remove()


@contextmanager
def standby_of(primary: Cluster) -> Iterator[Cluster]:
    standby = primary.standby()
    try:
        yield standby
    finally:
        standby.remove()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_the_database_stops_at_once_and_comes_back(tmp_path: Path, primary: Cluster, round_: int) -> None:
    with serving(tmp_path, primary.url("ledger")) as service:
        with at_work(service, CLIENTS):
            for _ in range(STOPS):
                service.await_answers(100 + 17 * round_)
                primary.stop("immediate")
                is_not_ready(service)
                primary.start()
                service.await_answers(50)
        service.check()


@contextmanager
def with_standby(folder: Path, primary: Cluster) -> Iterator[tuple[Service, Cluster]]:
    """A service that finds whichever of a server and its standby takes writes."""
    with standby_of(primary) as standby:
        hosts = "&".join(f"host=127.0.0.1:{cluster.port}" for cluster in (primary, standby))
        url = f"postgresql://{postgres.SERVICE}:{primary.password}@/ledger?{hosts}&target_session_attrs=read-write"
        with serving(folder, url) as service:
            yield service, standby


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_the_primary_dies_and_its_standby_takes_over(tmp_path: Path, primary: Cluster, round_: int) -> None:
    with with_standby(tmp_path, primary) as (service, standby):
        with at_work(service, CLIENTS):
            service.await_answers(100 + 17 * round_)
            primary.kill()
            standby.promote()
            service.await_answers(50)
        service.check()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_the_primary_dies_while_plans_wait_and_are_granted(tmp_path: Path, primary: Cluster, round_: int) -> None:
    with with_standby(tmp_path, primary) as (service, standby):
        waiters = Waiters([service.server], service.open_budget(epsilon=2.0))
        with service.server.client("admin") as http:
            full = waiters.fill(http, 3)
            waiters.queue(6)
            assert http.post(f"/v1/reservations/{full}/commit", json={"steps_executed": 0}).status_code == 200

        def fail_over() -> None:
            time.sleep(0.4 + 0.3 * (round_ % 4))
            primary.kill()
            standby.promote()

        training(waiters, fail_over)
        waiters.check(service.server.database_url)


@pytest.mark.parametrize("known_by", ["key", "number"])
def test_what_only_the_primary_has_is_acknowledged_to_nobody(tmp_path: Path, primary: Cluster, known_by: str) -> None:
    """A primary that is killed while it waits for its standby has the step when it is back; its standby has not."""
    with with_standby(tmp_path, primary) as (service, standby):
        budget = service.open_budget(epsilon=50.0)
        with service.server.client("trainer") as http, ThreadPoolExecutor(1) as pool:
            trainer = Trainer(http, service.journal, 0)
            trainer.register(budget)
            assert trainer.step()
            standby.stop()
            body, key = {"count": 1}, None
            if known_by == "key":
                key = "repeated"
            else:
                body["first_step"] = trainer.next_step
            asked = pool.submit(trainer.ask, body, key)
            _await(lambda: primary.execute(WAITING)[0][0])
            primary.kill()
            primary.start()
            _await(lambda: primary.execute(WAITING)[0][0])  # the repeated request, which found its step
            time.sleep(UNANSWERED_SECONDS)
            assert http.get(f"/v1/runs/{trainer.run}").status_code == 200  # what is only read waits for nothing
            assert not asked.done()
            standby.start()
            answer = asked.result().answers[0]
        assert answer.status_code == 200, answer.text
        assert answer.headers["idempotent-replayed"] == "true"
        service.check()


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_not_ready(service: Service) -> None:
    """Alive, and not ready: a load balancer asks others meanwhile."""
    assert httpx2.get(f"{service.server.url}/healthz", trust_env=False).status_code == 200
    assert httpx2.get(f"{service.server.url}/readyz", trust_env=False).status_code == 503
