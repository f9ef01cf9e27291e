"""An epoch of fixed batches is charged once, as its costliest batch, where a replaced record is in one batch only."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from epsilon_ledger import (
    BudgetExceededError,
    ChargeExceededError,
    Event,
    EventCount,
    LedgerUnavailableError,
    Limit,
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
from tests.sdk.simulation import LOUD, TRIES, Fault, Simulation
from tests.sdk.test_grants import every_way

BATCHES = [[0, 1], [2, 3], [4]]
NOISY = gaussian(30.0)


def open_run(simulation: Simulation, relation: Any = "replace_one", **terms: Any) -> Run:  # noqa: ANN401 - passed on
    admin = simulation.client("admin")
    admin.create_population("people", privacy_unit="record", neighboring_relation=relation, limit=Limit(6.0, 1e-5))
    return simulation.client().create_run("model", budget="people", **terms)


@pytest.fixture
def run(simulation: Simulation) -> Run:
    return open_run(simulation, event=NOISY)


def charged(simulation: Simulation, run: Run) -> int:
    return simulation.charged(run).total()


def counted(events: Sequence[Event]) -> list[EventCount]:
    return [{"event": event, "count": 1} for event in events]


@every_way
@pytest.mark.parametrize("relation", ["replace_one", "replace_special"])
def test_each_epoch_is_charged_once_before_its_first_batch(
    simulation: Simulation, relation: str, ahead: dict[str, Any]
) -> None:
    with open_run(simulation, relation, event=NOISY, **ahead) as run:
        for epoch in range(3):
            found = []
            for batch in run.track_epoch(BATCHES):
                assert charged(simulation, run) == epoch + 1
                found.append(batch)
            simulation.note(run, [NOISY])
            assert found == BATCHES
        simulation.authorize(run)
    assert simulation.exact(run)


def test_awaited_it_is_same(simulation: Simulation) -> None:
    open_run(simulation)

    async def batches() -> AsyncIterator[list[int]]:
        for batch in BATCHES:
            yield batch

    async def main() -> None:
        async with simulation.async_client() as client, client.create_run("awaited", budget="people") as run:
            assert [batch async for batch in run.track_epoch(BATCHES, NOISY)] == BATCHES
            assert [batch async for batch in run.track_epoch(batches(), NOISY, steps=3)] == BATCHES
            charge = await run.charge_epoch(batches(), NOISY, steps=3)
            charge.authorize(3)
            simulation.note(run, [NOISY] * 3)
        assert simulation.exact(run)
        with pytest.raises(ValueError, match="no length"):
            run.track_epoch(batches(), NOISY)

    asyncio.run(main())


WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({"event": event}, "authorize each step")
        for event in (
            poisson_sampled(0.1, NOISY),
            sampled_without_replacement(10, 2, NOISY),
            sampled_with_replacement(10, 2, NOISY),
            truncated_poisson_sampled(10, 0.1, 2, NOISY),
            composed([NOISY, poisson_sampled(0.1, NOISY)]),
        )
    ),
    ({"event": decay("exp", 0.1, NOISY, steps=3)}, "give `events`"),
    *(
        ({"events": counted(events)}, "differ in more than their noise")
        for events in (
            [gaussian(30.0), laplace(20.0)],
            [gaussian(30.0), gaussian(30.0, clipped="microbatch")],
            [discrete_gaussian(30.0, 2), discrete_gaussian(30.0, 3)],
            [composed([NOISY]), composed([NOISY, NOISY])],
        )
    ),
    ({"event": NOISY, "events": counted([NOISY])}, "either event or events"),
    ({"events": []}, "at least one batch"),
    ({"batches": cycle(BATCHES), "steps": 3}, r"a cycle repeats them.*disjoint=True"),
]


@pytest.mark.parametrize(("terms", "advice"), WRONG)
def test_epoch_that_is_not_one_event_of_disjoint_batches_is_refused(
    simulation: Simulation, terms: dict[str, Any], advice: str
) -> None:
    run = open_run(simulation, event=NOISY)
    with pytest.raises(ValueError, match=advice):
        run.track_epoch(**{"batches": BATCHES} | terms)
    bare = simulation.client().create_run("bare", budget="people")
    with pytest.raises(ValueError, match="give the batches' `event`"):
        bare.track_epoch(BATCHES)
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
    growing = [[0], [1]]
    batches = run.track_epoch(growing)
    growing.extend([next(batches), next(batches)])
    with pytest.raises(ChargeExceededError):
        next(batches)


def test_epoch_under_add_or_remove_one_is_refused_with_way_out(simulation: Simulation) -> None:
    run = simulation.run()
    for ask in (run.track_epoch, run.charge_epoch):
        with pytest.raises(ValueError, match=r"a further record moves others.*replace_one.*Poisson.*charge_training"):
            ask(BATCHES, LOUD)
    assert charged(simulation, run) == 0


# Noise that changes within the epoch.


def test_changing_noise_costs_least_of_it(simulation: Simulation, run: Run) -> None:
    events = counted([gaussian(30.0), gaussian(25.0), gaussian(28.0)])
    assert list(run.track_epoch(iter(BATCHES), events=events)) == BATCHES
    simulation.note(run, [gaussian(25.0)])
    run.complete()
    assert simulation.exact(run)


# The number of batches is bounded.


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def test_batches_without_length_need_their_number(simulation: Simulation, run: Run) -> None:
    with pytest.raises(ValueError, match="as `steps`"):
        run.track_epoch(endless())
    found: list[int] = []
    with pytest.raises(ChargeExceededError, match="0 of 2 are left"):
        found.extend(run.track_epoch(endless(), steps=2))
    assert charged(simulation, run) == 1


# Interruptions.


def test_loader_that_was_partly_read_goes_on_under_charge_of_rest(simulation: Simulation, run: Run) -> None:
    source = iter(BATCHES)
    next(source)
    epoch = run.track_epoch(source, steps=2)
    assert [next(epoch), next(epoch)] == BATCHES[1:]
    assert list(epoch) == []
    assert charged(simulation, run) == 1


def test_epoch_without_answer_is_charged_once_when_repeated(simulation: Simulation, run: Run) -> None:
    simulation.wire.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        next(run.track_epoch(BATCHES))
    assert list(run.track_epoch(BATCHES)) == BATCHES
    assert charged(simulation, run) == 1
