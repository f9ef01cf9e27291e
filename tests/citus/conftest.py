"""A cluster of its own for each module, and a service on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.persistence.citus import distribute
from app.persistence.database import Database
from app.persistence.schema import upgrade
from benchmarks.citus.cluster import CitusCluster, citus_cluster
from benchmarks.citus.rounds import organisations
from tests.servers import LiveServer

PROGRAMS = "CITUS_PROGRAMS"
"""Environment variable with the folder of a server's programs that has Citus; `make citus` sets it."""

UNLIMITED = {"EPSILON_LEDGER_RATE_LIMIT_PER_SECOND": "0", "EPSILON_LEDGER_RATE_LIMIT_ANONYMOUS_PER_SECOND": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[CitusCluster]:
    """A coordinator and two workers with an empty database."""
    assert PROGRAMS in os.environ, "`make citus` runs these tests, after it has built Citus"
    with citus_cluster(Path(os.environ[PROGRAMS])) as started:
        yield started


@pytest.fixture(scope="module")
def distributed(cluster: CitusCluster) -> CitusCluster:
    """The cluster with an empty ledger that is distributed."""
    for work in (upgrade, distribute):
        database = Database(cluster.url)
        work(database)
        database.dispose()
    return cluster


@pytest.fixture(scope="module")
def service(distributed: CitusCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A service on the cluster."""
    server = LiveServer(tmp_path_factory.mktemp("service"), distributed.url, environment=UNLIMITED, interpreted=True)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def homes(distributed: CitusCluster, service: LiveServer) -> dict[str, str]:
    """Names of organisations, two on each worker, and the name of that."""
    return organisations(distributed, service)
