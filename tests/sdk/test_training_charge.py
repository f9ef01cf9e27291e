"""One charge covers all steps of a training: what is released beyond it, by whichever process, is charged again."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from epsilon_ledger import (
    AsyncRun,
    AttemptSupersededError,
    BudgetExceededError,
    ChargedAgainWarning,
    ChargeExceededError,
    Event,
    LedgerUnavailableError,
    RequestInDoubtError,
    Run,
    RunStateConflictError,
    TrainingCharge,
    TrainingStateDict,
    gaussian,
    poisson_sampled,
    sampled_with_replacement,
    sampled_without_replacement,
    self_composed,
    truncated_poisson_sampled,
)
from tests.sdk.simulation import LOUD, QUIET, TRIES, Fault, Simulation
from tests.sdk.test_grants import every_way

STEPS = 5


def charged(simulation: Simulation, run: Run | AsyncRun) -> int:
    return simulation.charged(run).total()


def kept(charge: TrainingCharge) -> TrainingStateDict:
    """A state that went through a file."""
    return cast("TrainingStateDict", json.loads(json.dumps(charge.state_dict())))


def resumed(simulation: Simulation, run: Run) -> Run:
    """The run in another process."""
    return simulation.client().resume_run(run.state_dict())


@every_way
def test_training_is_charged_once_and_its_steps_send_nothing(simulation: Simulation, ahead: dict[str, Any]) -> None:
    with simulation.run(**ahead) as run:
        simulation.authorize(run)
        training = run.charge_training(QUIET, steps=STEPS)
        simulation.note(run, [QUIET])
        asked = len(simulation.wire.requests)
        assert list(training.track("abc")) == ["a", "b", "c"]
        training.authorize(2)
        assert len(simulation.wire.requests) == asked
        assert (training.step, training.remaining, training.epsilon) == (5, 0, run.epsilon)
        with pytest.raises(ChargeExceededError, match="0 of 5 are left") as caught:
            training.authorize()
        assert caught.value.run == run.id
        simulation.authorize(run, 2)
    assert simulation.exact(run)


def test_awaited_it_is_same(simulation: Simulation) -> None:
    async def main() -> AsyncRun:
        async with simulation.async_client() as client:
            run = await client.create_run("model", budget="mimic/icu-team")
            training = await run.charge_training(LOUD, steps=STEPS)
            simulation.note(run, [LOUD])
            assert list(training.track("ab")) == ["a", "b"]
            again = await client.resume_run(run.state_dict())
            went_on = await again.charge_training(LOUD, steps=STEPS, resume=training.suspend())
            assert (went_on.step, charged(simulation, run)) == (2, 1)
            await again.complete()
        return run

    assert simulation.exact(asyncio.run(main()))


def test_training_that_does_not_fit_is_refused_and_charges_nothing(simulation: Simulation) -> None:
    with pytest.raises(BudgetExceededError), simulation.run() as run:
        run.charge_training(self_composed(LOUD, 10_000), steps=10_000)
    assert simulation.exact(run)
    assert run.status == "completed"


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNHEARD, Fault.LATE, Fault.BUSY])
def test_charge_without_answer_is_charged_once_when_it_is_repeated(simulation: Simulation, fault: Fault) -> None:
    run = simulation.run()
    simulation.wire.fails(*[fault] * TRIES)
    with pytest.raises(LedgerUnavailableError, match="answer"):
        run.charge_training(QUIET, steps=STEPS)
    with pytest.raises(RequestInDoubtError):
        run.charge_training(LOUD, steps=STEPS)
    run.charge_training(QUIET, steps=STEPS).authorize()
    simulation.note(run, [QUIET])
    simulation.wire.deliver()
    assert simulation.exact(run)


def test_event_of_step_is_not_taken_for_that_of_training(simulation: Simulation) -> None:
    run = simulation.run()
    step = poisson_sampled(0.01, gaussian(2.0))
    others = (
        sampled_without_replacement(100, 1, gaussian(2.0)),
        sampled_with_replacement(100, 1, gaussian(2.0)),
        truncated_poisson_sampled(100, 0.01, 5, gaussian(2.0)),
    )
    for each in (step, *others):
        with pytest.raises(ValueError, match="event of one step"):
            run.charge_training(each, steps=2)
    run.charge_training(self_composed(step, 2), steps=2)
    run.charge_training(step, steps=1)
    assert charged(simulation, run) == 2


def test_checkpoint_is_json_and_says_how_far_training_is(simulation: Simulation) -> None:
    run = simulation.run()
    run.authorize()
    event: dict[str, Any] = dict(LOUD)
    training = run.charge_training(cast("Event", event), steps=STEPS, reproducible=True)
    event["noise_multiplier"] = 99.0  # it is charged as it was given then
    for count in (0, -1, True, 1.0, "1"):
        with pytest.raises((ValueError, TypeError), match="count must be"):
            training.authorize(count)  # type: ignore[arg-type]
    training.authorize(2)
    assert kept(training) == {
        "format": 1,
        "run": run.id,
        "attempt": 1,
        "charge": "1/1",
        "event": LOUD,
        "steps": 5,
        "step": 2,
        "reproducible": True,
        "suspended": False,
    }
    assert repr(training) == f"<TrainingCharge {run.id}/1/1 step=2 of 5>"
    assert (training.event, training.steps) == (LOUD, 5)


# What the run has heard stops it.


@pytest.mark.parametrize("action", ["pause", "complete", "abort"])
def test_run_that_stops_takes_no_local_step(simulation: Simulation, action: str) -> None:
    run = simulation.run()
    training = run.charge_training(LOUD, steps=STEPS)
    getattr(simulation.client().get_run(run.id), action)()
    training.authorize()
    run.refresh()
    with pytest.raises(RunStateConflictError, match="release nothing"):
        training.authorize()
    assert training.step == 1


def test_run_that_was_taken_over_takes_no_local_step_when_it_hears_of_it(simulation: Simulation) -> None:
    run = simulation.run()
    training = run.charge_training(LOUD, steps=STEPS)
    resumed(simulation, run)
    training.authorize()
    run.refresh()
    with pytest.raises(AttemptSupersededError):
        training.authorize()
    with pytest.raises(AttemptSupersededError):
        run.charge_training(LOUD, steps=STEPS)


# One process counts, once.


def test_forked_process_neither_takes_nor_suspends_steps(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = simulation.run().charge_training(LOUD, steps=STEPS)
    monkeypatch.setattr("os.getpid", lambda: -1)
    for call in (training.authorize, training.suspend):
        with pytest.raises(RuntimeError, match="count the same steps once more"):
            call()
    monkeypatch.undo()
    training.authorize()
    assert training.step == 1


def test_threads_take_no_more_steps_than_were_charged(simulation: Simulation) -> None:
    training = simulation.run().charge_training(LOUD, steps=999)
    taken: list[int] = []

    def take() -> None:
        with suppress(ChargeExceededError):
            while True:
                training.authorize()
                taken.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), training.step) == (999, 999)


def test_step_that_suspension_interrupts_is_either_counted_or_refused(simulation: Simulation) -> None:
    """As by a signal's handler, at each line of the call."""
    run = simulation.run()
    outcomes = set()
    for line in range(1, 60):
        training = run.charge_training(gaussian(1e5), steps=STEPS)
        released, state = interrupted(training.authorize, line, training.suspend)
        if state is None:
            break
        assert released <= state["step"]
        outcomes.add(released)
    assert outcomes == {False, True}


