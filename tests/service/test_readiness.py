"""Readiness costs one rehearsal a second at most, and answers in time even if that does not end."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy.exc import OperationalError

from app.persistence.database import LOCK_TIMEOUT_SECONDS, Database
from app.persistence.rehearsal import Fault, Rehearsal
from app.service import readiness
from app.service.ledger_store import LedgerStore
from app.service.monitoring.database_collector import DatabaseCollector
from app.service.monitoring.exposition import exposition
from app.service.readiness import Readiness

NONE = cast("Database", None)


class _Database:
    """Counts rehearsals; each of them waits until it may end."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.workers: dict[str, Fault] = {}
        self.rehearsals = 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def rehearse(self, _: object) -> Rehearsal:
        self.rehearsals += 1
        assert self.goes_on.wait(60)
        return Rehearsal(self.fault, self.workers)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> _Database:
    made = _Database()
    monkeypatch.setattr(readiness, "rehearse_everywhere", made.rehearse)
    return made


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    moment = [100.0]
    monkeypatch.setattr(readiness, "monotonic", lambda: moment[0])

    def move(seconds: float) -> None:
        moment[0] += seconds

    return move


def test_many_who_ask_at_once_cost_one_rehearsal(database: _Database) -> None:
    async def ask() -> list[str | None]:
        asked = Readiness(NONE)
        return await asyncio.gather(*(asked.trouble() for _ in range(50)))

    assert asyncio.run(ask()) == [None] * 50
    assert database.rehearsals == 1


def test_an_answer_is_told_for_a_second_and_then_asked_anew(
    database: _Database, passes: Callable[[float], None]
) -> None:
    async def ask() -> None:
        asked = Readiness(NONE)
        assert await asked.trouble() is None
        database.fault = Fault.FULL
        passes(0.9)
        assert await asked.trouble() is None
        passes(0.2)
        assert await asked.trouble() == Fault.FULL
        database.fault = None
        passes(1.1)
        assert await asked.trouble() is None
        assert database.rehearsals == 3

    asyncio.run(ask())


def test_a_rehearsal_that_does_not_end_is_trouble_and_no_second_one_begins(
    database: _Database, passes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ANSWERED_SECONDS", 0.01)

    async def ask() -> None:
        asked = Readiness(NONE)
        database.goes_on.clear()
        assert await asked.trouble() == "The database takes longer than 0.01 s for a step's statements."
        passes(60)
        assert await asked.trouble() == "The database takes longer than 0.01 s for a step's statements."
        assert database.rehearsals == 1
        database.goes_on.set()
        assert asked._rehearsal is not None
        await asked._rehearsal
        assert await asked.trouble() is None
        assert database.rehearsals == 2

    asyncio.run(ask())


def test_a_lock_is_trouble_once_no_step_would_wait_for_it(database: _Database, passes: Callable[[float], None]) -> None:
    async def ask() -> None:
        asked = Readiness(NONE)
        for _ in range(2):
            database.fault = Fault.LOCKED
            assert await asked.trouble() is None
            passes(LOCK_TIMEOUT_SECONDS - 1)
            assert await asked.trouble() is None
            passes(1.1)
            assert await asked.trouble() == Fault.LOCKED
            database.fault = None
            passes(1.1)
            assert await asked.trouble() is None
            passes(1.1)

    asyncio.run(ask())


def test_what_changes_is_logged_once(
    database: _Database, passes: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        asked = Readiness(NONE)
        for error in (None, Fault.FULL, Fault.FULL, None, None):
            database.fault = error
            passes(2)
            await asked.trouble()

    asyncio.run(ask())
    assert [record.message for record in caplog.records] == [
        "Readiness: The disk of the database is full.",
        "Readiness: steps can be decided again.",
    ]


def test_a_worker_that_takes_no_step_is_named_and_is_no_trouble_of_the_others(
    database: _Database, passes: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        asked = Readiness(NONE)
        for workers in ({}, {"db1:5432": Fault.SILENT}, {"db1:5432": Fault.SILENT}, {}):
            database.workers = workers
            passes(2)
            assert await asked.trouble() is None
            assert asked.workers == workers

    asyncio.run(ask())
    assert [record.message for record in caplog.records] == [
        "The worker db1:5432: The database does not answer.",
        "The worker db1:5432: its organisations are served again.",
    ]


def test_metrics_count_the_workers_whose_organisations_are_not_served() -> None:
    def read(_: object) -> None:
        raise OperationalError("SELECT", None, Exception("the worker does not answer"))

    async def trouble() -> None:
        return None

    ready = SimpleNamespace(trouble=trouble, workers={"db1:5432": Fault.SILENT})
    database = SimpleNamespace(read=read, disk_space=lambda: None)
    store = cast(LedgerStore, SimpleNamespace(readiness=ready, database=database))
    snapshot = asyncio.run(DatabaseCollector(store, signs=False).collect())
    text, _ = exposition(snapshot, None, {}, named=0, accept="", now=None)
    assert "epsilon_ledger_citus_workers_unavailable 1.0" in text.decode()
    assert "epsilon_ledger_ready 1.0" in text.decode()
