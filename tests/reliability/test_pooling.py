"""Sessions of PostgreSQL that are shared by transactions, through PgBouncer with the file that is delivered."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import is_current
from benchmarks.pgbouncer import PROGRAM, pgbouncer
from tests.conftest import LiveServer
from tests.postgres import Cluster
from tests.postgres_binaries import binaries
from tests.programs import run
from tests.reliability.conftest import ROUNDS, Service, at_work, own_cluster, started
from tests.reliability.history import Journal

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.skipif(PROGRAM is None, reason="NOT TRIED: pgbouncer is not installed; apt-get install pgbouncer"),
]
CLIENTS = 8
SESSIONS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server for all tests, with a migrated database `ledger`."""
    with own_cluster() as own:
        yield own


@pytest.fixture(scope="module")
def pooled_url(cluster: Cluster) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder, pgbouncer(cluster, Path(folder), SESSIONS) as url:
        yield url


@pytest.fixture(scope="module")
def service(cluster: Cluster, pooled_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service behind the pooler; keys and proofs go past it."""
    environment = {"EPSILON_LEDGER_DATABASE_URL": pooled_url, "EPSILON_LEDGER_DATABASE_POOL_MODE": "transaction"}
    server = LiveServer(tmp_path_factory.mktemp("service"), cluster.url("ledger"), environment=environment)
    with started(server):
        yield Service(server, server.folder / "faults.json")


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_sessions_are_shared_and_steps_kept_when_the_server_dies_behind_the_pool(
    cluster: Cluster, service: Service, round_: int
) -> None:
    service.journal = Journal()
    with at_work(service, CLIENTS):
        service.await_answers(100 + 17 * round_)
        [(used,)] = cluster.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'ledger'")
        assert "Traceback" not in service.server.log()
        cluster.kill()
        cluster.start()
        service.await_answers(100)
    assert used <= SESSIONS
    service.check()


def test_pool_shows_waiting_clients_and_takes_no_command(pooled_url: str) -> None:
    """As the runbook asks it; another role of the service's could stop the pool."""
    console = str(make_url(pooled_url).set(database="pgbouncer").render_as_string(hide_password=False))
    psql = binaries() / "psql"
    pools = run([psql, console, "--no-align", "--command", "SHOW POOLS"])
    assert {"cl_waiting", "maxwait"} <= set(pools.stdout.splitlines()[0].split("|"))
    refused = run([psql, console, "--command", "PAUSE"], status=None)
    assert refused.returncode != 0
    assert "admin access needed" in refused.stderr


def test_session_is_shared_by_two_services(pooled_url: str) -> None:
    """What one of them prepared, set or locked would be in the way of the other."""
    databases = [Database(pooled_url, pool_size=1, pooled=True) for _ in range(2)]
    for _ in range(10):
        for database in databases:
            with database.read(ALL_TENANTS) as tx:
                assert is_current(tx)
    for database in databases:
        database.dispose()
