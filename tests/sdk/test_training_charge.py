"""One charge covers all steps of a training: what is released beyond it, by whichever process, is charged again."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import pytest

from epsilon_ledger import (
    AttemptSupersededError,
    ChargedAgainWarning,
    ChargeExceededError,
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
from tests.sdk.simulation import LOUD, QUIET, TRIES, Simulation, simulated
from tests.sdk.wire import Fault

STEPS = 5
FAINT = gaussian(500.0)
"""So little that all these tests fit into one budget."""


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """One ledger for all of these tests, each with a run of its own."""
    with simulated(tmp_path_factory.mktemp("charges")) as made:
        yield made


@pytest.fixture
def run(simulation: Simulation) -> Run:
    return simulation.run(event=LOUD)


def charged(simulation: Simulation, run: Run) -> int:
    return simulation.charged(run).total()


def charge(run: Run, **terms: Any) -> TrainingCharge:  # noqa: ANN401 - passed on
    return run.charge_training(FAINT, steps=STEPS, **terms)


def kept(charge: TrainingCharge) -> TrainingStateDict:
    """A state that went through a file."""
    return cast("TrainingStateDict", json.loads(json.dumps(charge.state_dict())))


def resumed(simulation: Simulation, run: Run) -> Run:
    """The run in another process."""
    return simulation.client().resume_run(run.state_dict())


def test_training_is_charged_once_and_its_steps_send_nothing(simulation: Simulation) -> None:
    with simulation.run(prefetch=5) as run:
        simulation.authorize(run)
        training = run.charge_training(QUIET, steps=STEPS)
        simulation.note(run, [QUIET])
        asked = len(simulation.requests)
        assert list(training.track("abc")) == ["a", "b", "c"]
        training.authorize(2)
        assert len(simulation.requests) == asked
        assert (training.step, training.remaining, training.epsilon) == (5, 0, run.epsilon)
        with pytest.raises(ChargeExceededError, match="0 of 5 are left") as caught:
            training.authorize()
        assert caught.value.run == run.id
        simulation.authorize(run, 2)
    assert simulation.exact(run)


@pytest.mark.parametrize("fault", [Fault.UNHEARD, Fault.LATE])
def test_charge_without_answer_is_charged_once_when_it_is_repeated(
    simulation: Simulation, run: Run, fault: Fault
) -> None:
    simulation.fails(*[fault] * TRIES)
    with pytest.raises(LedgerUnavailableError, match="answer"):
        charge(run)
    with pytest.raises(RequestInDoubtError):
        run.charge_training(LOUD, steps=STEPS)
    charge(run).authorize()
    simulation.note(run, [FAINT])
    simulation.deliver()
    assert simulation.exact(run)


def test_event_of_step_is_not_taken_for_that_of_training(simulation: Simulation, run: Run) -> None:
    step = poisson_sampled(0.01, gaussian(5.0))
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


def test_checkpoint_is_json_and_says_how_far_training_is(run: Run) -> None:
    run.authorize()
    event: Any = dict(FAINT)
    training = run.charge_training(event, steps=STEPS, reproducible=True)
    event["noise_multiplier"] = 99.0  # it is charged as it was given then
    for count in (0, -1, True, 1.0, "1"):
        with pytest.raises((ValueError, TypeError), match="count must be"):
            training.authorize(count)  # type: ignore[arg-type]
    training.authorize(2)
    told = {"charge": "1/1", "event": FAINT, "steps": 5, "step": 2, "reproducible": True, "suspended": False}
    assert kept(training) == {"format": 1, "run": run.id, "attempt": 1} | told
    assert repr(training) == f"<TrainingCharge {run.id}/1/1 step=2 of 5>"
    assert (training.event, training.steps) == (FAINT, 5)


# What the run has heard stops it.


STOPS: dict[str, tuple[Callable[[Run], object], type[Exception]]] = {
    "paused": (lambda run: run.pause(), RunStateConflictError),
    "completed": (lambda run: run.complete(), RunStateConflictError),
    "taken over": (lambda run: run, AttemptSupersededError),
}


@pytest.mark.parametrize("name", STOPS)
def test_run_that_stops_takes_no_local_step_when_it_hears_of_it(simulation: Simulation, run: Run, name: str) -> None:
    act, error = STOPS[name]
    training = charge(run)
    act(resumed(simulation, run) if name == "taken over" else simulation.client().get_run(run.id))
    training.authorize()
    run.refresh()
    with pytest.raises(error):
        training.authorize()
    with pytest.raises(error):
        charge(run)
    assert training.step == 1


# One process counts, once.


def test_forked_process_neither_takes_nor_suspends_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    training = charge(run)
    monkeypatch.setattr("os.getpid", lambda: -1)
    for call in (training.authorize, training.suspend):
        with pytest.raises(RuntimeError, match="count the same steps once more"):
            call()
    monkeypatch.undo()
    training.authorize()
    assert training.step == 1


def test_threads_take_no_more_steps_than_were_charged(run: Run) -> None:
    training = run.charge_training(FAINT, steps=999)
    taken: list[int] = []

    def take(_: int) -> None:
        with suppress(ChargeExceededError):
            while True:
                training.authorize()
                taken.append(1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(take, range(4)))
    assert (len(taken), training.step) == (999, 999)


def test_step_that_suspension_interrupts_is_either_counted_or_refused(run: Run) -> None:
    """As by a signal's handler, at each line of the call."""
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


