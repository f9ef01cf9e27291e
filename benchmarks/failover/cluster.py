"""Three database nodes and a service host, run with the files of deploy/high-availability."""

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import IO, Final

import httpx2

from benchmarks.failover.network import NETWORK, Host, network
from tests.postgres_binaries import binaries

FILES: Final = Path(__file__).parents[2] / "deploy" / "high-availability"
PACKAGES: Final = ("patroni", "etcd-server", "etcd-client", "haproxy", "pgbouncer", "postgresql")
"""Debian's, which the trial needs."""

PROGRAMS: Final = ("patroni", "patronictl", "etcd", "haproxy", "pgbouncer")
NODES: Final = tuple(Host(f"node{place}", f"10.231.77.{10 + place}") for place in (1, 2, 3))
SERVICE: Final = Host("service", "10.231.77.10")
REPLICA_PORTS: Final = (8001, 8002)
USER: Final = "postgres"
PATIENCE_SECONDS: Final = 180.0


class ProgramsMissingError(Exception):
    """Programs are not installed here."""


@dataclass
class Site:
    """The running whole.

    Args:
        folder: of data, logs and filled-in files.
        passwords: by the placeholder of the files.
    """

    folder: Path
    passwords: dict[str, str] = field(
        default_factory=lambda: {
            name: secrets.token_hex(12)
            for name in ("PATRONI_PASSWORD", "REPLICATION_PASSWORD", "REWIND_PASSWORD", "LEDGER_PASSWORD")
        }
    )
    _logs: list[IO[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The service behind HAProxy."""
        return f"http://{SERVICE.address}:8000"

    def database_url(self, node: Host) -> str:
        """The database of a node, past PgBouncer."""
        return f"postgresql://ledger:{self.passwords['LEDGER_PASSWORD']}@{node.address}:5432/ledger"

    def start_node(self, node: Host) -> None:
        """Start etcd, Patroni, which starts PostgreSQL, and PgBouncer."""
        settings = dict(
            line.split("=", 1)
            for line in self.fill("etcd.env", node).read_text().splitlines()
            if line and not line.startswith("#")
        )
        node.start("etcd", log=self._log(node, "etcd"), user=USER, environment=settings)
        node.start("patroni", str(self.fill("patroni.yaml", node)), log=self._log(node, "patroni"), user=USER)
        if self._userlist.exists():
            self.start_pool(node)

    def start_pool(self, node: Host) -> None:
        """Start PgBouncer."""
        node.start("pgbouncer", str(self.fill("pgbouncer.ini", node)), log=self._log(node, "pgbouncer"), user=USER)

    def start_service(self) -> None:
        """Create the database and its role, and start both replicas and HAProxy."""
        leader = self.await_health()["leader"]
        password = self.passwords["LEDGER_PASSWORD"]
        self._sql(leader, f"CREATE ROLE ledger LOGIN PASSWORD '{password}'")
        self._sql(leader, "CREATE DATABASE ledger OWNER ledger ENCODING 'UTF8' TEMPLATE template0")
        secret = self._sql(leader, "SELECT rolpassword FROM pg_authid WHERE rolname = 'ledger'")
        self._userlist.write_text(f'"ledger" "{secret.strip()}"\n')
        for node in NODES:
            self.start_pool(node)
        self.ledger("migrate", node=leader)
        url = f"postgresql://ledger:{password}@127.0.0.1:5000/ledger"
        for port in REPLICA_PORTS:
            SERVICE.start(
                *(sys.executable, "-m", "app", "serve", "--port", str(port)),
                log=self._log(SERVICE, f"replica{port}"),
                environment={
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "EPSILON_LEDGER_DATABASE_URL": url,
                    "EPSILON_LEDGER_DATABASE_POOL_MODE": "transaction",
                    "EPSILON_LEDGER_INIT_WHEN_EMPTY": "false",
                },
            )
        SERVICE.start(
            "haproxy", "-W", "-db", "-f", str(self.fill("haproxy.cfg", SERVICE)), log=self._log(SERVICE, "haproxy")
        )
        _await(lambda: _answers(f"{self.url}/readyz"), "the service is not ready")

    def ledger(self, *arguments: str, node: Host) -> str:
        """Run a command of `epsilon-ledger` on a node's database."""
        environment = os.environ | {"EPSILON_LEDGER_DATABASE_URL": self.database_url(node)}
        command = [sys.executable, "-m", "app", *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def await_health(self) -> dict[str, Host]:
        """Wait until every node sees the same leader, synchronous standby and replica; return the nodes by role."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (seen := [self._roles(node) for node in NODES]) != [seen[0]] * len(NODES) or len(seen[0]) < len(NODES):
            if time.monotonic() > until:
                raise TimeoutError(f"the cluster does not become healthy: {seen}")
            time.sleep(0.3)
        return {role: node for node in NODES for role, name in seen[0].items() if node.name == name}

    def _roles(self, node: Host) -> dict[str, str]:
        """Names of the healthy members by role, as one node sees them; one that was cut off sees the past."""
        try:
            reply = httpx2.get(f"http://{node.address}:8008/cluster", timeout=2, trust_env=False)
        except httpx2.TransportError:
            return {}
        members = reply.json()["members"]
        current = max(each.get("timeline", 0) for each in members)
        return {
            each["role"]: each["name"]
            for each in members
            if each["state"] in {"running", "streaming"} and each.get("timeline") == current
        }

    def switch_over(self) -> None:
        """Let an operator make the synchronous standby the leader."""
        nodes = self.await_health()
        leader, standby = nodes["leader"], nodes["sync_standby"]
        configuration = str(self.fill("patroni.yaml", leader))
        choice = ["--leader", leader.name, "--candidate", standby.name, "--force"]
        subprocess.run(
            leader.command(["patronictl", "-c", configuration, "switchover", *choice], USER),
            check=True,
            capture_output=True,
            cwd="/",
        )

    def postmaster(self, node: Host) -> int:
        """Process id of a node's PostgreSQL."""
        return int((self._data(node) / "postmaster.pid").read_text().split()[0])

    def fill(self, file: str, host: Host) -> Path:
        """Fill in the placeholders of a file for a host."""
        folder = self.folder / host.name
        values = {node.name.upper(): node.address for node in NODES} | {
            "NODE": host.name,
            "ADDRESS": host.address,
            "NETWORK": NETWORK,
            "ETCD_DATA": str(folder / "etcd"),
            "DATA": str(self._data(host)),
            "PGPASS": str(folder / "pgpass"),
            "SOCKETS": str(folder),
            "POSTGRESQL_BIN": str(binaries()),
            "USERLIST": str(self._userlist),
        }
        values |= {f"REPLICA{place}": f"127.0.0.1:{port}" for place, port in enumerate(REPLICA_PORTS, 1)}
        filled = folder / file
        folder.mkdir(exist_ok=True)
        filled.write_text(Template((FILES / file).read_text()).substitute(values | self.passwords))
        shutil.chown(folder, USER)
        return filled

    @property
    def _userlist(self) -> Path:
        return self.folder / "userlist.txt"

    def _data(self, host: Host) -> Path:
        return self.folder / host.name / "data"

    def _sql(self, node: Host, statement: str) -> str:
        psql = ["psql", "--no-psqlrc", "-At", "-h", str(self.folder / node.name), "-c", statement, "postgres"]
        return subprocess.run(node.command(psql, USER), check=True, capture_output=True, text=True, cwd="/").stdout

    def _log(self, host: Host, name: str) -> IO[bytes]:
        file = (self.folder / f"{host.name}-{name}.log").open("ab")
        self._logs.append(file)
        return file

    def close(self) -> None:
        """Close the logs."""
        for file in self._logs:
            file.close()


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Run everything for the block.

    Raises:
        ProgramsMissingError: packages are not installed.
        NamespacesMissingError: network namespaces cannot be made here.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise ProgramsMissingError(
            f"{', '.join(missing)} not found; as root: apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        )
    folder.chmod(0o755)
    with network([*NODES, SERVICE]):
        started = Site(folder)
        try:
            for node in NODES:
                started.start_node(node)
            started.start_service()
            yield started
        finally:
            started.close()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5, trust_env=False).status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def _await(condition: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(otherwise)
        time.sleep(0.3)
