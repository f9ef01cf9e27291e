"""One service for all pages that need one on SQLite: each of them has an organisation of its own."""

from collections.abc import Iterator

import pytest

from tests.databases import need_postgresql
from tests.docs.operator_shell import OperatorShell, operator_shell
from tests.identity_provider import IdentityProvider, identity_provider
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
    need_postgresql()
    with operator_shell(tmp_path_factory.mktemp("shell")) as opened:
        yield opened
