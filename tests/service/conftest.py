"""Fixtures of several modules."""

from collections.abc import Iterator

import pytest

from app.persistence.database import Database
from tests.api.trainer import Trainer, hired
from tests.ledgers import Furnish, Ledger, furnished
from tests.service.endpoint import Endpoint, receiving
from tests.service.step_commands import CommandRunner


@pytest.fixture
def furnishing(request: pytest.FixtureRequest, furnishing: Furnish | None) -> Furnish | None:
    return hired if "trainer" in request.fixturenames else furnishing


@pytest.fixture
def trainer(ledger: Ledger, database_kind: str) -> Trainer:
    """A trainer with a run of LOUD under mimic/icu-team, which are in the ledger from the start."""
    return Trainer(ledger, furnished(database_kind, hired)[0].run)


@pytest.fixture
def run(trainer: Trainer) -> str:
    return trainer.run


@pytest.fixture
def runner(ledger: Ledger) -> CommandRunner:
    return CommandRunner(ledger)


@pytest.fixture
def replica(ledger: Ledger) -> Iterator[Database]:
    """The ledger's database, as another process opens it."""
    opened = Database(ledger.database.engine.url.render_as_string(hide_password=False))
    yield opened
    opened.dispose()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with receiving() as opened:
        yield opened
