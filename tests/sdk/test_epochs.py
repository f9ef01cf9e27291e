"""An epoch of fixed batches is charged once, as its costliest batch, where a replaced record is in one batch only."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count, cycle
from typing import Any

import numpy as np
import pytest

from epsilon_ledger import (
    AsyncRun,
    BudgetExceededError,
    ChargeExceededError,
    Event,
    EventCount,
    LedgerUnavailableError,
    Run,
    composed,
    decay,
    discrete_gaussian,
    gaussian,
    laplace,
    poisson_sampled,
    sampled_with_replacement,
    sampled_without_replacement,
    truncated_poisson_sampled,
)
from tests.conftest import Ledger
from tests.sdk.simulation import LOUD, TRIES, Simulation, simulated
from tests.sdk.test_grants import AHEAD
from tests.sdk.wire import Fault

BATCHES = [[0, 1], [2, 3], [4]]
NOISY = gaussian(30.0)
RELATIONS = ("replace_one", "replace_special")


def people(ledger: Ledger) -> None:
    """Make a budget, and a population of each relation under which an epoch may be charged once."""
    ledger.population()
    ledger.budget()
    for relation in RELATIONS:
        limit = {"epsilon": 6.0, "delta": 1e-5}
        ledger.population(relation, privacy_unit="record", neighboring_relation=relation, limit=limit)


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """One ledger for all of these tests, each with a run of its own."""
    with simulated(tmp_path_factory.mktemp("epochs"), people) as made:
        yield made


@pytest.fixture
def run(simulation: Simulation) -> Run:
    return simulation.run(budget="replace_one", event=NOISY)


def charged(simulation: Simulation, run: Run | AsyncRun) -> int:
    return simulation.charged(run).total()


def counted(*events: Event) -> list[EventCount]:
    return [{"event": event, "count": 1} for event in events]


@pytest.mark.parametrize(("relation", "way"), [*(("replace_one", way) for way in AHEAD), ("replace_special", "grants")])
def test_each_epoch_is_charged_once_before_its_first_batch(simulation: Simulation, relation: str, way: str) -> None:
    with simulation.run(budget=relation, event=NOISY, **AHEAD[way]) as run:
        for epoch in range(2):
            found = []
            for batch in run.track_epoch(BATCHES):
                assert charged(simulation, run) == epoch + 1
                found.append(batch)
            simulation.note(run, [NOISY])
            assert found == BATCHES
        simulation.authorize(run)
    assert simulation.exact(run)


def test_awaited_epoch_and_training_are_charged_alike(simulation: Simulation) -> None:
    async def batches() -> AsyncIterator[list[int]]:
        for batch in BATCHES:
            yield batch

    async def main() -> None:
        async with simulation.async_client() as client:
            run = await client.create_run("awaited", budget="replace_one")
            assert [batch async for batch in run.track_epoch(BATCHES, NOISY)] == BATCHES
            assert [batch async for batch in run.track_epoch(batches(), NOISY, steps=3)] == BATCHES
            charge = await run.charge_epoch(batches(), NOISY, steps=3)
            charge.authorize(3)
            training = await run.charge_training(NOISY, steps=2)
            assert list(training.track("a")) == ["a"]
            simulation.note(run, [NOISY] * 4)
            again = await client.resume_run(run.state_dict())
            went_on = await again.charge_training(NOISY, steps=2, resume=training.suspend())
            assert (went_on.step, charged(simulation, run)) == (1, 4)
            await again.complete()
        assert simulation.exact(run)
        with pytest.raises(ValueError, match="no length"):
            run.track_epoch(batches(), NOISY)

    asyncio.run(main())


def test_awaited_epoch_of_repeated_batches_is_refused(simulation: Simulation) -> None:
    async def main() -> None:
        async with simulation.async_client() as client:
            run = await client.create_run("repeated", budget="replace_one", event=NOISY)
            with pytest.raises(ValueError, match="a cycle repeats them"):
                run.track_epoch(cycle(BATCHES), steps=3)
            with pytest.raises(ValueError, match="a cycle repeats them"):
                await run.charge_epoch(cycle(BATCHES), steps=3)
            assert charged(simulation, run) == 0

    asyncio.run(main())


SAMPLED = [
    poisson_sampled(0.1, NOISY),
    sampled_without_replacement(10, 2, NOISY),
    sampled_with_replacement(10, 2, NOISY),
    truncated_poisson_sampled(10, 0.1, 2, NOISY),
    composed([NOISY, poisson_sampled(0.1, NOISY)]),
]
DIFFERENT: list[Sequence[Event]] = [
    (gaussian(30.0), laplace(20.0)),
    (gaussian(30.0), gaussian(30.0, clipped="microbatch")),
    (discrete_gaussian(30.0, 2), discrete_gaussian(30.0, 3)),
    (composed([NOISY]), composed([NOISY, NOISY])),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"event": event}, "authorize each step") for event in SAMPLED),
    *(({"events": counted(*events)}, "differ in more than their noise") for events in DIFFERENT),
    ({"event": decay("exp", 0.1, NOISY, steps=3)}, "give `events`"),
    ({"event": NOISY, "events": counted(NOISY)}, "either event or events"),
    ({"events": []}, "at least one batch"),
    ({"batches": cycle(BATCHES), "steps": 3}, r"a cycle repeats them.*assume_disjoint=True"),
    ({"batches": count()}, "as `steps`"),
]


def test_epoch_that_is_not_one_event_of_disjoint_batches_is_refused(simulation: Simulation, run: Run) -> None:
    for terms, advice in WRONG:
        with pytest.raises(ValueError, match=advice):
            run.track_epoch(**{"batches": BATCHES} | terms)
    with pytest.raises(ValueError, match="give the batches' `event`"):
        simulation.run(budget="replace_one", event=None).track_epoch(BATCHES)
    assert charged(simulation, run) == 0


def test_each_begun_epoch_is_charged_once_and_others_are_not(simulation: Simulation, run: Run) -> None:
    assert list(run.track_epoch([])) == []
    with pytest.raises(BudgetExceededError):
        next(run.track_epoch(BATCHES, gaussian(0.5)))
    assert charged(simulation, run) == 0
    for _ in run.track_epoch(BATCHES):
        break
    assert len(list(run.track_epoch(np.array_split(np.arange(10), 4)))) == 4
    assert charged(simulation, run) == 2
    epoch = run.charge_epoch(BATCHES)
    for _ in BATCHES:
        epoch.authorize()
    assert (epoch.event, epoch.remaining, charged(simulation, run)) == (NOISY, 0, 3)


def test_no_more_batches_are_handed_out_than_were_charged(simulation: Simulation, run: Run) -> None:
    growing = [[0], [1]]
    batches = run.track_epoch(growing)
    growing.extend([next(batches), next(batches)])
    with pytest.raises(ChargeExceededError):
        next(batches)
    with pytest.raises(ChargeExceededError, match="0 of 2 are left"):
        list(run.track_epoch(count(), steps=2))
    assert charged(simulation, run) == 2
    source = iter(BATCHES)
    next(source)
    rest = run.track_epoch(source, steps=2)
    assert list(rest) == BATCHES[1:]
    assert charged(simulation, run) == 3


def test_epoch_under_add_or_remove_one_is_refused_with_way_out(simulation: Simulation) -> None:
    run = simulation.run()
    for ask in (run.track_epoch, run.charge_epoch):
        with pytest.raises(ValueError, match=r"a further record moves others.*replace_one.*Poisson.*charge_training"):
            ask(BATCHES, LOUD)
    assert charged(simulation, run) == 0


def test_changing_noise_costs_least_of_it_once_though_it_was_unheard(simulation: Simulation, run: Run) -> None:
    events = counted(gaussian(30.0), gaussian(25.0), gaussian(28.0))
    simulation.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        next(run.track_epoch(BATCHES, events=events))
    assert list(run.track_epoch(iter(BATCHES), events=events)) == BATCHES
    simulation.note(run, [gaussian(25.0)])
    run.complete()
    assert simulation.exact(run)
