"""What tests of organisations on two databases, and those of deliveries, share."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.ledger.permissions import Role
from app.main import create_app
from app.persistence.schema import upgrade
from app.service.auth.authentication import create_organisation
from app.service.governance.api_keys import create_key
from app.service.placements import Placements
from app.settings import Settings
from tests.conftest import Ledger, new_database
from tests.service.endpoint import Endpoint, receiving
from tests.service.placed_service import NOW, PlacedService


@pytest.fixture
def placed_urls(database_kind: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two new databases by the name of their placement."""
    with ExitStack() as opened:
        made = {}
        for name in ("default", "eu-2"):
            (tmp_path / name).mkdir()
            made[name] = opened.enter_context(new_database(database_kind, tmp_path / name))
        yield made


@pytest.fixture
def placements(placed_urls: dict[str, str]) -> Iterator[Placements]:
    """Both databases with their tables, and no organisation."""
    opened = Placements(placed_urls, 5)
    for database in opened.databases.values():
        upgrade(database)
    yield opened
    opened.dispose()


@pytest.fixture
def placed(placed_urls: dict[str, str]) -> Iterator[PlacedService]:
    app = create_app(Settings(database_url=placed_urls["default"], placements={"eu-2": placed_urls["eu-2"]}))
    opened: Placements = app.state.placements
    ledgers = []
    with TestClient(app, raise_server_exceptions=False) as http:
        for placement, name in zip(opened, ("hospital", "clinic"), strict=True):
            upgrade(placement.database)
            create_organisation(placement.database, name, NOW)
            # `Ledger` asks for the hospital's keys unless it is told otherwise: here each has one organisation.
            keys = {("hospital", str(role)): create_key(placement.database, name, role, NOW).key for role in Role}
            ledgers.append(Ledger(http, placement.database, keys))
        yield PlacedService(http, opened, *ledgers)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with receiving() as opened:
        yield opened
