"""The awaited client: it does as the other one, whoever is cancelled wherever it waits."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from epsilon_ledger import AsyncRun, BudgetExceededError, RequestInDoubtError
from tests.sdk.simulation import BUDGET, HUSHED, LOUD, QUIET, Simulation
from tests.sdk.test_grants import AHEAD, every_way, fading, in_grants
from tests.soak import thinned


def with_run(simulation: Simulation, work: Callable[[AsyncRun], Awaitable[None]], **terms: Any) -> AsyncRun:  # noqa: ANN401 - passed on
    """Register a run, and do something with it, in a loop of its own."""

    async def main() -> AsyncRun:
        async with simulation.async_client() as client:
            run = await client.create_run("model", **({"budget": BUDGET, "event": LOUD} | terms))
            await work(run)
            return run

    return asyncio.run(main())


@every_way
def test_clean_exit_charges_exactly_what_was_released(simulation: Simulation, ahead: dict[str, Any]) -> None:
    async def work(run: AsyncRun) -> None:
        async with run:
            for step in range(7):
                assert (await simulation.authorize_async(run)).first_step == step
            async for step in run.track(range(7, 10), progress=False):
                simulation.note(run, [fading(step)])
            assert (await run.preview(2)).first_step == 10
            await simulation.authorize_async(run, 2, event=QUIET)
            await simulation.authorize_async(run)
            await run.report(event=HUSHED)
            simulation.note(run, [HUSHED])
            cut = await run.authorize(10_000, event=LOUD, truncate=True)
            simulation.note(run, [LOUD] * cut.count)
            with pytest.raises(BudgetExceededError):
                await run.authorize(1000, event=LOUD)
            assert (await run.refresh()).next_step == run.next_step
        assert run.status == "completed"

    assert simulation.exact(with_run(simulation, work, **ahead, schedule=fading))


class Canceller:
    """Cancels the task that waits for the line the n-th time, if it is not one of the client's own."""

    def __init__(self, *waits: int) -> None:
        self.waits = set(waits)
        self.waited = 0
        self.hit = 0

    def __call__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not task.get_name().startswith("trainer"):
            return
        self.waited += 1
        if self.waited in self.waits:
            self.hit += 1
            task.cancel()


async def insisting(ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Ask in a task that may be cancelled, until it was not."""
    while True:
        task = asyncio.create_task(ask(), name="trainer")
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
            return


@pytest.mark.parametrize("ahead", thinned(list(AHEAD.values()), 2), ids=AHEAD)
def test_call_that_is_cancelled_wherever_it_waits_is_settled_by_next_one(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    async def work(run: AsyncRun) -> None:
        for step in range(4):
            await insisting(lambda: simulation.authorize_async(run))
            if step == 1:
                await insisting(lambda: simulation.authorize_async(run, event=QUIET))
        await insisting(lambda: as_coroutine(run.preview))
        await insisting(lambda: as_coroutine(run.complete))

    for wait in range(1, 25):
        simulation.wire.awaited = canceller = Canceller(wait)
        run = with_run(simulation, work, **ahead, event=HUSHED, schedule=None)
        if not canceller.hit:
            break
        assert simulation.exact(run)
    assert canceller.hit == 0, "every place was tried"


async def as_coroutine(ask: Callable[[], Awaitable[object]]) -> object:
    return await ask()


@every_way
def test_tasks_share_run_and_some_are_cancelled(simulation: Simulation, ahead: dict[str, Any]) -> None:
    numbers: list[int] = []

    async def train(run: AsyncRun) -> None:
        numbers.extend([(await simulation.authorize_async(run)).first_step for _ in range(8)])

    async def work(run: AsyncRun) -> None:
        tasks = [asyncio.create_task(train(run), name=f"trainer {number}") for number in range(6)]
        await asyncio.wait(tasks)
        assert any(task.cancelled() for task in tasks)
        await simulation.authorize_async(run)
        await run.complete()

    simulation.wire.awaited = Canceller(2, 5, 9)
    run = with_run(simulation, work, **ahead)
    assert len(set(numbers)) == len(numbers)
    assert simulation.exact(run)


def test_cancelled_step_without_answer_blocks_other_requests(simulation: Simulation) -> None:
    async def work(run: AsyncRun) -> None:
        task = asyncio.create_task(run.authorize(2), name="trainer")
        await asyncio.wait([task])
        assert task.cancelled()
        with pytest.raises(RequestInDoubtError):
            await run.authorize()
        with pytest.raises(RequestInDoubtError):
            await run.preview()
        assert (await simulation.authorize_async(run, 2)).first_step == 0

    simulation.wire.awaited = Canceller(2)
    assert simulation.exact(with_run(simulation, work))


def test_grant_in_background_that_is_cancelled_with_everything_else_is_asked_for_again(simulation: Simulation) -> None:
    async def work(run: AsyncRun) -> None:
        for _ in range(3):
            await simulation.authorize_async(run)
        assert run._inflight is not None
        run._inflight.cancel()
        for _ in range(6):
            await simulation.authorize_async(run)
        assert run._inflight is not None
        flight = run._inflight
        waiting = asyncio.create_task(as_coroutine(run.complete))
        await asyncio.sleep(0)
        flight.cancel()
        await waiting

    assert simulation.exact(with_run(simulation, work, authorize_every=5, background=True))


@in_grants
def test_trainer_that_is_cancelled_aborts_its_run_and_all_of_its_grant_is_charged(
    simulation: Simulation, ahead: dict[str, Any]
) -> None:
    runs: list[AsyncRun] = []

    async def train(run: AsyncRun) -> None:
        async with run:
            runs.append(run)
            while True:
                await simulation.authorize_async(run)

    async def work(run: AsyncRun) -> None:
        task = asyncio.create_task(train(run), name="trainer")
        await asyncio.wait([task])
        assert task.cancelled()

    simulation.wire.awaited = Canceller(5)
    run = with_run(simulation, work, **ahead)
    assert run.status == "aborted"
    assert simulation.covers()
    assert simulation.charged(run).total() % 5 == 0
    assert simulation.sound()
