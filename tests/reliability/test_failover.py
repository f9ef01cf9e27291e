"""PostgreSQL itself dies, under load: nothing that was acknowledged is lost, and the service returns by itself."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import pytest
from sqlalchemy.exc import DBAPIError

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.rehearsal import Fault, rehearse
from tests import postgres
from tests.postgres import Cluster
from tests.reliability.clients import PATIENCE_SECONDS, Trainer
from tests.reliability.conftest import LONG, ROUNDS, Service, at_work, own_cluster, serving
from tests.reliability.history import Journal
from tests.reliability.waiters import Waiters, training

pytestmark = pytest.mark.postgresql
CLIENTS, STOPS, PLANS, BEFORE, AFTER = (32, 2, 6, 100, 50) if LONG else (6, 1, 4, 30, 20)
UNANSWERED_SECONDS = 2.0 if LONG else 1.0
WAITING = """
SELECT count(*) > 0 FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE wait_event = 'SyncRep' AND relation = 'decisions'::regclass
"""
"""Whether a commit waits for the standby; that of a step, not one of the service's own."""


@dataclass
class Pair:
    """A server, its standby, and a service that finds whichever of them takes writes."""

    primary: Cluster
    standby: Cluster
    service: Service


@pytest.fixture(scope="module", params=range(ROUNDS))
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One for the tests of a round: the last of them ends the primary for ever."""
    with own_cluster("wal_retrieve_retry_interval = 100ms") as primary:  # a standby looks so often for its primary
        standby = primary.standby()
        hosts = "&".join(f"host=127.0.0.1:{cluster.port}" for cluster in (primary, standby))
        url = f"postgresql://{postgres.SERVICE}:{primary.password}@/ledger?{hosts}&target_session_attrs=read-write"
        try:
            with serving(tmp_path_factory.mktemp("service"), url) as service:
                yield Pair(primary, standby, service)
        finally:
            standby.remove()


@pytest.fixture(autouse=True)
def journal(pair: Pair) -> Journal:
    """A new one for each test."""
    pair.service.journal = Journal()
    return pair.service.journal


def test_acknowledged_steps_are_kept_when_the_server_stops_and_comes_back(pair: Pair) -> None:
    with at_work(pair.service, CLIENTS):
        for _ in range(STOPS):
            pair.service.await_answers(BEFORE)
            pair.primary.stop(immediately=True)
            is_not_ready(pair.service)
            pair.primary.start()
            pair.service.await_answers(AFTER)
    pair.service.check()


def test_standby_takes_no_writes(pair: Pair) -> None:
    behind = Database(pair.standby.url("ledger"))
    assert rehearse(behind) is Fault.READ_ONLY
    with pytest.raises(DBAPIError, match="recovery") as refused, behind.write(ALL_TENANTS):
        raise AssertionError("a standby was written")
    assert refused.value.connection_invalidated  # it is not tried again for ever: the primary is elsewhere
    behind.dispose()


@pytest.mark.parametrize("known_by", ["key", pytest.param("number", marks=pytest.mark.soak)])
def test_step_is_not_acknowledged_while_only_the_primary_has_it(pair: Pair, known_by: str) -> None:
    """A primary that is killed while it waits for its standby has the step when it is back; its standby has not."""
    service, primary = pair.service, pair.primary
    budget = service.open_budget(epsilon=50.0)
    with service.server.client("trainer") as http, ThreadPoolExecutor(1) as pool:
        trainer = Trainer(http, service.journal, 0)
        trainer.register(budget)
        assert trainer.step()
        pair.standby.stop()
        body, key = {"count": 1}, None
        if known_by == "key":
            key = f"repeated/{budget}"
        else:
            body["first_step"] = trainer.next_step
        asked = pool.submit(trainer.ask, body, key)
        _await(lambda: primary.execute(WAITING, "ledger")[0][0])
        primary.kill()
        primary.start()
        _await(lambda: primary.execute(WAITING, "ledger")[0][0])  # the repeated request, which found its step
        time.sleep(UNANSWERED_SECONDS)
        assert http.get(f"/v1/runs/{trainer.run}").status_code == 200  # what is only read waits for nothing
        assert not asked.done()
        pair.standby.start()
        answer = asked.result().answers[0]
    assert answer.status_code == 200, answer.text
    assert answer.headers["idempotent-replayed"] == "true"
    service.check()


def test_steps_and_plans_are_kept_when_the_standby_takes_over(pair: Pair) -> None:
    """Clients take steps, and plans wait and are granted."""
    service = pair.service
    waiters = Waiters([service.server], service.open_budget(epsilon=2.0))
    with service.server.client("admin") as http:
        full = waiters.fill(http, 3)
        waiters.queue(PLANS)
        assert http.post(f"/v1/reservations/{full}/commit", json={"steps_executed": 0}).status_code == 200

    def fail_over() -> None:
        service.await_answers(BEFORE)
        pair.primary.kill()
        pair.standby.promote()
        service.await_answers(AFTER)

    with at_work(service, CLIENTS):
        training(waiters, fail_over)
    waiters.check(service.server.database_url)
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