def test_training_that_goes_on_from_checkpoint_is_charged_again(simulation: Simulation, run: Run) -> None:
    training = charge(run)
    training.authorize(2)
    state = kept(training)
    training.authorize(2)
    other = resumed(simulation, run)
    with pytest.raises(ChargedAgainWarning):  # warnings are errors in these tests, and charge nothing
        charge(other, resume=state)
    assert charged(simulation, run) == 1
    with pytest.warns(ChargedAgainWarning, match=r"charged again as a whole: steps after the checkpoint may have been"):
        again = charge(other, resume=state)
    assert (again.step, again.remaining, charged(simulation, run)) == (2, 3, 2)
    assert again.id == f"{run.id}/2/1"


def test_suspended_training_takes_no_step_and_goes_on_once_in_next_attempt(simulation: Simulation, run: Run) -> None:
    training = charge(run)
    training.authorize(2)
    state = training.suspend()
    with pytest.raises(ChargeExceededError, match="suspended after 2 steps"):
        training.authorize()
    other = resumed(simulation, run)
    charge(other, resume=state).authorize(3)
    assert charged(simulation, run) == 1
    with pytest.warns(ChargedAgainWarning, match="has gone on from the checkpoint before"):
        charge(other, resume=state)
    with pytest.warns(ChargedAgainWarning, match="only the process that opens attempt 2"):
        charge(resumed(simulation, run), resume=state)
    assert charged(simulation, run) == 3


def test_suspended_training_is_charged_again_in_any_other_process(simulation: Simulation, run: Run) -> None:
    """In an attempt that several processes share, each could repeat its steps."""
    state = charge(run).suspend()
    others: list[Callable[[], Run]] = [lambda: run, lambda: simulation.client().get_run(run.id)]
    for times, other in enumerate(others, start=2):
        with pytest.warns(ChargedAgainWarning, match="only the process that opens attempt 2"):
            charge(other(), resume=state)
        assert charged(simulation, run) == times
    resumed(simulation, run)
    with pytest.warns(ChargedAgainWarning, match="only the process that opens attempt 2"):
        charge(others[1](), resume=state)


def test_reproducible_training_goes_on_from_any_checkpoint_in_any_process(simulation: Simulation, run: Run) -> None:
    training = charge(run, reproducible=True)
    training.authorize(2)
    state = kept(training)
    training.authorize(2)
    for _ in range(2):
        again = charge(resumed(simulation, run), resume=state, reproducible=True)
        again.authorize(3)
        assert again.state_dict()["reproducible"]
    assert charged(simulation, run) == 1


@pytest.mark.parametrize("first", [True, False])
def test_each_process_must_be_reproducible(simulation: Simulation, run: Run, *, first: bool) -> None:
    state = kept(charge(run, reproducible=first))
    with pytest.warns(ChargedAgainWarning, match="from the first charge on"):
        again = charge(resumed(simulation, run), resume=state, reproducible=not first)
    assert (again.state_dict()["reproducible"], charged(simulation, run)) == (not first, 2)


def test_checkpoint_of_another_training_is_not_taken_up(simulation: Simulation, run: Run) -> None:
    state = kept(charge(run, reproducible=True))
    for event, steps in ((QUIET, STEPS), (FAINT, STEPS + 1)):
        with pytest.raises(ValueError, match="not of"):
            run.charge_training(event, steps=steps, resume=state, reproducible=True)
    with pytest.raises(ValueError, match="open that run"):
        charge(simulation.run(), resume=state, reproducible=True)
    with pytest.raises(ValueError, match="not what a training charge"):
        charge(run, resume=cast("TrainingStateDict", run.state_dict() | {"format": 7}))
    assert charged(simulation, run) == 1
