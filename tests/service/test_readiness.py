"""Readiness costs one rehearsal a second at most; callers of a database that does not answer get 503 at once."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn, cast
from unittest.mock import patch

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.ledger.permissions import Role
from app.persistence.database import LOCK_TIMEOUT_SECONDS, Database
from app.persistence.write_probe import Fault, Rehearsal
from app.service import readiness
from app.service.auth import credential_cache
from app.service.auth.authentication import authenticate
from app.service.auth.credential_cache import Authenticator
from app.service.readiness import Readiness
from tests.api.trainer import Trainer
from tests.conftest import Ledger


class _Database:
    """Counts rehearsals; each of them waits until it may end. Its time is what a test makes of it."""

    now = 100.0
    fault: Fault | None = None
    rehearsals = 0

    def __init__(self) -> None:
        self.workers: dict[str, Fault] = {}
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.readiness = Readiness(cast("Database", None))

    def rehearse(self, _: object) -> Rehearsal:
        self.rehearsals += 1
        assert self.goes_on.wait(60)
        return Rehearsal(self.fault, self.workers)

    def told(self, *script: tuple[Fault | None, float, Fault | None]) -> None:
        """Ask again and again: each time there is a fault, time has passed, and an error is expected."""

        async def ask() -> None:
            for self.fault, seconds, expected in script:
                self.now += seconds
                assert await self.readiness.trouble() == expected

        asyncio.run(ask())


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> _Database:
    made = _Database()
    monkeypatch.setattr(readiness, "rehearse_everywhere", made.rehearse)
    monkeypatch.setattr(readiness, "monotonic", lambda: made.now)
    return made


def test_answer_is_reused_for_a_second_and_a_lock_is_an_error_later(database: _Database) -> None:
    async def ask() -> list[str | None]:
        return await asyncio.gather(*(database.readiness.trouble() for _ in range(50)))

    assert asyncio.run(ask()) == [None] * 50
    assert database.rehearsals == 1
    database.readiness, full = Readiness(cast("Database", None)), Fault.FULL
    database.told((None, 0, None), (full, 0.9, None), (full, 0.2, full), (None, 1.1, None))
    assert database.rehearsals == 4
    locked, most = Fault.LOCKED, LOCK_TIMEOUT_SECONDS  # an error once no step would wait for it
    once = ((locked, 1.1, None), (locked, most - 1, None), (locked, 1.1, locked), (None, 1.1, None))
    database.told(*once, *once)


def test_change_is_logged_once(database: _Database, caplog: pytest.LogCaptureFixture) -> None:
    database.told(*((fault, 2, fault) for fault in (None, Fault.FULL, Fault.FULL, None, None)))
    said = ["Readiness: The disk of the database is full.", "Readiness: steps can be decided again."]
    assert [record.message for record in caplog.records] == said
    for workers in ({"db1:5432": Fault.SILENT}, {"db1:5432": Fault.SILENT}, {}):
        database.workers = workers
        database.told((None, 2, None))  # a silent worker is named, and is no error of the others
        assert database.readiness.workers == workers
    assert [record.message for record in caplog.records[2:]] == [
        "The worker db1:5432: The database does not answer.",
        "The worker db1:5432: its organisations are served again.",
    ]


def test_endless_rehearsal_is_an_error_and_no_second_begins(
    database: _Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ANSWERED_SECONDS", 0.01)
    asked = database.readiness

    async def ask() -> None:
        database.goes_on.clear()
        for _ in range(2):
            assert await asked.trouble() == "The database takes longer than 0.01 s for a step's statements."
            database.now += 60
        assert database.rehearsals == 1
        database.goes_on.set()
        assert asked._rehearsal is not None
        await asked._rehearsal
        monkeypatch.setattr(readiness, "ANSWERED_SECONDS", 30)
        assert await asked.trouble() is None
        assert database.rehearsals == 2

    asyncio.run(ask())


@contextmanager
def _down(database: Database) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OperationalError("BEGIN", {}, Exception("the server is gone"))

    event.listen(database.engine, "begin", refuse, insert=True)
    groups = "pipeline" if database.dialect == "postgresql" else "write"  # they begin on the driver's connection
    try:
        with patch.object(database, groups, refuse):
            yield
    finally:
        event.remove(database.engine, "begin", refuse)


@pytest.mark.both_databases
def test_requests_get_503_until_the_database_answers_again(trainer: Trainer) -> None:
    assert trainer.steps().status_code == 200
    http = trainer.ledger.http
    with _down(trainer.ledger.database):
        assert trainer.steps().status_code == 503
        assert trainer.ledger.get(f"/v1/runs/{trainer.run}").status_code == 503
        assert http.get("/readyz").json()["detail"] == "The database does not answer."
    assert trainer.steps().status_code == 200
    assert http.get("/readyz").json() == {"status": "ok"}


def test_one_caller_at_a_time_tries_a_database_that_is_down(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    key, keys = ledger.headers("admin")["Authorization"], Authenticator(ledger.database)
    with pytest.raises(AuthenticationError):
        keys.authenticate("Bearer key_x.secret")
    for each in ("Bearer key_x.secret", key):
        with _down(ledger.database), pytest.raises(OperationalError):
            keys.authenticate(each)
    tries, answered = threading.Event(), threading.Event()

    def slowly(*asked: Any) -> object:  # noqa: ANN401 - as authenticate
        tries.set()
        assert answered.wait(30)
        return authenticate(*asked)

    monkeypatch.setattr(credential_cache, "authenticate", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(keys.authenticate, key)
        assert tries.wait(30)
        with pytest.raises(LedgerUnavailableError):  # at once: the first is still waiting
            keys.authenticate(key)
        answered.set()
        assert first.result().role is Role.ADMIN
    assert keys.authenticate(key).role is Role.ADMIN
