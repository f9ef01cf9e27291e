"""Clients: of a ledger in memory, and of the real service in this process."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import httpx2
import pytest

from epsilon_ledger import LedgerClient, Run
from tests.conftest import Ledger, open_ledger
from tests.sdk.fake_ledger import KEY, RUN_ID, URL, FakeLedger
from tests.sdk.fake_runs import FakeRun
from tests.sdk.simulation import Simulation, Wire, clock_of_all, new_world

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
def whole_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """The real service in this process, for the tests of a module."""
    with open_ledger(tmp_path_factory.mktemp("ledger")) as opened:
        yield opened


@pytest.fixture(scope="module")
def wire(whole_ledger: Ledger) -> Wire:
    """What leads to the service in this process."""
    return Wire(whole_ledger)


@pytest.fixture
def admin(wire: Wire) -> Iterator[LedgerClient]:
    """A client of the real service, with the key of an admin."""
    with wire.client("admin") as made:
        yield made


@pytest.fixture
def trainer(wire: Wire) -> Iterator[LedgerClient]:
    """A client of the real service, with the key of a trainer."""
    with wire.client("trainer") as made:
        yield made


@pytest.fixture
def simulation(whole_ledger: Ledger) -> Iterator[Simulation]:
    """An organisation of the real service, with a wire that fails on demand and a clock that stands."""
    with clock_of_all() as clock:
        made = new_world(whole_ledger, clock)
        yield made
        made.close()
