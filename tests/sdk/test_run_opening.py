"""Runs of asyncio programs: `async with` opens and enters one, `await` opens one."""

import asyncio
import gc
import inspect
import logging
import warnings

import httpx2
import pytest

from epsilon_ledger import (
    AsyncLedgerClient,
    AsyncRun,
    BudgetExceededError,
    LedgerUnavailableError,
    RunOpening,
    StepsAlreadyTakenError,
    gaussian,
)
from tests.sdk.fake_ledger import KEY, RUN_ID, URL, FakeLedger, Fault


def client_of(ledger: FakeLedger) -> AsyncLedgerClient:
    return AsyncLedgerClient(URL, KEY, max_attempts=1, transport=httpx2.MockTransport(ledger))


def test_a_run_is_opened_entered_and_completed_without_an_await(ledger: FakeLedger) -> None:
    async def main() -> None:
        async with client_of(ledger) as client, client.create_run("model", budget="mimic", event=gaussian(2.0)) as run:
            assert isinstance(run, AsyncRun)
            assert (await run.authorize()).first_step == 0
            assert run.status == "active"
        assert run.status == "completed"

    asyncio.run(main())
    assert [request.url.path.rpartition("/")[2] for request in ledger.requests] == ["runs", "steps", "complete"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("of the training"), "aborted"),
        (StepsAlreadyTakenError("by another one"), "active"),
        (asyncio.CancelledError(), "aborted"),
    ],
)
def test_an_exception_ends_the_run_as_after_an_await(ledger: FakeLedger, error: BaseException, status: str) -> None:
    async def main() -> None:
        async with client_of(ledger) as client:
            with pytest.raises(type(error)):
                async with client.get_run(RUN_ID):
                    raise error

    asyncio.run(main())
    assert ledger.status == status


def test_a_refusal_completes_the_run(ledger: FakeLedger) -> None:
    async def main() -> None:
        async with client_of(ledger) as client:
            with pytest.raises(BudgetExceededError):
                async with client.resume_run(RUN_ID) as run:
                    await run.authorize(11)

    asyncio.run(main())
    assert ledger.status == "completed"


def test_a_run_that_cannot_be_opened_is_not_ended(ledger: FakeLedger) -> None:
    async def main() -> None:
        async with client_of(ledger) as client:
            with pytest.raises(LedgerUnavailableError):
                async with client.create_run("model", budget="mimic"):
                    pytest.fail("it was not opened")

    ledger.faults.append(Fault(instead=httpx2.ConnectError("down")))
    asyncio.run(main())
    assert len(ledger.requests) == 1


def test_an_opening_can_be_awaited_gathered_and_made_a_task(ledger: FakeLedger) -> None:
    async def main() -> None:
        async with client_of(ledger) as client:
            opening = client.get_run(RUN_ID)
            assert isinstance(opening, RunOpening)
            assert inspect.isawaitable(opening)
            assert asyncio.iscoroutine(opening)
            run: AsyncRun = await opening
            gathered = await asyncio.gather(client.get_run(RUN_ID), client.get_run(RUN_ID))
            task = await asyncio.create_task(client.get_run(RUN_ID))
            waited = await asyncio.wait_for(client.get_run(RUN_ID), 5)
            assert {each.id for each in (run, *gathered, task, waited)} == {RUN_ID}
            async with run:
                pass
            assert run.status == "completed"

    asyncio.run(main())


def test_wrong_arguments_are_refused_at_once(ledger: FakeLedger) -> None:
    client = client_of(ledger)
    with pytest.raises(ValueError, match="state_dict"):
        client.resume_run({"format": 0})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'x' is no argument"):
        client.create_run("model", budget="mimic", x=1)  # type: ignore[call-arg]


def test_an_opening_that_is_dropped_warns_and_a_closed_one_is_silent(
    ledger: FakeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(ledger)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.get_run(RUN_ID).close()
        gc.collect()
        assert not caught
        client.get_run(RUN_ID)
        gc.collect()
    assert ["was never awaited" in str(warning.message) for warning in caught] == [True]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not ledger.requests
