"""A trainer dies, or seems to, and another one goes on from its checkpoint: each release is charged to somebody."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from epsilon_ledger import (
    AttemptSupersededError,
    EventCount,
    LedgerUnavailableError,
    Run,
)
from tests.sdk.test_grants import every_way, fading, in_grants
from tests.sdk.world import HUSHED, LOUD, QUIET, TRIES, Fault, World


def take(world: World, run: Run, steps: int) -> None:
    for _ in range(steps):
        world.authorize(run)


@every_way
def test_a_checkpoint_is_json_and_says_how_far_the_training_is(world: World, ahead: dict[str, Any]) -> None:
    run = world.run(**ahead)
    take(world, run, 7)
    kept = json.loads(json.dumps(run.state_dict()))
    assert kept == {"format": 1, "run": run.id, "attempt": 1, "step": 7}
    resumed = world.client().resume_run(kept, **ahead)
    assert (resumed.attempt, resumed.state_dict()["step"]) == (2, 7)


@every_way
@pytest.mark.parametrize("back", [0, 1, 6])
def test_a_trainer_that_was_killed_goes_on_from_its_checkpoint(world: World, ahead: dict[str, Any], back: int) -> None:
    """Nobody says good-bye: the grant is charged in full, and what is repeated is charged again."""
    run = world.run(**ahead, schedule=fading)
    take(world, run, 8 - back)
    kept = run.state_dict()
    take(world, run, back)
    with world.client().resume_run(kept, **ahead, schedule=fading) as resumed:
        assert (resumed.id, resumed.attempt, resumed.state_dict()["step"]) == (run.id, 2, 8 - back)
        take(world, resumed, 6)
        assert world.covers()
    wasted = world.charged(run) - world.released[run.id]
    assert wasted.total() < ahead.get("authorize_every", 1) * 2
    assert world.covers()
    assert world.sound()


@every_way
def test_a_run_is_taken_up_by_its_id_where_nothing_is_repeated(world: World, ahead: dict[str, Any]) -> None:
    run = world.run(**ahead)
    take(world, run, 5)
    run.preview()
    with world.client().resume_run(run.id, **ahead) as resumed:
        assert (resumed.attempt, resumed.next_step) == (2, 5)
        take(world, resumed, 3)
    assert world.exact(run)


def test_what_is_no_checkpoint_is_said_to_be_none(world: World) -> None:
    for state in ({}, {"format": 2, "run": "run_1", "step": 1}, {"format": 1, "run": "run_1", "step": "1"}):
        with pytest.raises(ValueError, match="not what run.state_dict"):
            world.client().resume_run(state)  # type: ignore[arg-type]


FAR = 12
"""Steps that no grants cover which were made before the process was given up."""

ZOMBIE: dict[str, Callable[[World, Run], object]] = {
    "a step": lambda world, run: take(world, run, FAR),
    "a list": lambda world, run: listed(world, run),
    "another event": lambda world, run: world.authorize(run, event=HUSHED),
    "a preview and a step": lambda world, run: (run.preview(), take(world, run, FAR)),
    "a fresh look and a step": lambda world, run: (run.refresh(), take(world, run, FAR)),
    "a pause and a step": lambda world, run: (run.pause(), run.resume(), take(world, run, FAR)),
    "a report": lambda world, run: reported(world, run),
    "a plan": lambda _, run: run.reserve([EventCount(event=LOUD, count=3)]),
}


def listed(world: World, run: Run) -> None:
    run.authorize(events=[EventCount(event=QUIET, count=2)])
    world.note(run, [QUIET] * 2)


def reported(world: World, run: Run) -> None:
    run.report(event=QUIET)
    world.note(run, [QUIET])


@every_way
@pytest.mark.parametrize("what", ZOMBIE)
def test_a_process_that_was_given_up_is_fenced_off_and_what_it_released_is_charged(
    world: World, ahead: dict[str, Any], what: str
) -> None:
    zombie = world.run(**ahead)
    take(world, zombie, 3)
    resumed = world.client().resume_run(zombie.state_dict(), **ahead)
    take(world, resumed, 2)
    with pytest.raises(ValueError if what == "a plan" and ahead else AttemptSupersededError):
        ZOMBIE[what](world, zombie)
    assert zombie.attempt == 1
    assert world.covers()
    if what == "a pause and a step":
        resumed.resume()
    take(world, resumed, 6)
    resumed.complete()
    assert world.covers()
    assert world.sound()


@in_grants
def test_a_clean_exit_of_a_process_that_was_given_up_ends_nobody_elses_grant(
    world: World, ahead: dict[str, Any]
) -> None:
    with pytest.raises(AttemptSupersededError), world.run(**ahead) as zombie:
        take(world, zombie, 1)
        resumed = world.client().resume_run(zombie.state_dict(), **ahead)
        take(world, resumed, 4)
        take(world, zombie, 1)
    assert world.covers()
    assert resumed.refresh().status == "active"
    take(world, resumed, 1)
    resumed.complete()
    assert world.covers()
    assert world.sound()


@every_way
@pytest.mark.parametrize("error", [None, RuntimeError("out of memory")], ids=["cleanly", "with an exception"])
def test_a_process_that_was_given_up_and_leaves_does_not_end_the_run(
    world: World, ahead: dict[str, Any], error: Exception | None
) -> None:
    with pytest.raises(AttemptSupersededError if error is None else RuntimeError), world.run(**ahead) as zombie:
        take(world, zombie, 2)
        resumed = world.client().resume_run(zombie.state_dict(), **ahead)
        if error is not None:
            raise error
    take(world, resumed, 6)
    resumed.complete()
    assert world.covers()
    assert world.sound()


@in_grants
def test_a_request_of_a_process_that_was_given_up_comes_late(world: World, ahead: dict[str, Any]) -> None:
    zombie = world.run(**ahead)
    take(world, zombie, 2)
    world.wire.fails(*[Fault.LATE] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        zombie.preview()
    resumed = world.client().resume_run(zombie.state_dict(), **ahead)
    take(world, resumed, 3)
    for reply in world.wire.deliver():
        assert reply.status_code == 409
    take(world, resumed, 3)
    resumed.complete()
    assert world.covers()
