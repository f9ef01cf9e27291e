"""What a container would run, as a process of this machine: with its folders, names and ports."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests import postgres
from tests.deploy.manifests import KUBERNETES
from tests.fork_server import service_server
from tests.packaging.dockerfile import ROOT
from tests.packaging.environments import free_port, wait_until_ready
from tests.postgres_binaries import binaries

PASSWORD = 'it\'s a "password"\n'


@dataclass
class Machine:
    """A database that the image's own script made, of a role of its name; secrets; a port in place of 8000."""

    folder: Path
    name: str
    port: int = field(default_factory=free_port)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "service.log").read_text()

    def here(self, text: str) -> str:
        """What a container is told, with the names of this machine."""
        text = re.sub(r"/run/secrets/(epsilon-ledger/)?", f"{self.folder}/secrets/", text)
        address = f"{self.name}@127.0.0.1:{postgres.shared().port}/{self.name}"
        return re.sub(r"ledger@\w+:5432/ledger", address, text).replace("8000", str(self.port))

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "EPSILON_LEDGER_"))}
        cluster = postgres.shared()
        there = {"PGHOST": "127.0.0.1", "PGPORT": str(cluster.port), "PGPASSWORD": cluster.password}
        path = [str(self.folder / "programs" / "bin"), str(binaries()), kept["PATH"]]
        return kept | there | {"PATH": os.pathsep.join(path)} | {k: self.here(v) for k, v in variables.items()}

    def run(
        self, command: Sequence[str | Path], variables: dict[str, str], *, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must have this status."""
        done = subprocess.run(
            [self.here(str(word)) for word in command],
            cwd=self.folder,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def serve(self, command: Sequence[str], variables: dict[str, str]) -> None:
        """Start a replica, and wait until it is ready."""
        with (self.folder / "service.log").open("ab") as log:
            words = [self.here(word) for word in command]
            process = subprocess.Popen(words, cwd=self.folder, env=self.environment(variables), stdout=log, stderr=log)
        self.started.append(process)
        wait_until_ready(self.port, process)

    def stop(self) -> list[int]:
        """End all replicas as an engine does, and return their statuses."""
        for process in self.started:
            process.send_signal(signal.SIGTERM)
        found = [process.wait(timeout=30) for process in self.started]
        self.started.clear()
        return found

    def status(self, path: str) -> int:
        """What a probe is answered."""
        return httpx2.get(self.url + path, trust_env=False, timeout=10).status_code


def first_start(machine: Machine) -> None:
    """Run what PostgreSQL's image runs at its first start; the tests' own superuser has the name of the role."""
    script = (KUBERNETES / "trial" / "create-ledger.sh").read_text()
    for old in ("ROLE ledger ", "DATABASE ledger OWNER ledger ", "DATABASE ledger_scratch OWNER ledger "):
        assert old in script
        script = script.replace(old, old.replace("ledger", machine.name))
    script = script.replace("--username postgres", f"--username {postgres.ADMIN}")
    machine.run(["sh", "-c", script], {"LEDGER_PASSWORD_FILE": "/run/secrets/database-password"})


@contextmanager
def new_machine(folder: Path, name: str) -> Iterator[Machine]:
    """A machine with its secrets and its database, after the database's first start."""
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "database-password").write_text(PASSWORD)
    subprocess.run([ROOT / "deploy" / "secrets.sh", secrets], check=True, capture_output=True)
    service_server().write_environment(folder / "programs")
    machine, cluster = Machine(folder, name), postgres.shared()
    try:
        first_start(machine)
        yield machine
    finally:
        machine.stop()
        for database in (name, f"{name}_scratch"):
            cluster.drop_database(database)
        cluster.execute(f"DROP ROLE {name}")
