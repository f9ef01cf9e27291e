"""A sample migration goes up and down on tables with rows, beside a service that answers steps meanwhile."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import alembic_config, is_current, upgrade
from app.persistence.write_probe import Fault, rehearse
from app.service.verification.verify import verify
from tests.api.trainer import hired
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.persistence.test_migrations import shape_of
from tests.polling import await_true

pytestmark = pytest.mark.both_databases

SAMPLE = Path(__file__).parent / "sample_migrations"


def _sample(tx: Connection) -> Config:
    config = alembic_config()
    locations = (Path(str(config.get_main_option("script_location"))) / "versions", SAMPLE)
    config.set_main_option("version_locations", os.pathsep.join(map(str, locations)))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    return config


def _migrate(database: Database, revision: str) -> None:
    change = command.upgrade if revision == "0002" else command.downgrade
    database.migrate(lambda tx: change(_sample(tx), revision))


def _furnish(ledger: Ledger) -> None:
    assert hired(ledger).steps(count=3).status_code == 200


FURNISHED = {"ledger": _furnish}


def test_steps_are_answered_while_a_migration_goes_up_and_down(ledger: Ledger, database_url: str) -> None:
    database, run = Database(database_url), ledger.get("/v1/runs").json()["items"][0]["id"]
    with database.read(ALL_TENANTS) as tx:
        shape = shape_of(tx)
    answers: list[tuple[int, int | None]] = []
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            answer = ledger.post(f"/v1/runs/{run}/steps", {}, "trainer")
            answers.append((answer.status_code, answer.json().get("next_step")))

    def await_answers() -> None:
        due = len(answers) + 3
        await_true(lambda: len(answers) >= due, pause=0.01)

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        try:
            await_answers()
            _migrate(database, "0002")
            await_answers()
            with database.read(ALL_TENANTS) as tx:
                assert not is_current(tx)
                assert tx.execute(text("SELECT label FROM run_labels")).scalars().all() == ["MODEL"]
                assert set(tx.execute(text("SELECT source FROM decisions")).scalars()) == {"api"}
            _migrate(database, "0001")
            await_answers()
        finally:
            stop.set()
            training.result()
    assert answers == [(200, step + 4) for step in range(len(answers))]
    with database.read(ALL_TENANTS) as tx:
        assert shape_of(tx) == shape
        assert "run_labels" not in inspect(tx).get_table_names()
    assert verify(database).problems == ()
    database.dispose()


def test_migration_down_changes_nothing_when_it_would_lose_rows(ledger: Ledger) -> None:
    charged = ledger.database
    before = dump(charged)
    _migrate(charged, "0002")
    assert dump(charged) == before
    with charged.write(ALL_TENANTS) as tx:
        tx.execute(text("UPDATE decisions SET source = 'import'"))
    before = dump(charged)
    with pytest.raises(RuntimeError, match="imported decisions"):
        _migrate(charged, "0001")
    assert dump(charged) == before
    with charged.read(ALL_TENANTS) as tx:
        assert tx.execute(text("SELECT count(*) FROM run_labels")).scalar_one() == 1


def test_schema_of_a_newer_version_is_left_alone(ledger: Ledger) -> None:
    charged = ledger.database
    _migrate(charged, "0002")
    before = dump(charged)
    with pytest.raises(LedgerUnavailableError, match="schema 0002, of a newer version"):
        upgrade(charged)
    assert dump(charged) == before
    assert rehearse(charged) is Fault.UNMIGRATED
    _migrate(charged, "0001")
    assert rehearse(charged) is None
    assert dump(charged) == before
