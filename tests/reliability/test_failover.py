"""PostgreSQL itself dies, under load: nothing that was acknowledged is lost, and the service returns by itself."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sqlalchemy.exc import DBAPIError

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.write_probe import Fault, rehearse
from tests import postgres
from tests.polling import await_true, status_of
from tests.postgres import Cluster
from tests.reliability.clients import Trainer
from tests.reliability.conftest import LONG, ROUNDS, Service, at_work, own_cluster, serving
from tests.reliability.history import Journal

pytestmark = pytest.mark.postgresql
CLIENTS, STOPS, BEFORE, AFTER = (32, 2, 100, 50) if LONG else (6, 1, 30, 20)
UNANSWERED_SECONDS = 2.0 if LONG else 1.0
WAITING = """
SELECT count(*) > 0 FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE wait_event = 'SyncRep' AND relation = 'decisions'::regclass AND mode ~ '{}'
"""
"""Whether a commit waits for the standby that has such a lock: who inserts a decision, or who has read some."""


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
        standby = primary.base_backup("--write-recovery-conf")
        with standby.removed_if_it_fails():
            standby.configure("cluster_name = 'standby'")  # by which the primary knows it
            standby.start()
            _wait_for_standby(primary, "standby")
            primary.wait_until("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        hosts = "&".join(f"host=127.0.0.1:{cluster.port}" for cluster in (primary, standby))
        url = f"postgresql://{postgres.SERVICE}:{primary.password}@/ledger?{hosts}&target_session_attrs=read-write"
        try:
            with serving(tmp_path_factory.mktemp("service"), url) as service:
                yield Pair(primary, standby, service)
        finally:
            standby.remove()


def _wait_for_standby(cluster: Cluster, name: str) -> None:
    """Let each commit of a cluster wait until it is durable on a standby, too; without a name, on none."""
    cluster.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    cluster.execute("SELECT pg_reload_conf()")


@pytest.fixture(autouse=True)
def _journal(pair: Pair) -> None:
    """A new one for each test."""
    pair.service.journal = Journal()


@pytest.mark.soak
def test_acknowledged_steps_are_kept_when_the_server_stops_and_comes_back(pair: Pair) -> None:
    url = pair.service.server.url
    with at_work(pair.service, CLIENTS):
        for _ in range(STOPS):
            pair.service.await_answers(BEFORE)
            pair.primary.stop(signal.SIGQUIT)
            await_true(lambda: status_of(f"{url}/readyz") == 503)  # a load balancer asks others meanwhile
            assert status_of(f"{url}/healthz") == 200
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
        trainer = Trainer(http, service.journal, 0).register(budget)
        trainer.ask({"first_step": 0}, None)  # from now on, the cost of such a step is known
        pair.standby.stop()
        key = f"repeated/{budget}" if known_by == "key" else None
        body = {"count": 1} | ({} if key else {"first_step": trainer.next_step})
        asked = pool.submit(trainer.ask, body, key)
        await_true(lambda: primary.execute(WAITING.format("RowExclusive"), "ledger")[0][0])
        primary.kill()
        primary.start()
        await_true(
            lambda: primary.execute(WAITING.format(".*Share"), "ledger")[0][0]
        )  # the repeated request, which found its step
        time.sleep(UNANSWERED_SECONDS)
        assert http.get(f"/v1/runs/{trainer.run}").status_code == 200  # what is only read waits for nothing
        assert not asked.done()
        pair.standby.start()
        answer = asked.result().answers[0]
    assert answer.status_code == 200, answer.text
    assert answer.headers["idempotent-replayed"] == "true"
    service.check()


def test_steps_are_kept_when_the_standby_takes_over(pair: Pair) -> None:
    with at_work(pair.service, CLIENTS):
        pair.service.await_answers(BEFORE)
        pair.primary.kill()
        pair.standby.execute("SELECT pg_promote(true)")
        pair.standby.wait_until("SELECT NOT pg_is_in_recovery()")
        _wait_for_standby(pair.standby, "")
        pair.service.await_answers(AFTER)
    pair.service.check()
