"""Maintenance outlives whatever goes wrong, and does not fill the log with it."""

import asyncio
from collections.abc import Sized
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from app.persistence.clock import Clock, Moment
from app.service import maintenance
from tests.conftest import Ledger

DOWN = OperationalError("SELECT 1", {}, Exception("connection refused\nis the server running?"))


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
def test_a_look_that_fails_is_logged_and_the_next_one_comes(
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    *,
    traced: bool,
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


def test_no_lease_is_forfeited_that_may_still_run_by_the_databases_clock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    earliest = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
    later = earliest + timedelta(hours=1)
    monkeypatch.setattr(Clock, "moment", lambda _: Moment(later, earliest))
    looked: list[tuple[str, datetime]] = []
    for work in ("expire_reservations", "alert_stale_reservations"):
        monkeypatch.setattr(maintenance, work, lambda _, now, work=work: looked.append((work, now)))

    _maintain(ledger, looked, 2)
    assert looked[:2] == [("expire_reservations", earliest), ("alert_stale_reservations", earliest)]
