"""One application for a module, and a new organisation of it for a test."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count

import pytest

from app.service.auth import authentication
from tests.ledgers import open_ledger
from tests.provisioning.organisation import Organisation


@pytest.fixture(scope="module")
def new_organisation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Organisation]]:
    folder, numbers = tmp_path_factory.mktemp("application"), count(1)
    with open_ledger(folder) as ledger:

        def new() -> Organisation:
            name = f"hospital {next(numbers)}"
            authentication.create_organisation(ledger.database, name, datetime.now(UTC))
            return Organisation(ledger, folder, name, {})

        yield new


@pytest.fixture
def organisation(new_organisation: Callable[[], Organisation]) -> Organisation:
    return new_organisation()
