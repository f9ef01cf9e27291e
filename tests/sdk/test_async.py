"""The awaited client: it does as the other one, whoever is cancelled wherever it waits."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from epsilon_ledger import AsyncRun, BudgetExceededError, StepsAlreadyTakenError
from tests.sdk.simulation import BUDGET, HUSHED, LOUD, QUIET, TRIES, Simulation
from tests.sdk.test_grants import AHEAD, every_way, fading, in_grants
from tests.sdk.wire import Fault
from tests.soak import thinned

ANYWHERE = 25
"""More places than the client waits at in a training."""


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


def trainer(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """Work in a task that may be cancelled."""
    return asyncio.create_task(work, name="trainer")


async def insisting(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask in a task that may be cancelled, until it was not."""
    while True:
        task = trainer(as_coroutine(ask))
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
            return


async def as_coroutine(ask: Callable[[], Awaitable[object]]) -> object:
    return await ask()


@pytest.mark.parametrize(("way", "stride"), thinned([(way, stride) for way in AHEAD for stride in (6, 1)], 2))
def test_call_that_is_cancelled_wherever_it_waits_is_settled_by_next_one(
    simulation: Simulation, way: str, stride: int
) -> None:
    async def work(run: AsyncRun) -> None:
        for step in range(4):
            await insisting(lambda: simulation.authorize_async(run))
            if step == 1:
                await insisting(lambda: simulation.authorize_async(run, event=QUIET))
        await insisting(run.preview)
        await insisting(run.complete)

    first = list(AHEAD).index(way) + 1
    for wait in range(first, ANYWHERE + stride, stride):
        simulation.awaited = canceller = Canceller(wait)
        run = with_run(simulation, work, **AHEAD[way], event=HUSHED, schedule=None)
        assert simulation.exact(run)
        if not canceller.hit:
            return
    pytest.fail("it waits at further places")


@in_grants
def test_tasks_share_run_and_some_are_cancelled(simulation: Simulation, ahead: dict[str, Any]) -> None:
    numbers: list[int] = []

    async def train(run: AsyncRun) -> None:
        numbers.extend([(await simulation.authorize_async(run)).first_step for _ in range(8)])

    async def work(run: AsyncRun) -> None:
        tasks = [trainer(train(run)) for _ in range(6)]
        await asyncio.wait(tasks)
        assert any(task.cancelled() for task in tasks)
        await simulation.authorize_async(run)
        await run.complete()

    simulation.awaited = Canceller(2, 5, 9)
    run = with_run(simulation, work, **ahead)
    assert len(set(numbers)) == len(numbers)
    assert simulation.exact(run)


def test_grant_in_background_that_is_cancelled_with_everything_else_is_asked_for_again(simulation: Simulation) -> None:
    async def work(run: AsyncRun) -> None:
        for steps in (3, 6):
            for _ in range(steps):
                await simulation.authorize_async(run)
            assert run._inflight is not None
            if steps == 3:
                run._inflight.cancel()
        flight = run._inflight
        waiting = asyncio.create_task(as_coroutine(run.complete))
        await asyncio.sleep(0)
        assert flight is not None
        flight.cancel()
        await waiting

    assert simulation.exact(with_run(simulation, work, prefetch=5, prefetch_in_background=True))


@in_grants
def test_run_of_another_trainer_is_left_with_nothing_in_flight(simulation: Simulation, ahead: dict[str, Any]) -> None:
    async def train(run: AsyncRun) -> None:
        async with run:
            for _ in range(3):
                await simulation.authorize_async(run)
            raise StepsAlreadyTakenError("by another one")

    async def work(run: AsyncRun) -> None:
        simulation.fails(Fault.NONE, *[Fault.LOST] * TRIES)
        with pytest.raises(StepsAlreadyTakenError):
            await train(run)
        assert run._inflight is None

    assert with_run(simulation, work, **ahead).status == "active"
    assert simulation.covers()


def test_unheard_step_is_repeated_after_pauses_and_charged_once(simulation: Simulation) -> None:
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    async def main() -> AsyncRun:
        client = simulation.async_client(async_sleep=nap, jitter=lambda _low, high: high)
        run = await client.create_run("model", budget=BUDGET, event=LOUD)
        simulation.fails(*[Fault.UNHEARD] * 2)
        await simulation.authorize_async(run)
        return run

    assert simulation.exact(asyncio.run(main()))
    assert naps == pytest.approx([0.1, 0.2])
