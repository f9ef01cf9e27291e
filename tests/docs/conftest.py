"""One service for all pages that need one on SQLite: each of them has an organisation of its own."""

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from tests import postgres
from tests.databases import need_postgresql
from tests.docs.markdown import ROOT
from tests.docs.operator_shell import DATABASE, OperatorShell, made
from tests.fork_server import service_server
from tests.identity_provider import IdentityProvider, identity_provider
from tests.ledgers import new_signing_key
from tests.servers import LiveServer
from tests.workloads import issuer_of, issuers_file


@pytest.fixture(scope="session")
def cluster() -> Iterator[IdentityProvider]:
    """A cluster whose workloads the service knows by its tokens, those of the organisation `hospital`."""
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory, cluster: IdentityProvider) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("server")
    issuers = issuers_file(folder, issuer_of(cluster))
    with LiveServer(folder, environment={"EPSILON_LEDGER_WORKLOAD_ISSUERS_FILE": issuers}) as server:
        yield server


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorShell]:
    """A hospital with a population, a budget and both keys; its database's role is an ordinary one."""
    need_postgresql()
    folder = tmp_path_factory.mktemp("shell")
    cluster = postgres.shared()
    whole = make_url(cluster.create_database(DATABASE, postgres.TEMPLATE))
    (folder / "database-password").write_text(cluster.password)
    (folder / "examples").symlink_to(ROOT / "examples")
    new_signing_key(folder)[1].rename(folder / "signing.pub")
    url = whole._replace(password=None).render_as_string()
    files = {"DATABASE_PASSWORD_FILE": "database-password", "SIGNING_KEY_FILE": "signing.pem"}
    server = LiveServer(folder, whole.render_as_string(hide_password=False))
    for role in ("admin", "privacy_officer"):
        server.key(role)
    server.database_url = url
    server.environment |= {f"EPSILON_LEDGER_{setting}": str(folder / name) for setting, name in files.items()}
    with server:
        shell = OperatorShell(folder, server, cluster, service_server().write_environment(folder / "environment"))
        limit = {"epsilon": 8.0, "delta": 1e-5}
        unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
        budget = {"name": "icu-team", "parent": "mimic", "limit": limit | {"epsilon": 3.0}}
        with shell.admin as http:
            made(http.post("/v1/populations", json={"name": "mimic", "limit": limit, **unit}))
            made(http.post("/v1/budgets", json=budget))
        yield shell
    for name in (DATABASE, "ledger_restored", "ledger_before", "ledger_moved", "ledger_scratch"):
        cluster.drop_database(name)