def interrupted(
    call: Callable[[], None], line: int, suspend: Callable[[], TrainingStateDict]
) -> tuple[bool, TrainingStateDict | None]:
    """Suspend before the given line of a call; return whether it returned, and the state, if it has that line."""
    state: TrainingStateDict | None = None
    left = line

    def trace(frame: Any, event: str, argument: object) -> Any:  # noqa: ANN401 - as Python calls it
        nonlocal state, left
        del frame, argument
        left -= event == "line"
        if left == 0 and state is None:
            state = suspend()
        return trace

    sys.settrace(trace)
    try:
        call()
    except ChargeExceededError:
        return False, state
    finally:
        sys.settrace(None)
    return True, state


def test_training_that_goes_on_from_checkpoint_is_charged_again(simulation: Simulation) -> None:
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


def test_as_error_warning_charges_nothing(simulation: Simulation) -> None:
    run = simulation.run()
    state = kept(run.charge_training(LOUD, steps=STEPS))
    with pytest.raises(ChargedAgainWarning):  # warnings are errors in these tests
        resumed(simulation, run).charge_training(LOUD, steps=STEPS, resume=state)
    assert charged(simulation, run) == 1


def test_suspended_training_takes_no_step_and_goes_on_once_in_next_attempt(simulation: Simulation) -> None:
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


@pytest.mark.parametrize("way", ["same process", "looked up", "looked up after it was taken up"])
def test_suspended_training_is_charged_again_in_any_other_process(simulation: Simulation, way: str) -> None:
    """In an attempt that several processes share, each could repeat its steps."""
    run = simulation.run()
    state = run.charge_training(LOUD, steps=STEPS).suspend()
    if way == "looked up after it was taken up":
        resumed(simulation, run)
    other = run if way == "same process" else simulation.client().get_run(run.id)
    with pytest.warns(ChargedAgainWarning, match="only the process that opens attempt 2"):
        other.charge_training(LOUD, steps=STEPS, resume=state)
    assert charged(simulation, run) == 2


def test_reproducible_training_goes_on_from_any_checkpoint_in_any_process(simulation: Simulation) -> None:
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


def test_checkpoint_of_another_training_is_not_taken_up(simulation: Simulation) -> None:
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
