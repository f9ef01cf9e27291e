"""What the compose file and the manifests start, run once as processes: commands, variables, probes and backups."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import postgres
from tests.databases import need_postgresql
from tests.deploy.machine import Machine, new_machine
from tests.deploy.manifests import KUBERNETES, Document, Pod, pods, rendered, variables_of
from tests.packaging.dockerfile import ROOT

TRY = ROOT / "deploy" / "try.sh"
COMPOSE_FOLDER = ROOT / "deploy" / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((COMPOSE_FOLDER / "compose.yaml").read_text())["services"]
CREATE_KEY = ["epsilon-ledger", "keys", "create", "--org", "default", "--role", "admin", "--json"]
ENGINE = """#!/bin/sh
# Stands for `docker compose`: exec -T SERVICE COMMAND...
[ "$1 $2" = "exec -T" ] || exit 3
shift 3
for word in "$@"; do
    word=$(printf %s "$word" | sed -e 'NAMES')
    set -- "$@" "$word"
    shift
done
exec "$@"
"""

pytestmark = pytest.mark.postgresql


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    need_postgresql()
    with new_machine(tmp_path, f"started_{request.node.name.split('_')[1]}") as opened:
        yield opened


def test_compose_processes_start_charge_restart_and_back_up(machine: Machine) -> None:
    database, migration, service = (SERVICES[name] for name in ("database", "migration", "service"))
    machine.run(database["healthcheck"]["test"][1:], {})
    machine.run(migration["command"], migration["environment"])
    [(bypasses,)] = postgres.shared().execute(
        f"SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = '{machine.name}'"  # noqa: S608 - a test's own name
    )
    assert not bypasses
    given = service["environment"]
    machine.serve(service["command"], given)
    machine.run(service["healthcheck"]["test"][1:], {})
    assert len(re.findall(r"https?://\S+/sign-in/link#lnk_\S+", machine.log)) == 1
    key = json.loads(machine.run(CREATE_KEY, given).stdout)["key"]
    assert machine.run([TRY, "service", machine.url, key], {}).stdout.count("answers") == 7

    assert machine.stop() == [0]
    machine.run(service["healthcheck"]["test"][1:], {}, status=1)
    machine.serve(service["command"], given)
    machine.run(service["healthcheck"]["test"][1:], {})
    assert machine.run([TRY, "service", machine.url, key], {}).stdout.count("answers") == 7

    names = f"s#username=postgres#username={postgres.ADMIN}#; s#owner=ledger#owner={machine.name}#"
    names += f"; s#^ledger$#{machine.name}#; s#^\\(--dbname=\\)\\?ledger_scratch$#\\1{machine.name}_scratch#"
    names += "".join(f"; s#{old}#{machine.here(old)}#" for old in ("/run/secrets/", "ledger@database:5432/ledger"))
    engine = machine.folder / "engine"
    engine.write_text(ENGINE.replace("NAMES", names))
    engine.chmod(0o755)
    backup = {**given, "COMPOSE": str(engine)}
    said = machine.run([COMPOSE_FOLDER / "backup.sh", machine.folder / "backups"], backup).stdout
    assert "every curve and every chain agrees. The ledger has 0 more decisions." in said
    assert [path.name[:7] for path in (machine.folder / "backups").iterdir()] == ["ledger-"]
    assert (machine.folder / "backups").stat().st_mode & 0o077 == 0


def _container(among: list[Pod], kind: str, component: str) -> Document:
    [pod] = [
        pod for pod in among if (pod.owner["kind"], pod.labels.get("app.kubernetes.io/component")) == (kind, component)
    ]
    return pod.containers[-1]


def test_kubernetes_processes_migrate_serve_verify_and_back_up(machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("secrets"))
    own = tmp_path / "kubernetes" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [../trial]\ncomponents: [../backup]\n")
    made = rendered(tmp_path, "own")
    among = pods(made)
    [serving] = [pod for pod in among if pod.owner["kind"] == "Deployment"]
    waiting, service = serving.containers
    migration = _container(among, "Job", "migration")
    given = variables_of(made, service)
    check = [*migration["command"], "--check"]
    assert " ".join(check) in waiting["command"][2]

    machine.run(check, given, status=1)
    machine.run(migration["command"], variables_of(made, migration))
    machine.run(waiting["command"], variables_of(made, waiting))
    machine.serve(service["command"], given)
    asked = {service[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert {path: machine.status(path) for path in asked} == {"/healthz": 200, "/readyz": 200}
    key = json.loads(machine.run(CREATE_KEY, given).stdout)["key"]
    machine.run([TRY, "service", machine.url, key], {})
    verification = _container(among, "CronJob", "verification")
    assert "every curve agrees" in machine.run(verification["command"], variables_of(made, verification)).stdout

    [job] = [pod for pod in among if pod.labels.get("app.kubernetes.io/component") == "backup"]
    dump, comparison = job.containers
    folder = tmp_path / "backups"
    folder.mkdir()
    for day in ("2026-01-01", "2026-01-08", "2026-01-15"):
        (folder / f"ledger-{day}.dump").write_text("older")
    script = KUBERNETES / "backup" / "dump.sh"
    backup = variables_of(made, dump) | {"BACKUP_FOLDER": str(folder), "BACKUPS_KEPT": "3"}
    for _ in range(2):
        machine.run(["sh", script], backup)
        assert sorted(path.name for path in folder.iterdir())[:2] == [
            "ledger-2026-01-08.dump",
            "ledger-2026-01-15.dump",
        ]
        assert len(list(folder.iterdir())) == 3
    compared = machine.run(comparison["command"], variables_of(made, comparison)).stdout
    assert "every curve and every chain agrees. The ledger has 0 more decisions." in compared

    missing = backup["EPSILON_LEDGER_DATABASE_URL"].replace("5432/", "5432/no_")
    before = sorted(folder.iterdir())
    machine.run(["sh", script], backup | {"EPSILON_LEDGER_DATABASE_URL": missing, "BACKUPS_KEPT": "1"}, status=1)
    assert sorted(path for path in folder.iterdir() if path.name != "new.dump") == before
