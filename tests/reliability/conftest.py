"""What the tests of reliability share: real servers, some of which can be broken on purpose."""

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.ledger.permissions import Role
from tests.conftest import LiveServer, need_postgresql, new_database
from tests.open_databases import is_sound, migrate, open_database
from tests.polling import await_true
from tests.postgres import Cluster, in_memory
from tests.reliability.clients import Trainer, open_budget
from tests.reliability.history import Journal, check

ROUNDS = int(os.environ.get("RELIABILITY_ROUNDS", "1"))
"""How long the tests run; one round in `make test`."""

LONG = ROUNDS > 1
BROKEN = "tests.reliability.broken_server"
_numbers = itertools.count()


@dataclass
class Service:
    """A server process, the file that says when it dies, and what its clients asked."""

    server: LiveServer
    death: Path
    journal: Journal = field(default_factory=Journal)

    def dies(self, where: str, writes: int) -> None:
        """Let it end in one of its next writes, as `broken_server` explains."""
        fresh = self.death.with_suffix(".new")
        fresh.write_text(f"{where} {writes}")
        fresh.replace(self.death)

    def restart(self) -> None:
        """Kill the server, as a power cut would, and start it again."""
        self.server.kill()
        self.server.start()

    def open_budget(self, epsilon: float) -> str:
        """A population of its own and a budget; returns the budget's path."""
        with self.server.client("admin") as http:
            return open_budget(http, f"population{next(_numbers)}", epsilon)

    def await_answers(self, more: int) -> None:
        """Wait until so many more requests of clients at work were answered."""
        wanted = self.journal.answered + more
        await_true(lambda: self.journal.answered >= wanted, self.server.log)

    def check(self) -> None:
        """Prove the ledger against the journal."""
        with open_database(self.server.database_url) as database:
            check(self.journal, database)


@contextmanager
def started(*servers: LiveServer) -> Iterator[None]:
    """Servers that run, whose clients have their keys; they are stopped at the end, if they still run."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        for role in Role:
            servers[0].key(role)
        for server in servers:
            server.keys = servers[0].keys
        yield


@contextmanager
def serving(folder: Path, database_url: str) -> Iterator[Service]:
    """A service that can be killed within a write, on a database of its own."""
    death = folder / "death"
    environment = {"DEATH": str(death), "EPSILON_LEDGER_WEBHOOKS_ALLOW_PRIVATE": "true"}
    server = LiveServer(folder, database_url, module=BROKEN, environment=environment)
    with started(server):
        yield Service(server, death)


@contextmanager
def at_work(service: Service, clients: int) -> Iterator[None]:
    """Clients take steps under one budget, larger than they can spend, meanwhile; none of them may fail."""
    budget = service.open_budget(epsilon=50.0)
    stop = threading.Event()

    def work(number: int) -> None:
        with service.server.client("trainer") as http:
            trainer = Trainer(http, service.journal, number).register(budget)
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
        migrate(cluster.create_database("ledger"))
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Service]:
    """One service for all tests of a module, each with populations of its own."""
    with serving(tmp_path_factory.mktemp("service"), module_database_url) as service:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    """The module's service, alive, with a new journal."""
    running.journal = Journal()
    running.death.unlink(missing_ok=True)
    if not running.server.is_alive:
        running.server.start()
    return running


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, database_kind: str) -> Iterator[list[LiveServer]]:
    """Two servers on one database, which is sound afterwards."""
    with new_database(database_kind, tmp_path_factory.mktemp("replicas")) as url:
        servers = [LiveServer(tmp_path_factory.mktemp("replica"), url) for _ in range(2)]
        with started(*servers):
            yield servers
        is_sound(url)
