"""The databases' clocks are read regularly, and a machine whose own is wrong says so."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from app.ledger.errors import LedgerUnavailableError
from app.persistence.clock import Clock, Reading, counted
from app.service import timekeeping
from app.service.timekeeping import keep_time, wrong_clock


def _off_by(seconds: float) -> Clock:
    """A database's clock that this machine's is ahead of by so many seconds."""

    def read() -> Reading:
        began = counted()
        return Reading(began, datetime.now(UTC) - timedelta(seconds=seconds), counted())

    clock = Clock(read)
    clock.sample()
    return clock


@pytest.mark.parametrize(
    ("ahead", "said"),
    [(3600, "3600 s ahead of"), (-3600, "3600 s behind"), (30, "30 s ahead of"), (-30, "30 s behind")],
)
def test_a_clock_that_is_off_is_told(ahead: float, said: str) -> None:
    assert said in str(wrong_clock(_off_by(ahead)))


@pytest.mark.parametrize("ahead", [0, 4, -4])
def test_a_clock_that_is_nearly_right_is_not(ahead: float) -> None:
    assert wrong_clock(_off_by(ahead)) is None


def test_of_a_clock_that_was_never_read_nothing_is_said() -> None:
    assert wrong_clock(Clock(lambda: Reading(0, datetime.now(UTC), 0))) is None
    assert wrong_clock(Clock(None)) is None


def test_a_database_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timekeeping, "SAMPLED_SECONDS", 0.0)
    asked: list[int] = []

    def read() -> Reading:
        asked.append(1)
        if len(asked) == 1:
            raise LedgerUnavailableError("The server is gone.")
        if len(asked) == 2:
            raise AssertionError("a bug")
        return Reading(counted(), datetime.now(UTC) - timedelta(hours=1), counted())

    clock = Clock(read)

    async def keep() -> None:
        keeping = asyncio.create_task(keep_time(clock))
        async with asyncio.timeout(60):
            while len(asked) < 4:  # noqa: ASYNC110 - another thread reads
                await asyncio.sleep(0)
        keeping.cancel()

    asyncio.run(keep())
    answer = [record.message for record in caplog.records]
    assert answer[:2] == [
        "The clock of the database could not be read: The server is gone.",
        "The clock of the database could not be read",
    ]
    assert sum("3600 s ahead of the database's" in each for each in answer) == 1
