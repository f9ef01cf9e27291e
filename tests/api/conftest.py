"""A furnished ledger for a module or for a test, and a witness that compares every answer with the OpenAPI document."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import httpx2
import pytest

from tests.api.operations import check_answer
from tests.api.trainer import OnLedger, Trainer
from tests.conftest import SAMPLED, Furnish, Ledger, furnished, new_database, open_ledger
from tests.ledgers import nothing

LIMIT = {"epsilon": 1.0, "delta": 1e-5}
POPULATION = {"name": "people", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one", "limit": LIMIT}


@dataclass(frozen=True)
class SeededLedger(OnLedger):
    """A ledger with a population, a budget, a run that took one step and gave back a reservation, and a receiver."""

    ledger: Ledger
    population: str
    budget: str
    run: str
    reservation: str = ""
    key: str = ""
    proposal: str = ""
    receiver: str = ""
    delivery: str = ""
    experiment: str = ""
    verification: str = ""

    def ids(self) -> dict[str, str]:
        ids = {f"{each.name}_id": str(getattr(self, each.name)) for each in fields(self) if each.name != "ledger"}
        return ids | {"account_id": self.budget}

    def steps(self, role: str = "trainer", query: str = "", run: str = "", **body: Any) -> httpx2.Response:  # noqa: ANN401 - JSON is anything
        return self.ledger.post(f"/v1/runs/{run or self.run}/steps{query}", body, role)


def furnish(ledger: Ledger) -> SeededLedger:
    """Open a population and a budget, register a run, take a step, ask for alerts, declare a sweep, and verify."""

    def made(path: str, body: object = None, role: str = "admin") -> str:
        return str(ledger.post(f"/v1/{path}", body, role).json()["id"])

    population, budget, run = str(ledger.population()["id"]), str(ledger.budget()["id"]), ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"first_step": 0}, "trainer").status_code == 200
    reservation = made(f"runs/{run}/reservations", {"events": [{"event": SAMPLED, "count": 1}]}, "trainer")
    assert ledger.post(f"/v1/reservations/{reservation}/void", {}, "trainer").status_code == 200
    key = made("api-keys", {"role": "viewer"})
    proposal = str(ledger.set_limit(population, 3.5, "planner").json()["id"])
    receiver = made("receivers", {"url": "https://alerts.example/privacy"})
    sweep = {"name": "sweep", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    rest = made(f"receivers/{receiver}/test"), made("experiments", sweep), made("verifications")
    return SeededLedger(ledger, population, budget, run, reservation, key, proposal, receiver, *rest)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, database_kind: str) -> Iterator[SeededLedger]:
    """One seeded ledger for the tests of a module: for those that leave it as it is, or that add to it."""
    there: SeededLedger = furnished(database_kind, furnish)[0]
    folder = tmp_path_factory.mktemp("shared")
    with new_database(database_kind, folder, furnish=furnish) as url, open_ledger(folder, url) as ledger:
        yield replace(there, ledger=ledger)


@pytest.fixture
def furnishing(request: pytest.FixtureRequest, furnishing: Furnish | None) -> Furnish | None:
    """A seeded ledger is a copy, too, unless its module furnishes another: to make one takes a dozen requests."""
    return furnish if furnishing is nothing and "seeded" in request.fixturenames else furnishing


@pytest.fixture
def seeded(made: SeededLedger, ledger: Ledger) -> SeededLedger:
    """A seeded ledger for one test alone, with what the module's `FURNISHED` adds."""
    return replace(made, ledger=ledger)


@pytest.fixture
def trainer(made: Trainer, ledger: Ledger) -> Trainer:
    return replace(made, ledger=ledger)


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare every answer that a test gets with the OpenAPI document."""
    name = next((name for name in ("shared", "ledger") if name in request.fixturenames), None)
    if name is None:
        yield
        return
    found = request.getfixturevalue(name)
    ledger: Ledger = found.ledger if isinstance(found, SeededLedger) else found
    answers: list[Any] = []
    ledger.http.event_hooks["response"].append(answers.append)
    yield
    ledger.http.event_hooks["response"].remove(answers.append)
    for answer in answers:
        check_answer(answer)
