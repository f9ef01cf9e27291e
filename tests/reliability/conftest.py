"""What the tests of reliability share: real servers, some of which can be broken on purpose."""

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.ledger.permissions import Role
from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.service.verification import verify
from tests.conftest import LiveServer, need_postgresql
from tests.postgres import Cluster, in_memory
from tests.reliability.clients import PATIENCE_SECONDS, Trainer, open_budget
from tests.reliability.failing_server import FAULTS
from tests.reliability.history import Journal, check

ROUNDS = int(os.environ.get("RELIABILITY_ROUNDS", "1"))
"""How long the tests run; one round in `make test`."""

LONG = ROUNDS > 1

REPLICAS = 2

_numbers = itertools.count()


def is_sound(database_url: str) -> None:
    """The ledger agrees with its charges."""
    database = Database(database_url)
    found = verify(database)
    database.dispose()
    assert found.sound, found.problems


@dataclass
class Service:
    """A server process, the file that says how it is broken, and what its clients asked."""

    server: LiveServer
    faults: Path
    journal: Journal = field(default_factory=Journal)

    def breaks(self, **asked: object) -> None:
        """Break the service from now on, as `failing_server` explains; nothing: it is mended."""
        fresh = self.faults.with_suffix(".new")
        fresh.write_text(json.dumps(asked))
        fresh.replace(self.faults)

    def restart(self) -> None:
        """Kill the server, as a power cut would, and start it again."""
        self.server.kill()
        self.server.start()

    def open_budget(self, epsilon: float, relation: str = "add_or_remove_one") -> str:
        """A population of its own and a budget; returns the budget's path."""
        with self.server.client("admin") as http:
            return open_budget(http, f"population{next(_numbers)}", epsilon, relation)

    def await_answers(self, more: int) -> None:
        """Wait until so many more requests of clients at work were answered."""
        wanted = self.journal.answered + more
        until = time.monotonic() + PATIENCE_SECONDS
        while self.journal.answered < wanted:
            assert time.monotonic() < until, self.server.log()
            time.sleep(0.01)

    def check(self) -> None:
        """Prove the ledger against the journal."""
        database = Database(self.server.database_url)
        try:
            check(self.journal, database)
        finally:
            database.dispose()


@contextmanager
def started(*servers: LiveServer) -> Iterator[None]:
    """Servers that run, whose clients have their keys; they are stopped at the end, if they still run."""
    try:
        for server in servers:
            server.start()
        for role in Role:
            servers[0].key(role)
        for server in servers:
            server.keys = servers[0].keys
        yield
    finally:
        for server in servers:
            if server.process is not None and server.process.poll() is None:
                server.stop()


@contextmanager
def trainer_of(server: LiveServer) -> Iterator[Trainer]:
    """Start a server with a trainer that has taken a step; after the test the ledger verifies."""
    with started(server):
        service = Service(server, server.folder / "faults.json")
        with server.client("trainer") as http:
            trainer = Trainer(http, service.journal, 0)
            trainer.register(service.open_budget(epsilon=5.0))
            assert trainer.step()
            yield trainer
    is_sound(server.database_url)


@contextmanager
def serving(folder: Path, database_url: str) -> Iterator[Service]:
    """A service that can be broken, on a database of its own."""
    faults = folder / "faults.json"
    environment = {FAULTS: str(faults), "EPSILON_LEDGER_WEBHOOKS_ALLOW_PRIVATE": "true"}
    server = LiveServer(folder, database_url, module="tests.reliability.failing_server", environment=environment)
    with started(server):
        yield Service(server, faults)


@contextmanager
def at_work(service: Service, clients: int) -> Iterator[None]:
    """Clients take steps under one budget, larger than they can spend, meanwhile; none of them may fail."""
    budget = service.open_budget(epsilon=50.0)
    stop = threading.Event()

    def work(number: int) -> None:
        with service.server.client("trainer") as http:
            trainer = Trainer(http, service.journal, number)
            trainer.register(budget)
            trainer.exhaust(stop)

    with ThreadPoolExecutor(clients) as pool:
        working = [pool.submit(work, number) for number in range(clients)]
        try:
            yield
        finally:
            stop.set()
        for worker in working:
            worker.result()


@contextmanager
def own_cluster(configuration: str = "", under: Path | None = None) -> Iterator[Cluster]:
    """A PostgreSQL that may be killed, with a migrated database `ledger`; the operating system survives."""
    need_postgresql()
    cluster = Cluster.create(f"fsync = off\n{configuration}", under or in_memory())
    try:
        database = Database(cluster.create_database("ledger"))
        upgrade(database)
        database.dispose()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Service]:
    """One service for all tests of a module, each with populations of its own."""
    with serving(tmp_path_factory.mktemp("service"), module_database_url) as service:
        yield service


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    """The module's service, alive and mended, with a new journal."""
    running.journal = Journal()
    running.breaks()
    assert running.server.process is not None
    if running.server.process.poll() is not None:
        running.server.start()
    yield running
    running.breaks()


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[list[LiveServer]]:
    """Two servers on one database, which is sound afterwards."""
    servers = [LiveServer(tmp_path_factory.mktemp("replica"), module_database_url) for _ in range(REPLICAS)]
    with started(*servers):
        yield servers
    is_sound(module_database_url)
