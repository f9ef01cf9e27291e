"""Maintenance: due work is found, silent runs are ended, and no failure stops the rest or fills the log."""

import asyncio
import logging
from collections.abc import Collection, Sized
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, TimeoutError  # noqa: A004 - of its pool

from app.ledger.errors import LedgerUnavailableError
from app.persistence import citus
from app.persistence.clock import Clock, Moment
from app.service import maintenance
from app.service.charging import commit_queue
from app.service.due_work import find_due, isolated
from app.service.runs.lost import end_lost_runs
from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, hired, moved
from tests.conftest import Ledger
from tests.service.step_commands import opened
from tests.service.tampering import tampering

DOWN = OperationalError("SELECT 1", {}, Exception("connection to the remote node failed\nis it running?"))


def _maintain(ledger: Ledger, looks: Sized, most: int) -> None:
    """Run maintenance until it has looked so often."""

    async def work() -> None:
        keeping = asyncio.create_task(maintenance.run_maintenance(ledger.database, look_seconds=0.01))
        async with asyncio.timeout(30):
            while len(looks) < most:  # noqa: ASYNC110 - another thread looks
                await asyncio.sleep(0.01)
        keeping.cancel()

    asyncio.run(work())


@pytest.mark.parametrize(("error", "traced"), [(DOWN, False), (LookupError("a bug"), True)])
def test_failed_run_is_logged_and_the_next_one_comes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, *, traced: bool
) -> None:
    looks: list[Any] = []

    def look(*asked: Any) -> int:  # noqa: ANN401 - passed through
        looks.append(asked)
        if len(looks) == 1:
            raise error
        return 0

    monkeypatch.setattr(maintenance, "expire_reservations", look)

    _maintain(ledger, looks, 3)
    [record] = [record for record in caplog.records if "maintenance" in record.message]
    assert bool(record.exc_info) == traced
    assert "\n" not in record.message


def test_lease_that_may_still_run_is_not_forfeited(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    earliest = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
    later = earliest + timedelta(hours=1)
    monkeypatch.setattr(Clock, "moment", lambda _: Moment(later, earliest))
    looked: list[tuple[str, datetime]] = []
    for work in ("expire_reservations", "alert_stale_reservations"):
        monkeypatch.setattr(maintenance, work, lambda _, now, work=work: looked.append((work, now)))

    _maintain(ledger, looked, 2)
    assert looked[:2] == [("expire_reservations", earliest), ("alert_stale_reservations", earliest)]


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


SILENCE = timedelta(days=30)


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    return hired(ledger)


def _look(trainer: Trainer, **later: float) -> int:
    return end_lost_runs(trainer.ledger.database, datetime.now(UTC) + timedelta(**later), SILENCE)


def test_silent_run_ends_as_lost_and_its_spending_stays(trainer: Trainer) -> None:
    assert trainer.steps(count=3).status_code == 200
    before = trainer.read()
    assert _look(trainer, days=29) == 0
    assert _look(trainer, days=31) == 1
    after = trainer.read()
    assert (after["status"], after["end_reason"], after["steps_remaining"]) == ("aborted", "lost", None)
    assert after["ended_at"] is not None
    assert after["epsilon"] == before["epsilon"] > 0
    assert _look(trainer, days=60) == 0
    events = trainer.ledger.get(f"/v1/audit-events?subject={trainer.run}", "auditor").json()["items"]
    assert (events[0]["action"], events[0]["actor"]) == ("run.aborted", "service")
    assert events[0]["after"] == {"status": "aborted", "end_reason": "lost"}
    assert "last heard of" in events[0]["reason"]
    assert trainer.sound()


def test_run_whose_trainer_asks_is_not_lost(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, days=20)
    assert trainer.steps(count=10**9).status_code == 403  # a refusal is heard, too
    assert _look(trainer, days=31) == 0
    assert _look(trainer, days=51) == 1


@pytest.mark.parametrize("state", ["paused", "reserving", "completed"])
def test_run_that_is_not_active_or_has_a_plan_is_not_lost(trainer: Trainer, state: str) -> None:
    if state == "reserving":
        trainer.reserved((LOUD, 3), lease_seconds=7 * 24 * 3600)
    else:
        assert trainer.act({"paused": "pause", "completed": "complete"}[state]).status_code == 200
    assert _look(trainer, days=400) == 0


def test_changed_end_of_a_run_is_found(trainer: Trainer) -> None:
    assert trainer.act("complete", {"reason": "budget_exhausted"}).status_code == 200
    assert trainer.sound()
    with tampering(trainer.ledger.database) as tx:
        tx.exec_driver_sql("UPDATE runs SET end_reason = 'finished'")
    assert any("did not end as" in each for each in verify(trainer.ledger.database).problems)


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
