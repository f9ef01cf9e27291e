"""An epoch of fixed batches is charged once, as its costliest batch, where a replaced record is in one batch only."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import cycle, pairwise
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
from tests.sdk.simulation import LOUD, QUIET, TRIES, Fault, Simulation
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


def counted(events: list[Event]) -> list[EventCount]:
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


def test_an_epoch_of_noise_costs_what_the_documents_say(simulation: Simulation) -> None:
    client = simulation.client("admin")
    batch = gaussian(1.5)
    costs = [
        client.compute_epsilon(
            [{"event": batch, "count": count}], delta=1e-5, neighboring_relation="replace_one"
        ).epsilon
        for count in (1, 1_875)
    ]
    assert costs == [pytest.approx(6.60, abs=0.005), pytest.approx(1_940, abs=0.5)]


def test_awaited_it_is_the_same(simulation: Simulation) -> None:
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


def test_a_callback_charges_an_epoch_and_counts_its_batches(simulation: Simulation, run: Run) -> None:
    epoch = run.charge_epoch(BATCHES)
    for _ in BATCHES:
        epoch.authorize()
    assert (epoch.event, epoch.remaining, charged(simulation, run)) == (NOISY, 0, 1)


def test_batches_of_numpy_have_a_known_number(simulation: Simulation, run: Run) -> None:
    order = np.random.default_rng(0).permutation(10)
    found = np.concatenate(list(run.track_epoch(np.array_split(order, 4))))
    assert (found == order).all()
    assert charged(simulation, run) == 1


def test_under_add_or_remove_one_it_is_refused_with_the_way_out(simulation: Simulation) -> None:
    run = simulation.run()
    for ask in (run.track_epoch, run.charge_epoch):
        with pytest.raises(ValueError, match=r"a further record moves others.*replace_one.*Poisson.*charge_training"):
            ask(BATCHES, LOUD)
    assert charged(simulation, run) == 0


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        (poisson_sampled(0.1, NOISY), "authorize each step"),
        (sampled_without_replacement(10, 2, NOISY), "authorize each step"),
        (sampled_with_replacement(10, 2, NOISY), "authorize each step"),
        (truncated_poisson_sampled(10, 0.1, 2, NOISY), "authorize each step"),
        (composed([NOISY, poisson_sampled(0.1, NOISY)]), "authorize each step"),
        (decay("exp", 0.1, NOISY, steps=3), "give `events`"),
    ],
)
def test_an_event_that_is_not_of_one_batch_is_refused(run: Run, event: Event, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        run.track_epoch(BATCHES, event)


# Noise that changes within the epoch.


def test_changing_noise_costs_the_least_of_it(simulation: Simulation, run: Run) -> None:
    events = counted([gaussian(30.0), gaussian(25.0), gaussian(28.0)])
    assert list(run.track_epoch(iter(BATCHES), events=events)) == BATCHES
    simulation.note(run, [gaussian(25.0)])
    run.complete()
    assert simulation.exact(run)


@pytest.mark.parametrize(
    "events",
    [
        [gaussian(30.0), laplace(20.0)],
        [gaussian(30.0), gaussian(30.0, clipped="microbatch")],
        [discrete_gaussian(30.0, 2), discrete_gaussian(30.0, 3)],
        [composed([NOISY]), composed([NOISY, NOISY])],
    ],
)
def test_events_that_differ_in_more_than_noise_are_refused(run: Run, events: list[Event]) -> None:
    with pytest.raises(ValueError, match="differ in more than their noise"):
        run.track_epoch(BATCHES, events=counted(events))


def test_arguments_that_contradict_each_other_are_refused(simulation: Simulation, run: Run) -> None:
    with pytest.raises(ValueError, match="either event or events"):
        run.track_epoch(BATCHES, NOISY, events=counted([NOISY]))
    with pytest.raises(ValueError, match="at least one batch"):
        run.track_epoch(BATCHES, events=[])
    bare = simulation.client().create_run("bare", budget="people")
    with pytest.raises(ValueError, match="give the batches' `event`"):
        bare.track_epoch(BATCHES)


# The number of batches is bounded.


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def test_batches_without_a_length_need_their_number(simulation: Simulation, run: Run) -> None:
    with pytest.raises(ValueError, match="as `steps`"):
        run.track_epoch(endless())
    found: list[int] = []
    with pytest.raises(ChargeExceededError, match="0 of 2 are left"):
        found.extend(run.track_epoch(endless(), steps=2))
    assert charged(simulation, run) == 1


def test_a_list_that_grows_is_no_longer_charged(run: Run) -> None:
    batches = [[0], [1]]
    epoch = run.track_epoch(batches)
    batches.extend([next(epoch), next(epoch)])
    with pytest.raises(ChargeExceededError):
        next(epoch)


def test_a_cycle_is_no_epoch(run: Run) -> None:
    with pytest.raises(ValueError, match=r"a cycle repeats them.*disjoint=True"):
        run.track_epoch(cycle(BATCHES), steps=3)


def test_an_epoch_without_batches_costs_nothing(simulation: Simulation, run: Run) -> None:
    assert list(run.track_epoch([])) == []
    assert charged(simulation, run) == 0


# Interruptions.


def test_an_epoch_that_is_begun_anew_is_charged_anew(simulation: Simulation, run: Run) -> None:
    for _ in run.track_epoch(BATCHES):
        break
    assert len(list(run.track_epoch(BATCHES))) == 3
    assert charged(simulation, run) == 2


def test_a_loader_that_was_partly_read_goes_on_under_the_charge_of_the_rest(simulation: Simulation, run: Run) -> None:
    source = iter(BATCHES)
    next(source)
    epoch = run.track_epoch(source, steps=2)
    assert [next(epoch), next(epoch)] == BATCHES[1:]
    assert list(epoch) == []
    assert charged(simulation, run) == 1


def test_without_an_answer_an_epoch_is_charged_once_when_it_is_asked_for_again(
    simulation: Simulation, run: Run
) -> None:
    simulation.wire.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        next(run.track_epoch(BATCHES))
    assert list(run.track_epoch(BATCHES)) == BATCHES
    assert charged(simulation, run) == 1


def test_a_refused_epoch_yields_no_batch(simulation: Simulation, run: Run) -> None:
    with pytest.raises(BudgetExceededError):
        next(run.track_epoch(BATCHES, gaussian(0.5)))
    assert charged(simulation, run) == 0


def test_epochs_and_steps_are_charged_one_after_another(simulation: Simulation, run: Run) -> None:
    for first, second in pairwise([NOISY, QUIET, LOUD]):
        list(run.track_epoch(BATCHES, first))
        simulation.note(run, [first])
        simulation.authorize(run, event=second)
    run.complete()
    assert simulation.exact(run)
