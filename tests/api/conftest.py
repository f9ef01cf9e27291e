"""What the tests of the API share: a furnished ledger for a whole module, and a witness of every answer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.api.answer_validation import check_answer
from tests.api.trainer import Trainer
from tests.conftest import SAMPLED, Furnish, Ledger, furnished, new_database, open_ledger
from tests.ledgers import nothing
from tests.persistence.dump import Dump, dump

LIMIT = {"epsilon": 1.0, "delta": 1e-5}
POPULATION = {
    "name": "people",
    "privacy_unit": "user",
    "neighboring_relation": "add_or_remove_one",
    "limit": LIMIT,
}


@dataclass(frozen=True)
class SeededLedger:
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

    def rows(self) -> Dump:
        """Every row of the ledger."""
        return dump(self.ledger.database)

    def ids(self) -> dict[str, str]:
        """The ids by the names of path parameters."""
        return {
            "population_id": self.population,
            "budget_id": self.budget,
            "run_id": self.run,
            "reservation_id": self.reservation,
            "key_id": self.key,
            "account_id": self.budget,
            "proposal_id": self.proposal,
            "receiver_id": self.receiver,
            "delivery_id": self.delivery,
            "experiment_id": self.experiment,
            "verification_id": self.verification,
        }


def furnish(ledger: Ledger) -> SeededLedger:
    """Open a population and a budget, register a run, take a step, ask for alerts, declare a sweep, and verify."""
    population = str(ledger.population()["id"])
    budget = str(ledger.budget()["id"])
    run = ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"first_step": 0}, "trainer").status_code == 200
    plan = {"plan": [{"event": SAMPLED, "count": 1}]}
    reservation = str(ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").json()["id"])
    assert ledger.post(f"/v1/reservations/{reservation}/void", {}, "trainer").status_code == 200
    key = str(ledger.post("/v1/api-keys", {"role": "viewer"}).json()["id"])
    more = {"limit": {"epsilon": 3.5, "delta": 1e-5}, "reason": "Another study."}
    proposed = ledger.post(f"/v1/accounts/{population}/limit", more, "planner", If_Match="*")
    proposal = str(proposed.json()["id"])
    receiver = str(ledger.post("/v1/receivers", {"url": "https://alerts.example/privacy"}).json()["id"])
    delivery = str(ledger.post(f"/v1/receivers/{receiver}/test", None).json()["id"])
    sweep = {"name": "sweep", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    experiment = str(ledger.post("/v1/experiments", sweep).json()["id"])
    verification = str(ledger.post("/v1/verifications", None).json()["id"])
    return SeededLedger(
        *(ledger, population, budget, run, reservation, key, proposal, receiver, delivery, experiment, verification)
    )


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
def seeded(ledger: Ledger, database_kind: str) -> SeededLedger:
    """A seeded ledger for one test alone."""
    there: SeededLedger = furnished(database_kind, furnish)[0]
    return replace(there, ledger=ledger)


@pytest.fixture
def trainer(request: pytest.FixtureRequest, ledger: Ledger, database_kind: str) -> Trainer:
    """As the module's `FURNISHED` makes one."""
    made: Trainer = furnished(database_kind, request.module.FURNISHED["trainer"])[0]
    return replace(made, ledger=ledger)


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare every answer that a test gets with the OpenAPI document."""
    if "shared" in request.fixturenames:
        ledger: Ledger = request.getfixturevalue("shared").ledger
    elif "ledger" in request.fixturenames:
        ledger = request.getfixturevalue("ledger")
    else:
        yield
        return
    answers: list[Any] = []
    ledger.http.event_hooks["response"].append(answers.append)
    yield
    ledger.http.event_hooks["response"].remove(answers.append)
    for answer in answers:
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        body = answer.json() if answer.content and media_type.endswith("json") else answer.text or None
        check_answer(answer.request.method, answer.request.url.path, answer.status_code, media_type, body)
