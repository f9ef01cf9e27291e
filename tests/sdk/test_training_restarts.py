"""A training with one charge is restarted: what earlier processes may have released again is charged again."""

from typing import cast

import pytest

from epsilon_ledger import ChargedAgainWarning, ChargeExceededError, TrainingStateDict
from tests.sdk.simulation import LOUD, QUIET, Simulation
from tests.sdk.test_training_charge import STEPS, charged, kept, resumed


def test_a_training_that_goes_on_from_a_checkpoint_is_charged_again(simulation: Simulation) -> None:
    run = simulation.run()
    training = run.charge_training(LOUD, steps=STEPS)
    training.authorize(2)
    state = kept(training)
    training.authorize(2)
    other = resumed(simulation, run)
    with pytest.warns(ChargedAgainWarning, match=r"charged again as a whole: steps after the checkpoint may have been"):
        again = other.charge_training(LOUD, steps=STEPS, resume=state)
    assert (again.step, again.remaining, charged(simulation, run)) == (2, 3, 2)
    assert again.id == f"{run.id}/2/1"


def test_as_an_error_the_warning_charges_nothing(simulation: Simulation) -> None:
    run = simulation.run()
    state = kept(run.charge_training(LOUD, steps=STEPS))
    with pytest.raises(ChargedAgainWarning):  # warnings are errors in these tests
        resumed(simulation, run).charge_training(LOUD, steps=STEPS, resume=state)
    assert charged(simulation, run) == 1


def test_a_suspended_training_takes_no_step_and_goes_on_once_in_the_next_attempt(simulation: Simulation) -> None:
    run = simulation.run()
    training = run.charge_training(LOUD, steps=STEPS)
    training.authorize(2)
    state = training.suspend()
    with pytest.raises(ChargeExceededError, match="suspended after 2 steps"):
        training.authorize()
    other = resumed(simulation, run)
    again = other.charge_training(LOUD, steps=STEPS, resume=state)
    again.authorize(3)
    assert charged(simulation, run) == 1
    with pytest.warns(ChargedAgainWarning, match="has gone on from the checkpoint before"):
        other.charge_training(LOUD, steps=STEPS, resume=state)
    with pytest.warns(ChargedAgainWarning, match="only the process that opens attempt 2"):
        resumed(simulation, run).charge_training(LOUD, steps=STEPS, resume=state)
    assert charged(simulation, run) == 3


def test_it_can_be_suspended_again_and_again(simulation: Simulation) -> None:
    run = simulation.run()
    training = run.charge_training(LOUD, steps=STEPS)
    for step in range(1, STEPS + 1):
        training.authorize()
        state = training.suspend()
        run = resumed(simulation, run)
        training = run.charge_training(LOUD, steps=STEPS, resume=state)
        assert training.step == step
    assert charged(simulation, run) == 1


@pytest.mark.parametrize("way", ["same process", "looked up", "looked up after it was taken up"])
def test_nobody_else_goes_on_from_a_suspended_training(simulation: Simulation, way: str) -> None:
    """In an attempt that several processes share, each could repeat its steps."""
    run = simulation.run()
    state = run.charge_training(LOUD, steps=STEPS).suspend()
    if way == "looked up after it was taken up":
        resumed(simulation, run)
    other = run if way == "same process" else simulation.client().get_run(run.id)
    with pytest.warns(ChargedAgainWarning, match="only the process that opens attempt 2"):
        other.charge_training(LOUD, steps=STEPS, resume=state)
    assert charged(simulation, run) == 2


def test_a_reproducible_training_goes_on_from_any_checkpoint_in_any_process(simulation: Simulation) -> None:
    run = simulation.run()
    training = run.charge_training(LOUD, steps=STEPS, reproducible=True)
    training.authorize(2)
    state = kept(training)
    training.authorize(2)
    for _ in range(2):
        again = resumed(simulation, run).charge_training(LOUD, steps=STEPS, resume=state, reproducible=True)
        again.authorize(3)
        assert again.state_dict()["reproducible"]
    assert charged(simulation, run) == 1


@pytest.mark.parametrize("first", [True, False])
def test_each_process_must_be_reproducible(simulation: Simulation, *, first: bool) -> None:
    run = simulation.run()
    state = kept(run.charge_training(LOUD, steps=STEPS, reproducible=first))
    with pytest.warns(ChargedAgainWarning, match="from the first charge on"):
        again = resumed(simulation, run).charge_training(LOUD, steps=STEPS, resume=state, reproducible=not first)
    assert again.state_dict()["reproducible"] is not first
    assert charged(simulation, run) == 2


def test_a_checkpoint_of_another_training_is_not_taken_up(simulation: Simulation) -> None:
    run = simulation.run()
    state = kept(run.charge_training(LOUD, steps=STEPS, reproducible=True))
    for event, steps in ((QUIET, STEPS), (LOUD, STEPS + 1)):
        with pytest.raises(ValueError, match="not of"):
            run.charge_training(event, steps=steps, resume=state, reproducible=True)
    with pytest.raises(ValueError, match="open that run"):
        simulation.run().charge_training(LOUD, steps=STEPS, resume=state, reproducible=True)
    with pytest.raises(ValueError, match="not what a training charge"):
        run.charge_training(LOUD, steps=STEPS, resume=cast("TrainingStateDict", run.state_dict() | {"format": 7}))
    assert charged(simulation, run) == 1
