"""The log while the database is down: a line for each failure, and a traceback only of what nobody foresaw."""

import logging

import pytest
from sqlalchemy.exc import OperationalError, TimeoutError  # noqa: A004 - of its pool

from app.ledger.errors import LedgerUnavailableError
from app.service.charging import commit_queue
from tests.conftest import Ledger
from tests.service.step_commands import opened

DOWN = OperationalError("BEGIN", {}, Exception("connection refused\nIs the server running?"))


def _lines(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> list[logging.LogRecord]:
    run = opened(ledger)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(commit_queue, "commit_group", fail)
    caplog.clear()
    ledger.post(f"/v1/runs/{run}/steps", {})
    return [record for record in caplog.records if record.name.startswith("app.")]


@pytest.mark.both_databases
@pytest.mark.parametrize("error", [DOWN, LedgerUnavailableError("In doubt."), TimeoutError("the pool is empty")])
def test_database_that_is_down_is_one_line_each(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    lines = _lines(ledger, monkeypatch, caplog, error)
    assert 1 <= len(lines) <= 2
    assert all(record.levelno == logging.ERROR and not record.exc_info for record in lines)
    assert all("\n" not in record.getMessage() for record in lines)
    assert str(getattr(error, "orig", error)).splitlines()[0] in lines[0].getMessage()


def test_unforeseen_error_has_its_traceback(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (line, *_) = _lines(ledger, monkeypatch, caplog, AssertionError("a bug"))
    assert line.exc_info
    assert isinstance(line.exc_info[1], AssertionError)
