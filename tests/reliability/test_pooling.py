"""Sessions of PostgreSQL that are shared by transactions, through PgBouncer with the file that is delivered."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import is_current, upgrade
from tests.conftest import LiveServer, need_postgresql
from tests.postgres import Cluster
from tests.postgres_binaries import binaries
from tests.reliability.conftest import ROUNDS, Service, at_work, issue_keys
from tests.reliability.pgbouncer import PROGRAM, pgbouncer

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.skipif(PROGRAM is None, reason="NOT TRIED: pgbouncer is not installed; apt-get install pgbouncer"),
]
CLIENTS = 16
SESSIONS = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of its own, with a migrated database `ledger`."""
    need_postgresql()
    own = Cluster.create()
    try:
        database = Database(own.create_database("ledger"))
        upgrade(database)
        database.dispose()
        yield own
    finally:
        own.remove()


@pytest.fixture
def pooled_url(cluster: Cluster) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder, pgbouncer(cluster, Path(folder), SESSIONS) as url:
        yield url


@contextmanager
def serving(folder: Path, direct: str, pooled: str) -> Iterator[Service]:
    """A service behind the pooler; keys and proofs go past it."""
    environment = {"EPSILON_LEDGER_DATABASE_URL": pooled, "EPSILON_LEDGER_DATABASE_POOL_MODE": "transaction"}
    server = LiveServer(folder, direct, environment=environment)
    issue_keys(server)
    server.start()
    try:
        yield Service(server, folder / "faults.json")
    finally:
        server.stop()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_many_clients_share_few_sessions(tmp_path: Path, cluster: Cluster, pooled_url: str, round_: int) -> None:
    with serving(tmp_path, cluster.url("ledger"), pooled_url) as service:
        with at_work(service, CLIENTS):
            service.await_answers(300 + 17 * round_)
            [(used,)] = cluster.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'ledger'")
        assert used <= SESSIONS
        service.check()
        assert "Traceback" not in service.server.log()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_the_server_dies_behind_the_pool(tmp_path: Path, cluster: Cluster, pooled_url: str, round_: int) -> None:
    with serving(tmp_path, cluster.url("ledger"), pooled_url) as service:
        with at_work(service, CLIENTS):
            service.await_answers(100 + 17 * round_)
            cluster.kill()
            cluster.start()
            service.await_answers(100)
        service.check()


def test_the_pool_tells_who_waits_and_takes_no_command(pooled_url: str) -> None:
    """As the runbook asks it; another role of the service's could stop the pool."""
    console = str(make_url(pooled_url).set(database="pgbouncer").render_as_string(hide_password=False))
    psql = binaries() / "psql"
    pools = subprocess.run(
        [psql, console, "--no-align", "--command", "SHOW POOLS"], capture_output=True, text=True, check=True
    )
    assert {"cl_waiting", "maxwait"} <= set(pools.stdout.splitlines()[0].split("|"))
    refused = subprocess.run([psql, console, "--command", "PAUSE"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "admin access needed" in refused.stderr


def test_two_services_share_a_session(pooled_url: str) -> None:
    """What one of them prepared, set or locked would be in the way of the other."""
    databases = [Database(pooled_url, pool_size=1, pooled=True) for _ in range(2)]
    for _ in range(10):
        for database in databases:
            with database.read(ALL_TENANTS) as tx:
                assert is_current(tx)
    for database in databases:
        database.dispose()
