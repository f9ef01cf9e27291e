"""A Citus cluster on this machine: a coordinator and workers, each a server of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.postgres import Cluster

DATABASE: Final = "ledger"
WORKERS: Final = 2
SHARDS: Final = 8

CONFIGURATION: Final = f"""shared_preload_libraries = 'citus'
citus.node_conninfo = 'sslmode=prefer'
citus.node_connection_timeout = 5s
citus.shard_count = {SHARDS}
"""


_PORT: Final = (
    "SELECT node.nodeport FROM pg_dist_placement AS part JOIN pg_dist_node AS node USING (groupid)"
    " WHERE shardid = get_shard_id_for_distribution_column('organisations', %s::bigint) AND noderole = 'primary'"
)


@dataclass(frozen=True)
class CitusCluster:
    """A running cluster.

    Args:
        coordinator: the server that the service connects to.
        workers: the servers with the rows.
    """

    coordinator: Cluster
    workers: list[Cluster]

    @property
    def url(self) -> str:
        """The URL of the database of the service's role."""
        return self.coordinator.url(DATABASE)

    @property
    def servers(self) -> dict[str, Cluster]:
        """All servers by name."""
        workers = {f"worker {place}": worker for place, worker in enumerate(self.workers, 1)}
        return {"coordinator": self.coordinator, **workers}

    def create_database(self, name: str = DATABASE) -> str:
        """Make an empty database with the extension on every node; return the coordinator's URL."""
        for server in self.servers.values():
            server.create_database(name)
            server.execute("CREATE EXTENSION citus", name)
        host = f"'127.0.0.1', {self.coordinator.port}"
        self.coordinator.execute(f"SELECT citus_set_coordinator_host({host})", name)
        for worker in self.workers:
            self.coordinator.execute(f"SELECT citus_add_node('127.0.0.1', {worker.port})", name)
        return self.coordinator.url(name)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Execute a statement on the coordinator as a superuser."""
        return self.coordinator.execute(statement, DATABASE)

    def worker_of(self, organisation: str) -> str:
        """Find the worker that has the rows of an organisation, given by its name."""
        with self.coordinator.connect(DATABASE) as connection:
            [number] = (
                connection.execute("SELECT id FROM organisations WHERE name = %s", [organisation]).fetchone() or ()
            )
            [port] = connection.execute(_PORT, [number]).fetchone() or ()
        return next(name for name, server in self.servers.items() if server.port == port)


@contextmanager
def citus_cluster(programs: Path) -> Iterator[CitusCluster]:
    """Start a cluster with an empty database, and remove it at the end."""
    with ExitStack() as stack:
        servers = []
        for _ in range(1 + WORKERS):
            server = Cluster.create(CONFIGURATION, programs=programs)
            stack.callback(server.remove)
            servers.append(server)
        cluster = CitusCluster(servers[0], servers[1:])
        cluster.create_database()
        yield cluster
