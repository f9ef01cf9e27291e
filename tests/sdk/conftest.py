"""Clients: of a ledger in memory, and of the real service in this process."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest

from epsilon_ledger import LedgerClient, Run
from tests.conftest import open_ledger
from tests.sdk.fake_ledger import KEY, RUN_ID, URL, FakeLedger
from tests.sdk.fake_runs import FakeRun
from tests.sdk.simulation import Simulation, Wire, simulated

# Read when MLflow is imported: tests tell nobody that they ran.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@dataclass
class Clock:
    """Time that passes only where somebody sleeps; jitter takes the longest pause it may."""

    now: float = 0.0
    naps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(ledger: FakeLedger, clock: Clock) -> Iterator[LedgerClient]:
    with LedgerClient(URL, KEY, transport=httpx2.MockTransport(ledger)) as made:
        transport = made._transport
        transport._retry_policy = replace(
            transport._retry_policy, clock=clock, sleep=clock.sleep, jitter=lambda _low, high: high
        )
        yield made


@pytest.fixture
def run(client: LedgerClient, ledger: FakeLedger) -> Run:
    made = client.get_run(RUN_ID)
    ledger.requests.clear()
    return made


@pytest.fixture
def fake_run() -> FakeRun:
    return FakeRun()


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """The real service in this process, for the tests of a module."""
    with open_ledger(tmp_path_factory.mktemp("ledger")) as ledger:
        yield Wire(ledger)


@pytest.fixture(scope="module")
def admin(wire: Wire) -> Iterator[LedgerClient]:
    with wire.client("admin") as made:
        yield made


@pytest.fixture(scope="module")
def trainer(wire: Wire) -> Iterator[LedgerClient]:
    with wire.client("trainer") as made:
        yield made


@pytest.fixture
def simulation(tmp_path: Path) -> Iterator[Simulation]:
    """A budget of the real service, a wire that fails on demand, and a clock that stands."""
    with simulated(tmp_path) as made:
        yield made
