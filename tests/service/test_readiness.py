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


Passes = Callable[[float], None]


def told(database: _Database, passes: Passes, *script: tuple[Fault | None, float, Fault | None]) -> None:
    """Ask again and again: each time the database has a fault, time has passed, and an error is expected."""

    async def ask() -> None:
        asked = Readiness(NONE)
        for fault, seconds, expected in script:
            database.fault = fault
            passes(seconds)
            assert await asked.trouble() == expected

    asyncio.run(ask())


def test_simultaneous_questions_cost_one_rehearsal(database: _Database) -> None:
    async def ask() -> list[str | None]:
        asked = Readiness(NONE)
        return await asyncio.gather(*(asked.trouble() for _ in range(50)))

    assert asyncio.run(ask()) == [None] * 50
    assert database.rehearsals == 1


def test_answer_is_reused_for_a_second(database: _Database, passes: Passes) -> None:
    full = Fault.FULL
    told(database, passes, (None, 0, None), (full, 0.9, None), (full, 0.2, full), (None, 1.1, None))
    assert database.rehearsals == 3


def test_lock_is_an_error_once_no_step_would_wait_for_it(database: _Database, passes: Passes) -> None:
    locked, most = Fault.LOCKED, LOCK_TIMEOUT_SECONDS
    once = ((locked, 1.1, None), (locked, most - 1, None), (locked, 1.1, locked), (None, 1.1, None))
    told(database, passes, *once, *once)


def test_change_is_logged_once(database: _Database, passes: Passes, caplog: pytest.LogCaptureFixture) -> None:
    told(database, passes, *((fault, 2, fault) for fault in (None, Fault.FULL, Fault.FULL, None, None)))
    assert [record.message for record in caplog.records] == [
        "Readiness: The disk of the database is full.",
        "Readiness: steps can be decided again.",
    ]


def test_rehearsal_that_does_not_end_is_an_error_and_no_second_begins(
    database: _Database, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ANSWERED_SECONDS", 0.01)

    async def ask() -> None:
        asked = Readiness(NONE)
        database.goes_on.clear()
        for _ in range(2):
            assert await asked.trouble() == "The database takes longer than 0.01 s for a step's statements."
            passes(60)
        assert database.rehearsals == 1
        database.goes_on.set()
        assert asked._rehearsal is not None
        await asked._rehearsal
        assert await asked.trouble() is None
        assert database.rehearsals == 2

    asyncio.run(ask())


def test_silent_worker_is_named_and_is_no_error_of_the_others(
    database: _Database, passes: Passes, caplog: pytest.LogCaptureFixture
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


def test_metrics_count_workers_that_do_not_serve() -> None:
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
