"""What the compose file and the manifests start, run once as processes: commands, variables, probes and backups."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import postgres
from tests.databases import need_postgresql
from tests.deploy.manifests import KUBERNETES
from tests.deploy.test_kubernetes import pods, rendered, variables_of
from tests.fork_server import service_server
from tests.packaging.dockerfile import ROOT
from tests.polling import await_true, status_of
from tests.postgres import free_port
from tests.postgres_binaries import binaries
from tests.programs import run

TRY = ROOT / "deploy" / "try.sh"
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())["services"]
CREATE_KEY = ["epsilon-ledger", "keys", "create", "--org", "default", "--role", "admin", "--json"]
pytestmark = pytest.mark.postgresql


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
        words = [self.here(str(word)) for word in command]
        return run(words, status=status, cwd=self.folder, env=self.environment(variables))

    def serve(self, command: Sequence[str], variables: dict[str, str]) -> str:
        """Start a replica, wait until it is ready, and return what it said."""
        output = self.folder / "service.log"
        with output.open("wb") as log:
            words = [self.here(word) for word in command]
            process = subprocess.Popen(words, cwd=self.folder, env=self.environment(variables), stdout=log, stderr=log)
        self.started.append(process)
        await_true(lambda: self.status("/readyz") == 200, output.read_text)
        return output.read_text()

    def stop(self) -> list[int]:
        """End all replicas as an engine does, and return their statuses."""
        for process in self.started:
            process.terminate()
        found = [process.wait(timeout=30) for process in self.started]
        self.started.clear()
        return found

    def status(self, path: str) -> int:
        """What a probe is answered; 0: nothing listens."""
        return status_of(self.url + path)


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """A machine with its secrets and its database, after the database's first start."""
    need_postgresql()
    secrets, name = tmp_path / "secrets", f"started_{request.node.name.split('_')[1]}"
    secrets.mkdir()
    (secrets / "database-password").write_text(PASSWORD)
    run([ROOT / "deploy" / "secrets.sh", secrets])
    service_server().write_environment(tmp_path / "programs")
    opened, cluster = Machine(tmp_path, name), postgres.shared()
    try:
        # Run what PostgreSQL's image runs at its first start; the tests' own superuser has the name of the role.
        script = (KUBERNETES / "trial" / "create-ledger.sh").read_text()
        for old in ("ROLE ledger ", "DATABASE ledger OWNER ledger ", "DATABASE ledger_scratch OWNER ledger "):
            assert old in script
            script = script.replace(old, old.replace("ledger", opened.name))
        script = script.replace("--username postgres", f"--username {postgres.ADMIN}")
        opened.run(["sh", "-c", script], {"LEDGER_PASSWORD_FILE": "/run/secrets/database-password"})
        yield opened
    finally:
        opened.stop()
        for database in (name, f"{name}_scratch"):
            cluster.drop_database(database)
        cluster.execute(f"DROP ROLE {name}")


def test_compose_processes_start_charge_and_stop(machine: Machine) -> None:
    database, migration, service = (SERVICES[name] for name in ("database", "migration", "service"))
    machine.run(database["healthcheck"]["test"][1:], {})
    machine.run(migration["command"], migration["environment"])
    [(bypasses,)] = postgres.shared().execute(
        f"SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = '{machine.name}'"  # noqa: S608 - a test's own name
    )
    assert not bypasses
    given = service["environment"]
    said = machine.serve(service["command"], given)
    machine.run(service["healthcheck"]["test"][1:], {})
    assert len(re.findall(r"https?://\S+/sign-in/link#lnk_\S+", said)) == 1
    key = json.loads(machine.run(CREATE_KEY, given).stdout)["key"]
    assert machine.run([TRY, "service", machine.url, key], {}).stdout.count("answers") == 7

    assert machine.stop() == [0]
    machine.run(service["healthcheck"]["test"][1:], {}, status=1)


@pytest.mark.soak
def test_kubernetes_processes_migrate_and_back_up(machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("secrets"))
    own = tmp_path / "kubernetes" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [../trial]\ncomponents: [../backup]\n")
    made = rendered(tmp_path, "own")
    by_component = {pod.labels.get("app.kubernetes.io/component"): pod for pod in pods(made)}
    waiting, service = by_component["service"].containers
    [migration] = by_component["migration"].containers
    check = [*migration["command"], "--check"]
    assert " ".join(check) in waiting["command"][2]
    machine.run(check, variables_of(made, service), status=1)
    machine.run(migration["command"], variables_of(made, migration))
    machine.run(waiting["command"], variables_of(made, waiting))
    given = variables_of(made, service)
    machine.serve(service["command"], given)
    key = json.loads(machine.run(CREATE_KEY, given).stdout)["key"]
    machine.run([TRY, "service", machine.url, key], {})
    [verification] = by_component["verification"].containers
    assert "every curve agrees" in machine.run(verification["command"], variables_of(made, verification)).stdout

    dump, comparison = by_component["backup"].containers
    folder, script = tmp_path / "backups", KUBERNETES / "backup" / "dump.sh"
    folder.mkdir()
    for day in ("01", "08", "15"):
        (folder / f"ledger-2026-01-{day}.dump").write_text("older")
    backup = variables_of(made, dump) | {"BACKUP_FOLDER": str(folder), "BACKUPS_KEPT": "3"}
    for _ in range(2):
        machine.run(["sh", script], backup)
        oldest, second, _ = sorted(path.name for path in folder.iterdir())
        assert (oldest, second) == ("ledger-2026-01-08.dump", "ledger-2026-01-15.dump")
    compared = machine.run(comparison["command"], variables_of(made, comparison)).stdout
    assert "every curve and every chain agrees. The ledger has 0 more decisions." in compared
    missing = backup["EPSILON_LEDGER_DATABASE_URL"].replace("5432/", "5432/no_")
    before = sorted(folder.iterdir())
    machine.run(["sh", script], backup | {"EPSILON_LEDGER_DATABASE_URL": missing, "BACKUPS_KEPT": "1"}, status=1)
    assert sorted(path for path in folder.iterdir() if path.name != "new.dump") == before
