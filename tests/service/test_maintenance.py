"""Maintenance: due work is found, silent runs are ended, clocks are read, and no failure stops the rest."""

import asyncio
from collections.abc import Collection, Sized
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from app.ledger.errors import LedgerUnavailableError
from app.persistence import citus
from app.persistence.clock import Clock, Moment, Reading, counted
from app.service import maintenance, timekeeping
from app.service.periodic_work import find_due
from app.service.runs.lost import end_lost_runs
from app.service.timekeeping import keep_time, wrong_clock
from app.service.verification.verify import verify
from tests.api.trainer import LOUD, Trainer, audited, moved
from tests.conftest import Ledger
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
    looks: list[object] = []

    def snapshot(*asked: object) -> int:
        looks.append(asked)
        if len(looks) == 1:
            raise error
        return 0

    monkeypatch.setattr(maintenance, "expire_reservations", snapshot)

    _maintain(ledger, looks, 3)
    [record] = [record for record in caplog.records if "maintenance" in record.message]
    assert (bool(record.exc_info), "\n" in record.message) == (traced, False)


def test_lease_that_may_still_run_is_not_forfeited(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    earliest = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
    later = earliest + timedelta(hours=1)
    monkeypatch.setattr(Clock, "moment", lambda _: Moment(later, earliest))
    looked: list[tuple[str, datetime]] = []
    for work in ("expire_reservations", "alert_stale_reservations"):
        monkeypatch.setattr(maintenance, work, lambda _, now, work=work: looked.append((work, now)))

    _maintain(ledger, looked, 2)
    assert looked[:2] == [("expire_reservations", earliest), ("alert_stale_reservations", earliest)]


def test_workers_that_answer_are_asked_one_by_one_and_else_all_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def query(_: Connection, among: Collection[str] | None) -> list[str]:
        if down and (among is None or "one" in among):
            raise DOWN
        return ["all"] if among is None else list(among)

    down = False
    assert find_due(ledger.database, query) == ["all"]
    down = True
    with pytest.raises(OperationalError):  # one server: there is no other to ask
        find_due(ledger.database, query)
    monkeypatch.setattr(citus, "is_distributed", lambda _: True)
    monkeypatch.setattr(citus, "organisations_by_worker", lambda _: {"a:1": ["one"], "b:2": ["two", "three"]})
    assert find_due(ledger.database, query) == ["two", "three"]
    assert [record.message for record in caplog.records] == [
        "The periodic work of the 1 organisations on the worker a:1 waits: connection to the remote node failed"
    ]


SILENCE = timedelta(days=30)


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
    event = audited(trainer.ledger, f"subject={trainer.run}")[-1]
    assert (event["action"], event["actor"], "last heard of" in event["reason"]) == ("run.aborted", "service", True)
    assert event["after"] == {"status": "aborted", "end_reason": "lost"}
    assert trainer.sound()


def test_run_whose_trainer_asks_is_not_lost(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, days=20)
    assert trainer.steps(count=10**9).status_code == 403  # a refusal is heard, too
    assert _look(trainer, days=31) == 0
    assert _look(trainer, days=51) == 1


def test_run_that_is_not_active_or_has_a_plan_is_not_lost_and_a_changed_end_is_found(trainer: Trainer) -> None:
    plan = trainer.reserved((LOUD, 3), lease_seconds=7 * 24 * 3600)
    assert _look(trainer, days=400) == 0
    assert trainer.end(plan, "void").status_code == 200
    for action, body in (("pause", None), ("resume", None), ("complete", {"reason": "budget_exhausted"})):
        assert trainer.act(action, body).status_code == 200
        assert action == "resume" or _look(trainer, days=400) == 0
    assert trainer.sound()
    with tampering(trainer.ledger.database) as tx:
        tx.exec_driver_sql("UPDATE runs SET end_reason = 'finished'")
    assert any("did not end as" in each for each in verify(trainer.ledger.database).problems)


def _read(ahead: float) -> Reading:
    """A database's clock that this machine's is ahead of by so many seconds."""
    return Reading(counted(), datetime.now(UTC) - timedelta(seconds=ahead), counted())


def test_wrong_clock_is_reported_and_a_nearly_right_or_unread_one_is_not() -> None:
    said = {3600: "3600 s ahead of", -3600: "3600 s behind", 30: "30 s ahead of", -30: "30 s behind"}
    for ahead in (*said, 0, 4, -4):
        clock = Clock(partial(_read, ahead))
        assert wrong_clock(clock) is None
        clock.sample()
        assert said[ahead] in str(wrong_clock(clock)) if ahead in said else wrong_clock(clock) is None
    assert wrong_clock(Clock(None)) is None


def test_database_that_is_silent_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timekeeping, "SAMPLED_SECONDS", 0.0)
    asked: list[int] = []

    def read() -> Reading:
        asked.append(1)
        if len(asked) < 3:
            raise [LedgerUnavailableError("The server is gone."), AssertionError("a bug")][len(asked) - 1]
        return _read(3600)

    async def keep() -> None:
        keeping = asyncio.create_task(keep_time(Clock(read)))
        async with asyncio.timeout(60):
            while len(asked) < 4:  # noqa: ASYNC110 - another thread reads
                await asyncio.sleep(0)
        keeping.cancel()

    asyncio.run(keep())
    first, second, *others = [record.message for record in caplog.records]
    assert first == "The clock of the database could not be read: The server is gone."
    assert second == "The clock of the database could not be read"
    assert sum("3600 s ahead of the database's" in each for each in others) == 1
