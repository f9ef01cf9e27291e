"""Due work is found where the database answers, and one failure does not stop the rest."""

import logging
from collections.abc import Collection

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from app.ledger.errors import LedgerUnavailableError
from app.persistence import citus
from app.service.due_work import find_due, isolated
from tests.conftest import Ledger

DOWN = OperationalError("SELECT 1", {}, Exception("connection to the remote node failed\nis it running?"))


def test_all_organisations_are_asked_at_once(ledger: Ledger) -> None:
    asked: list[object] = []

    def query(_: Connection, among: Collection[str] | None) -> list[str]:
        asked.append(among)
        return ["work"]

    assert find_due(ledger.database, query) == ["work"]
    assert asked == [None]


def test_workers_that_answer_are_asked_one_by_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(citus, "is_distributed", lambda _: True)
    monkeypatch.setattr(citus, "organisations_by_worker", lambda _: {"a:1": ["one"], "b:2": ["two", "three"]})

    def query(_: Connection, among: Collection[str] | None) -> list[str]:
        if among is None or "one" in among:
            raise DOWN
        return list(among)

    assert find_due(ledger.database, query) == ["two", "three"]
    assert [record.message for record in caplog.records] == [
        "The periodic work of the 1 organisations on the worker a:1 waits: connection to the remote node failed"
    ]


@pytest.mark.parametrize(
    ("error", "logged", "traced"),
    [
        (LedgerUnavailableError("It moves."), "run_1 waits: It moves.", False),
        (DOWN, "run_1 waits: connection to the remote node failed", False),
        (LookupError("a bug"), "run_1 waits", True),
    ],
)
def test_failure_is_logged(caplog: pytest.LogCaptureFixture, error: Exception, logged: str, *, traced: bool) -> None:
    def fail() -> None:
        raise error

    with caplog.at_level(logging.WARNING), isolated("%s waits", "run_1"):
        fail()
    [record] = caplog.records
    assert record.message == logged
    assert bool(record.exc_info) is traced
