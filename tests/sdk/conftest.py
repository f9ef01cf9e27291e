"""Clients: of a ledger in memory, and of the real service in this process."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epsilon_ledger import LedgerClient, Run
from tests.conftest import open_ledger
from tests.sdk.both_clients import CLIENTS, Driven, OpenClient
from tests.sdk.fake_ledger import RUN_ID, FakeLedger, FakeRun
from tests.sdk.hostile_server import HostileServer
from tests.sdk.simulation import LedgerWire, Simulation, simulated
from tests.sdk.wire import KEY, URL, Clock, with_policy

# Read when MLflow is imported: tests tell nobody that they ran.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(ledger: FakeLedger, clock: Clock) -> LedgerClient:
    """A client whose jitter takes the longest pause it may."""
    made = LedgerClient(URL, KEY, transport=ledger)
    return with_policy(made, clock=lambda: clock.seconds, sleep=clock.sleep, jitter=lambda _low, high: high)


@pytest.fixture
def run(client: LedgerClient, ledger: FakeLedger) -> Run:
    made = client.get_run(RUN_ID)
    ledger.requests.clear()
    return made


@pytest.fixture
def fake_run() -> FakeRun:
    return FakeRun()


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerWire]:
    """The real service in this process, for the tests of a module."""
    with open_ledger(tmp_path_factory.mktemp("ledger")) as ledger:
        yield LedgerWire(ledger=ledger)


@pytest.fixture(scope="module")
def admin(wire: LedgerWire) -> LedgerClient:
    return wire.client("admin")


@pytest.fixture(scope="module")
def trainer(wire: LedgerWire) -> LedgerClient:
    return wire.client()


@pytest.fixture
def simulation(tmp_path: Path) -> Iterator[Simulation]:
    """A budget of the real service, a wire that fails on demand, and a clock that stands."""
    with simulated(tmp_path) as made:
        yield made


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as served:
        yield served


@pytest.fixture(params=CLIENTS)
def open_client(request: pytest.FixtureRequest) -> Iterator[OpenClient]:
    """Opens clients of either kind that do not wait between their attempts."""

    async def nap(_: float) -> None:
        pass

    def opened(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - of the client
        client = with_policy(request.param(*arguments, **named), sleep=lambda _: None, async_sleep=nap)
        return client if request.param is LedgerClient else Driven(client, runner)

    with asyncio.Runner() as runner:
        yield opened


@pytest.fixture
def socket_client(server: HostileServer, open_client: OpenClient) -> Iterator[LedgerClient]:
    with open_client(server.url, KEY, max_attempts=3) as made:
        yield made


@pytest.fixture
def socket_run(socket_client: LedgerClient) -> Run:
    return socket_client.get_run(RUN_ID)


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
