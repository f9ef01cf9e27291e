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
from tests.sdk.test_grants import AHEAD, every_way, fading, in_grants, take
from tests.sdk.world import HUSHED, QUIET, TRIES, Fault, World


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


@in_grants
def test_a_schedule_goes_on_only_at_a_step_that_is_known(world: World, ahead: dict[str, Any]) -> None:
    """The ledger charged the grant of a process that died, and numbered none of its steps."""
    run = world.run(**ahead, schedule=fading)
    take(world, run, 4)
    for take_up in (world.client().resume_run, world.client().get_run):
        with pytest.raises(ValueError, match="step that the training has reached"):
            take_up(run.id, **ahead, schedule=fading)
    with world.client().resume_run(run.id, **ahead, schedule=fading, step=4) as resumed:
        assert (resumed.attempt, resumed.step) == (2, 4)
        take(world, resumed, 6)
        assert world.covers()
    assert world.sound()


def test_a_run_that_was_taken_up_by_its_id_does_not_guess_how_far_the_training_is(world: World) -> None:
    run = world.run()
    take(world, run, 2)
    assert run.step == 2
    found = world.client().get_run(run.id)
    assert (found.step, found.state_dict()["step"]) == (None, None)
    with world.client().resume_run(found.state_dict()) as resumed:
        assert (resumed.attempt, resumed.next_step, resumed.step) == (2, 2, None)
    with pytest.raises(ValueError, match="written after 2 steps, not 5"):
        world.client().resume_run(run.state_dict(), step=5)


def test_what_is_no_checkpoint_is_said_to_be_none(world: World) -> None:
    for state in ({}, {"format": 2, "run": "run_1", "step": 1}, {"format": 1, "run": "run_1", "step": "1"}):
        with pytest.raises(ValueError, match="not what run"):
            world.client().resume_run(state)  # type: ignore[arg-type]


def listed(world: World, run: Run) -> None:
    run.authorize(events=[EventCount(event=QUIET, count=2)])
    world.note(run, [QUIET] * 2)


def reported(world: World, run: Run) -> None:
    run.report(event=QUIET)
    world.note(run, [QUIET])


def leave(error: Exception | None) -> None:
    if error is not None:
        raise error


FAR = 12
"""Steps that no grants cover which were made before the process was given up."""


def going_on(world: World, run: Run) -> None:
    take(world, run, FAR)


def asking_for_another_kind(world: World, run: Run) -> None:
    world.authorize(run, event=HUSHED)


def after_a_preview(world: World, run: Run) -> None:
    run.preview()
    take(world, run, FAR)


def after_a_fresh_look(world: World, run: Run) -> None:
    run.refresh()
    take(world, run, FAR)


def after_a_pause(world: World, run: Run) -> None:
    run.pause()
    run.resume()
    take(world, run, FAR)


@pytest.mark.parametrize("ahead", [AHEAD["one by one"], AHEAD["grants"]], ids=["one by one", "grants"])
@pytest.mark.parametrize(
    "doing",
    [going_on, asking_for_another_kind, after_a_preview, after_a_fresh_look, after_a_pause, listed, reported],
)
def test_a_process_that_was_given_up_is_fenced_off_and_what_it_released_is_charged(
    world: World, ahead: dict[str, Any], doing: Callable[[World, Run], None]
) -> None:
    zombie = world.run(**ahead)
    take(world, zombie, 3)
    resumed = world.client().resume_run(zombie.state_dict(), **ahead)
    take(world, resumed, 2)
    with pytest.raises(AttemptSupersededError):
        doing(world, zombie)
    assert zombie.attempt == 1
    assert world.covers()
    resumed.resume()
    take(world, resumed, 6)
    resumed.complete()
    assert world.covers()
    assert world.sound()


@in_grants
def test_a_clean_exit_of_a_process_that_was_given_up_ends_nobody_elses_grant(
    world: World, ahead: dict[str, Any]
) -> None:
    zombie = world.run(**ahead)
    take(world, zombie, 1)
    resumed = world.client().resume_run(zombie.state_dict(), **ahead)
    take(world, resumed, 4)
    with pytest.raises(AttemptSupersededError), zombie:
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
    zombie = world.run(**ahead)
    take(world, zombie, 2)
    resumed = world.client().resume_run(zombie.state_dict(), **ahead)
    with pytest.raises(AttemptSupersededError if error is None else RuntimeError), zombie:
        leave(error)
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
