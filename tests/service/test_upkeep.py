"""The regular upkeep outlives whatever goes wrong, and does not fill the log with it."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from app.service import upkeep
from tests.conftest import Ledger

DOWN = OperationalError("SELECT 1", {}, Exception("connection refused\nis the server running?"))


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

    monkeypatch.setattr(upkeep, "forfeit_lapsed", look)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)

    async def work() -> None:
        keeping = asyncio.create_task(upkeep.keep_up(ledger.database))
        async with asyncio.timeout(30):
            while len(looks) < 3:  # noqa: ASYNC110 - another thread looks
                await asyncio.sleep(0.01)
        keeping.cancel()

    asyncio.run(work())
    [record] = [record for record in caplog.records if "upkeep" in record.message]
    assert bool(record.exc_info) == traced
    assert "\n" not in record.message
