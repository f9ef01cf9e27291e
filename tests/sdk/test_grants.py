"""Steps that are granted ahead: handed out without the network, charged exactly, given back at a clean end."""

from collections import Counter
from typing import Any

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    EventCount,
    LedgerUnavailableError,
    Run,
    RunStateConflictError,
    gaussian,
)
from tests.sdk.world import HUSHED, LOUD, QUIET, TRIES, Fault, World

AHEAD: dict[str, dict[str, Any]] = {
    "one by one": {},
    "grants": {"authorize_every": 5},
    "in the background": {"authorize_every": 5, "background": True},
}
every_way = pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
in_grants = pytest.mark.parametrize("ahead", list(AHEAD.values())[1:], ids=list(AHEAD)[1:])


def take(world: World, run: Run, steps: int) -> None:
    for _ in range(steps):
        world.authorize(run)


def until_refused(world: World, run: Run) -> int:
    taken = 0
    try:
        while True:
            world.authorize(run)
            taken += 1
    except BudgetExceededError:
        return taken


def fading(step: int) -> Event:
    """Less noise every third step."""
    return {"type": "gaussian", "noise_multiplier": 60.0 - step // 3}


@every_way
@pytest.mark.parametrize("steps", [0, 4, 5, 12])
def test_a_clean_exit_charges_exactly_what_was_released(world: World, ahead: dict[str, Any], steps: int) -> None:
    with world.run(**ahead) as run:
        for step in range(steps):
            authorization = world.authorize(run)
            assert (authorization.first_step, authorization.next_step, run.next_step) == (step, step + 1, step + 1)
            assert world.covers()
    assert run.status == "completed"
    assert world.exact(run)


def test_a_grant_is_handed_out_without_the_network(world: World) -> None:
    run = world.run(authorize_every=5)
    for _ in range(5):
        world.authorize(run)
    assert world.wire.asked == ["runs", "reservations"]
    world.authorize(run)
    assert world.wire.asked == ["runs", "reservations", "reservations"]


@every_way
def test_a_budget_admits_as_many_steps_in_grants_as_one_by_one(world: World, ahead: dict[str, Any]) -> None:
    with world.run(**ahead, event=gaussian(20.0)) as run:
        most = run.state.steps_remaining
        assert most is not None
        assert most > 10
        assert until_refused(world, run) == most
    assert world.exact(run)


@every_way
def test_two_runs_share_a_budget_to_its_last_step(world: World, ahead: dict[str, Any]) -> None:
    first, second = world.run(**ahead, event=gaussian(20.0)), world.run(**ahead, event=gaussian(20.0))
    for _ in range(7):
        world.authorize(first)
        world.authorize(second)
    first.complete()
    until_refused(world, second)
    second.complete()
    assert world.exact(first, second)


@every_way
def test_a_schedule_is_charged_step_by_step(world: World, ahead: dict[str, Any]) -> None:
    with world.run(**ahead, event=None, schedule=fading) as run:
        for _ in range(17):
            world.authorize(run)
            assert world.covers()
        world.authorize(run, 4)
    assert world.exact(run)


@in_grants
def test_a_schedule_that_comes_back_to_an_event_is_charged_for_what_was_handed_out(
    world: World, ahead: dict[str, Any]
) -> None:
    cycle = [QUIET, LOUD, QUIET, HUSHED]
    with world.run(**ahead, schedule=lambda step: cycle[step % 4]) as run:
        for _ in range(14):
            world.authorize(run)
            assert world.covers()
    assert world.exact(run)


@in_grants
def test_spellings_of_one_event_are_one_event_to_the_ledger(world: World, ahead: dict[str, Any]) -> None:
    """It plans each event once: what it takes for the first event comes first, whatever stands in between."""
    cycle = [QUIET, LOUD, {**QUIET, "noise_multiplier": 60}, HUSHED, {**QUIET, "clipped": "microbatch"}]
    with world.run(**ahead, schedule=lambda step: cycle[step % 5]) as run:
        for _ in range(9):
            world.authorize(run)
            assert world.covers()
    assert world.exact(run)


@in_grants
def test_a_schedule_may_end_with_the_training(world: World, ahead: dict[str, Any]) -> None:
    planned = [fading(step) for step in range(12)]
    with world.run(**ahead, schedule=lambda step: planned[step]) as run:
        for _ in range(12):
            world.authorize(run)
        with pytest.raises(IndexError):
            run.authorize()
    assert world.exact(run)


@in_grants
def test_a_schedule_that_changes_its_mind_is_charged_for_what_was_granted(world: World, ahead: dict[str, Any]) -> None:
    noise = dict(LOUD)
    with world.run(**ahead, schedule=lambda _: noise) as run:
        world.authorize(run, 2)
        noise["noise_multiplier"] = 90.0
        world.wire.fails(*[Fault.UNHEARD] * TRIES)
        if run._background:
            world.authorize(run, event=LOUD)
        else:
            with pytest.raises(LedgerUnavailableError):
                run.authorize(4)
            world.authorize(run, event=LOUD)
        assert run.next_step == 3
        world.authorize(run, 2, event=LOUD)
        for _ in range(4):
            world.authorize(run)
            assert world.covers()
    assert world.exact(run)


@in_grants
def test_an_event_that_its_owner_changes_afterwards_is_charged_as_it_was(world: World, ahead: dict[str, Any]) -> None:
    mine = dict(LOUD)
    with world.run(**ahead, event=None) as run:
        world.authorize(run, event=mine)
        mine["noise_multiplier"] = 90.0
        for _ in range(8):
            world.authorize(run, event=dict(LOUD))
            assert world.covers()
        world.authorize(run, event=mine)
    assert world.exact(run)


@in_grants
def test_what_does_not_go_with_a_grant_ends_it_first(world: World, ahead: dict[str, Any]) -> None:
    with world.run(**ahead) as run:
        world.authorize(run, 2)
        assert run.preview(3).first_step == 2
        assert run.preview().dry_run
        world.authorize(run)
        several = [EventCount(event=LOUD, count=1), EventCount(event=QUIET, count=2)]
        run.authorize(events=several)
        world.note(run, [LOUD, QUIET, QUIET])
        world.authorize(run, event=QUIET)
        world.authorize(run, event=QUIET)
        world.authorize(run)
        world.authorize(run, 12)
        run.report(2, event=HUSHED)
        world.note(run, [HUSHED] * 2)
        world.authorize(run)
        run.pause()
        with pytest.raises(RunStateConflictError):
            world.authorize(run)
        run.resume()
        world.authorize(run)
        cut = run.authorize(10_000, truncate=True)
        world.note(run, [LOUD] * cut.count)
        assert cut.requested_count == 10_000
        with pytest.raises(BudgetExceededError):
            run.authorize()
    assert world.exact(run)


def test_a_refusal_in_the_background_leaves_what_was_granted(world: World) -> None:
    other = world.run()
    with world.run(authorize_every=4, background=True) as run:
        world.authorize(run)
        most = other.state.steps_remaining
        assert most is not None
        world.authorize(other, most - 4)
        for _ in range(3):
            world.authorize(run)
        with pytest.raises(BudgetExceededError):
            run.authorize()
        assert world.covers()
    other.complete()
    assert world.exact(run, other)


@in_grants
def test_whoever_ends_the_run_from_outside_lets_the_grant_be_charged(world: World, ahead: dict[str, Any]) -> None:
    for action in ("abort", "pause"):
        run = world.run(**ahead)
        world.authorize(run)
        getattr(world.client("admin").get_run(run.id), action)()
        with pytest.raises(RunStateConflictError):
            take(world, run, 5)
        # Whoever asks ahead is told ahead, as soon as that is answered.
        at_least = 3 if ahead.get("background") else 5
        assert at_least <= world.released[run.id].total() <= 5
        assert world.covers()
        with pytest.raises(RunStateConflictError):
            take(world, run, 6)
        assert world.covers()


def test_an_event_that_stands_for_many_steps_counts_as_one(world: World) -> None:
    many = {"type": "self_composed", "event": QUIET, "count": 3}
    decaying = {"type": "decay", "mode": "exp", "decay_rate": 0.01, "steps": 4, "event": QUIET}
    for event in (many, decaying):
        with world.run(authorize_every=3, event=event) as run:
            for _ in range(4):
                world.authorize(run)
        assert world.exact(run)


def test_an_event_with_a_tuple_in_it_is_granted_as_well(world: World) -> None:
    event: Event = {"type": "composed", "events": (QUIET, HUSHED)}
    with world.run(authorize_every=3, event=None) as run:
        for _ in range(3):
            world.authorize(run, event=event)
        assert world.wire.asked.count("reservations") == 1
    assert world.exact(run)


def test_a_grant_of_many_steps_is_one_plan(world: World) -> None:
    with world.run(authorize_every=1000, event=HUSHED) as run:
        most = run.state.steps_remaining
        assert most is not None
        for _ in range(most):
            world.authorize(run)
        assert Counter(world.wire.asked)["reservations"] <= 3
    assert world.exact(run)
