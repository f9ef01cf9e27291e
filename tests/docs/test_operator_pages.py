"""The pages of operators: which of their commands are not run and why, and what a machine can tell of the others."""

import re
import shlex

import typer
from typer.main import get_command

from app.cli import cli
from app.configuration.settings import known_variables
from tests.deploy.manifests import KUBERNETES, documents
from tests.deploy.test_compose import SERVICES
from tests.docs.markdown import ROOT, blocks
from tests.docs.test_reader_pages import NOT_RUN as READERS_NOT_RUN
from tests.docs.test_reader_pages import READER_SCENES

PAGES = (
    "operations/databases",
    "operations/openid-connect",
    "operations/maintenance",
    "operations/runbook",
    "operations/certificates",
    "operations/deployment",
    "operations/high-availability",
    "how-to/manage-keys",
    "how-to/change-limits",
    *sorted({page for page, _ in READER_SCENES}),
)
BLOCKS = [block for page in PAGES for block in blocks(page)]

CLUSTER = "needs a Kubernetes cluster; tests/deploy runs the commands of the same manifests as processes"
ENGINE = "needs a container engine; tests/deploy runs the commands of the same file as processes"
SYSTEMD = "needs systemd; tests/deploy/test_compose.py reads both units"
NODES = "needs three machines of Debian; `make failover` starts the same programs with the same files"
NOT_RUN = READERS_NOT_RUN | {
    'epsilon-ledger people remove oidc:9f3c… --org hospital --reason "Left the hospital."': "tests/service/test_cli.py",
    "CREATE ROLE ledger LOGIN PASSWORD '…';": "tests/deploy/test_started_processes.py runs a script that has both",
    "export EPSILON_LEDGER_DATABASE_URL=postgresql://ledger@db.internal/ledger": "tests/reliability serves PostgreSQL",
    "apt-get install -y patroni etcd-server etcd-client pgbouncer postgresql-15 gettext-base": NODES,
    "patronictl -c /etc/patroni/config.yml list": NODES,
    "EPSILON_LEDGER_DATABASE_URL=postgresql://ledger@10.0.0.11/ledger epsilon-ledger migrate": NODES,
    "timedatectl show --property=NTPSynchronized": SYSTEMD,
    "systemctl reload haproxy": f"{SYSTEMD}; tests/reliability/test_proxy_certificate.py sends its signal",
    'psql --host=db --port=6432 --dbname=pgbouncer --command "SHOW POOLS"': (
        "tests/reliability/test_pooling.py asks a PgBouncer with the file that is delivered"
    ),
    "openssl s_client -connect ledger.example:443 -servername ledger.example"
    " < /dev/null 2> /dev/null | openssl x509 -noout -subject -enddate": (
        "needs a proxy; the scene types it for the database, and tests/observability/test_exporters.py asks a proxy"
    ),
    "docker build --tag epsilon-ledger .": f"{ENGINE}; tests/packaging/test_wheel.py calls what the image calls",
    "docker compose --file deploy/compose/compose.yaml build": ENGINE,
    "docker compose --file deploy/compose/compose.yaml logs service": ENGINE,
    "make compose": ENGINE,
    "deploy/compose/backup.sh /var/backups/epsilon-ledger": ENGINE,
    "cp deploy/compose/epsilon-ledger-backup.service deploy/compose/epsilon-ledger-backup.timer /etc/systemd/system/": (
        SYSTEMD
    ),
    "kubectl --namespace ledger scale deployment/epsilon-ledger --replicas=0": CLUSTER,
    "kubectl --namespace ledger scale deployment/epsilon-ledger --replicas=3": f"{CLUSTER}, and a container engine",
    "kubectl create namespace ledger": CLUSTER,
    "kubectl --namespace ledger exec deployment/epsilon-ledger -- epsilon-ledger sign-in-link --org default": CLUSTER,
    "kubectl apply --kustomize deploy/kubernetes/trial": CLUSTER,
}
"""By a block's first line: why it is not run."""


def _require_command(words: list[str]) -> None:
    """Fail unless the command line takes these words; nothing is run."""
    name, *arguments = words
    assert name == "epsilon-ledger", words
    command = get_command(cli)
    with command.make_context(name, [], resilient_parsing=True) as context:
        while isinstance(command, typer.core.TyperGroup):
            _, found, arguments = command.resolve_command(context, arguments)
            assert found is not None, words
            command = found
        with command.make_context(name, arguments, parent=context):
            pass


def test_block_that_is_not_run_names_files_and_objects_that_exist() -> None:
    text = "\n".join(block.text for block in BLOCKS if block.first_line in NOT_RUN)
    for words in re.findall(r"(?m)(?:--|exec service) (epsilon-ledger .*)$", text):
        _require_command(shlex.split(words))
    kinds = {
        (document["kind"].lower(), document["metadata"]["name"])
        for file in sorted(KUBERNETES.rglob("*.yaml"))
        for document in documents(file.read_text())
        if file.parent.name in {"base", "trial"} and file.name != "kustomization.yaml"
    }
    assert set(re.findall(r"\b(deployment|job|service)/(\S+)", text)) <= kinds
    for file, command in re.findall(r"(?m)^docker compose --file (\S+) (.*)$", text):
        assert (ROOT / file).exists()
        assert set(re.findall(r"(?:exec|stop) (\w+)", command)) <= SERVICES.keys()
    for folder in re.findall(r"--kustomize (deploy\S+)", text):
        assert (ROOT / folder / "kustomization.yaml").exists()


def test_every_setting_has_its_row() -> None:
    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = set(re.findall(r"(?m)^\| `(EPSILON_LEDGER_[A-Z_]+)` \|", text))
    assert rows == set(known_variables())


def test_pages_of_operators_are_short() -> None:
    for page in PAGES:
        assert len((ROOT / "docs" / f"{page}.md").read_text().splitlines()) <= 360
