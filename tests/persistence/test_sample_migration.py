"""A sample migration goes up and down on tables with rows, beside a service that answers steps meanwhile."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.rehearsal import Fault, rehearse
from app.persistence.schema import alembic_config, is_current, upgrade
from app.service.verification import verify
from tests.conftest import SAMPLED, Ledger
from tests.persistence.dump import dump
from tests.persistence.schema_snapshot import shape_of
from tests.servers import LiveServer

SAMPLE = Path(__file__).parent / "sample_migrations"
LIMIT = {"epsilon": 8.0, "delta": 1e-5}


@dataclass
class Trainer:
    """A client that takes one step after the other, until it is told to stop."""

    http: httpx2.Client
    run: str
    answers: list[tuple[int, int | None]] = field(default_factory=list)
    _answered: threading.Condition = field(default_factory=threading.Condition)
    _stop: threading.Event = field(default_factory=threading.Event)

    def train(self) -> None:
        while not self._stop.is_set():
            answer = self.http.post(f"/v1/runs/{self.run}/steps", json={})
            with self._answered:
                self.answers.append((answer.status_code, answer.json().get("next_step")))
                self._answered.notify_all()

    def wait_for(self, further: int) -> None:
        """Wait until so many further steps are answered."""
        with self._answered:
            due = len(self.answers) + further
            assert self._answered.wait_for(lambda: len(self.answers) >= due, timeout=60)

    @contextmanager
    def training(self) -> Iterator[None]:
        thread = threading.Thread(target=self.train)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


@pytest.fixture
def server(tmp_path: Path, database_url: str) -> Iterator[LiveServer]:
    started = LiveServer(tmp_path, database_url)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def database(server: LiveServer) -> Iterator[Database]:
    opened = Database(server.database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def trainer(server: LiveServer) -> Iterator[Trainer]:
    """A run of a budget that takes many steps."""
    bodies: dict[str, dict[str, object]] = {
        "populations": {"name": "mimic", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"},
        "budgets": {"name": "team", "parent": "mimic"},
        "runs": {"name": "model", "budget": "mimic/team", "event": SAMPLED},
    }
    with server.client("admin") as admin, server.client("trainer") as http:
        for number, (collection, body) in enumerate(bodies.items()):
            limit: dict[str, object] = {} if collection == "runs" else {"limit": LIMIT}
            made = admin.post(f"/v1/{collection}", json=body | limit, headers={"Idempotency-Key": f"k{number}"})
            assert made.status_code == 201, made.text
        yield Trainer(http, str(made.json()["id"]))


def _sample(tx: Connection) -> Config:
    config = alembic_config()
    locations = (Path(str(config.get_main_option("script_location"))) / "versions", SAMPLE)
    config.set_main_option("version_locations", os.pathsep.join(map(str, locations)))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    return config


def _migrate(database: Database, revision: str) -> None:
    def migrate(tx: Connection) -> None:
        if revision == "0002":
            command.upgrade(_sample(tx), revision)
        else:
            command.downgrade(_sample(tx), revision)

    database.migrate(migrate)


def test_a_migration_goes_up_and_down_beside_a_service_that_answers_steps(
    server: LiveServer, database: Database, trainer: Trainer
) -> None:
    with database.read(ALL_TENANTS) as tx:
        shape = shape_of(tx)
    with trainer.training():
        trainer.wait_for(3)
        _migrate(database, "0002")
        trainer.wait_for(3)
        with database.read(ALL_TENANTS) as tx:
            assert not is_current(tx)
            assert tx.execute(text("SELECT label FROM run_labels")).scalars().all() == ["MODEL"]
            assert set(tx.execute(text("SELECT source FROM decisions")).scalars()) == {"api"}
        _migrate(database, "0001")
        trainer.wait_for(3)
    assert trainer.answers == [(200, step + 1) for step in range(len(trainer.answers))], server.log()
    with database.read(ALL_TENANTS) as tx:
        assert shape_of(tx) == shape
        assert "run_labels" not in inspect(tx).get_table_names()
    found = verify(database)
    assert (found.problems, found.checked["decisions"]) == ((), len(trainer.answers))


@pytest.fixture
def charged(ledger: Ledger) -> Database:
    """The database of a ledger with a run that has taken steps."""
    ledger.population()
    ledger.budget()
    run = ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 3}).status_code == 200
    return ledger.database


def test_no_row_is_changed_on_the_way_up_and_down(charged: Database) -> None:
    before = dump(charged)
    for revision in ("0002", "0001"):
        _migrate(charged, revision)
        assert dump(charged) == before


def test_a_migration_that_would_lose_rows_changes_nothing(charged: Database) -> None:
    _migrate(charged, "0002")
    with charged.write(ALL_TENANTS) as tx:
        tx.execute(text("UPDATE decisions SET source = 'import'"))
    before = dump(charged)
    with pytest.raises(RuntimeError, match="imported decisions"):
        _migrate(charged, "0001")
    assert dump(charged) == before
    with charged.read(ALL_TENANTS) as tx:
        assert tx.execute(text("SELECT count(*) FROM run_labels")).scalar_one() == 1


def test_a_schema_of_a_newer_version_is_left_alone(charged: Database) -> None:
    _migrate(charged, "0002")
    before = dump(charged)
    with pytest.raises(LedgerUnavailableError, match="schema 0002, of a newer version"):
        upgrade(charged)
    assert dump(charged) == before
    assert rehearse(charged) is Fault.UNMIGRATED
    _migrate(charged, "0001")
    assert rehearse(charged) is None
