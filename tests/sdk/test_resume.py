"""A trainer dies, or seems to, and another one goes on from its checkpoint: each release is charged to somebody."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from epsilon_ledger import AttemptSupersededError, EventCount, Run
from tests.sdk.simulation import HUSHED, QUIET, Simulation
from tests.sdk.test_grants import AHEAD, fading, in_grants
from tests.soak import in_turns


@pytest.mark.parametrize(("back", "way"), in_turns([0, 1, 6], AHEAD))
def test_trainer_that_was_killed_goes_on_from_its_checkpoint(simulation: Simulation, way: str, back: int) -> None:
    """Nobody says good-bye: the grant is charged in full, and what is repeated is charged again."""
    ahead = AHEAD[way]
    run = simulation.run(**ahead, schedule=fading)
    simulation.take(run, 8 - back)
    kept = json.loads(json.dumps(run.state_dict()))
    assert kept == {"format": 1, "run": run.id, "attempt": 1, "step": 8 - back}
    simulation.take(run, back)
    with simulation.client().resume_run(kept, **ahead, schedule=fading) as resumed:
        assert (resumed.id, resumed.attempt, resumed.state_dict()["step"]) == (run.id, 2, 8 - back)
        simulation.take(resumed, 6)
        assert simulation.covers()
    wasted = simulation.charged(run) - simulation.released[run.id]
    assert wasted.total() < ahead.get("prefetch", 1) * 2
    assert simulation.covers()
    assert simulation.sound()


@in_grants
def test_schedule_goes_on_only_at_step_that_is_known(simulation: Simulation, ahead: dict[str, Any]) -> None:
    """The ledger charged the grant of a process that died, and numbered none of its steps."""
    run = simulation.run(**ahead, schedule=fading)
    simulation.take(run, 4)
    for take_up in (simulation.client().resume_run, simulation.client().get_run):
        with pytest.raises(ValueError, match="step that the training has reached"):
            take_up(run.id, **ahead, schedule=fading)
    with simulation.client().resume_run(run.id, **ahead, schedule=fading, step=4) as resumed:
        assert (resumed.attempt, resumed.step) == (2, 4)
        simulation.take(resumed, 6)
    assert simulation.covers()


def test_run_that_was_taken_up_by_its_id_does_not_guess_how_far_training_is(simulation: Simulation) -> None:
    run = simulation.run()
    simulation.take(run, 2)
    assert run.step == 2
    found = simulation.client().get_run(run.id)
    assert (found.step, found.state_dict()["step"]) == (None, None)
    with simulation.client().resume_run(found.state_dict()) as resumed:
        assert (resumed.attempt, resumed.next_step, resumed.step) == (2, 2, None)
    with pytest.raises(ValueError, match="written after 2 steps, not 5"):
        simulation.client().resume_run(run.state_dict(), step=5)
    for state in ({}, {"format": 2, "run": "run_1", "step": 1}, {"format": 1, "run": "run_1", "step": "1"}):
        with pytest.raises(ValueError, match="not what run"):
            simulation.client().resume_run(state)  # type: ignore[arg-type]


def listed(simulation: Simulation, run: Run) -> None:
    run.authorize(events=[EventCount(event=QUIET, count=2)])
    simulation.note(run, [QUIET] * 2)


def reported(simulation: Simulation, run: Run) -> None:
    run.report(event=QUIET)
    simulation.note(run, [QUIET])


def after_preview(simulation: Simulation, run: Run) -> None:
    run.preview()
    simulation.take(run, FAR)


FAR = 12
"""Steps that no grants cover which were made before the process was given up."""
DOINGS: dict[str, Callable[[Simulation, Run], object]] = {
    "going on": lambda simulation, run: simulation.take(run, FAR),
    "another kind": lambda simulation, run: simulation.authorize(run, event=HUSHED),
    "after a preview": after_preview,
    "listed": listed,
    "reported": reported,
}


@pytest.mark.parametrize(("doing", "way"), in_turns(DOINGS, ["one by one", "grants"]))
def test_process_that_was_given_up_is_fenced_off_and_what_it_released_is_charged(
    simulation: Simulation, way: str, doing: str
) -> None:
    ahead = AHEAD[way]
    zombie = simulation.run(**ahead)
    simulation.take(zombie, 3)
    resumed = simulation.client().resume_run(zombie.state_dict(), **ahead)
    simulation.take(resumed, 2)
    with pytest.raises(AttemptSupersededError):
        DOINGS[doing](simulation, zombie)
    assert zombie.attempt == 1
    assert simulation.covers()
    resumed.resume()
    simulation.take(resumed, 6)
    resumed.complete()
    assert simulation.covers()


@pytest.mark.parametrize(("error", "way"), in_turns([None, RuntimeError("out of memory")], AHEAD))
def test_process_that_was_given_up_and_leaves_does_not_end_run(
    simulation: Simulation, way: str, error: Exception | None
) -> None:
    def leave() -> None:
        if error is not None:
            raise error

    ahead = AHEAD[way]
    zombie = simulation.run(**ahead)
    simulation.take(zombie, 2)
    resumed = simulation.client().resume_run(zombie.state_dict(), **ahead)
    with pytest.raises(AttemptSupersededError if error is None else RuntimeError), zombie:
        leave()
    simulation.take(resumed, 6)
    resumed.complete()
    assert simulation.covers()
