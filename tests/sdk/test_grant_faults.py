"""Replies are lost, come late or make no sense: what was released is charged, and in the end nothing else is."""

import json
import math
from collections.abc import Callable

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    InvalidRequestError,
    LedgerError,
    LedgerUnavailableError,
    Run,
    RunStateConflictError,
)
from tests.reliability.conftest import ROUNDS
from tests.sdk.simulation import LOUD, QUIET, TRIES, Simulation
from tests.sdk.test_grants import AHEAD, fading
from tests.sdk.wire import Fault
from tests.soak import in_turns

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def insisting(ask: Callable[[], object]) -> None:
    """Ask until the answer is no problem of the line."""
    for _ in range(5):
        try:
            ask()
        except LedgerError as error:
            if isinstance(error, (BudgetExceededError, RunStateConflictError)):
                raise
        else:
            return
    raise AssertionError("nothing fails so often here")


def train(simulation: Simulation, run: Run, steps: int = 9) -> None:
    """Steps, with something else between them."""
    for step in range(steps):
        insisting(lambda: simulation.authorize(run))
        if step == 3:
            insisting(lambda: simulation.authorize(run, 2, event=QUIET))
        if step == 6:
            insisting(run.preview)
            assert simulation.covers()
    insisting(run.complete)


@pytest.mark.parametrize(("fault", "way"), in_turns(FAULTS, AHEAD))
def test_released_steps_are_charged_exactly_under_any_fault(simulation: Simulation, way: str, fault: Fault) -> None:
    ahead = AHEAD[way]
    for round_ in range(ROUNDS):
        run = simulation.run(**ahead, schedule=fading)
        for well in (0, 1, 2, 1 + round_ % 5):
            simulation.fails(fault, *[Fault.NONE] * well, *[fault] * TRIES, *[Fault.NONE] * (1 + well))
        train(simulation, run)
        assert simulation.exact(run)
        simulation.faults.clear()
        simulation.deliver()
        assert simulation.exact(run)


def test_refused_answer_after_unheard_one_does_not_hide_what_unheard_one_granted(simulation: Simulation) -> None:
    with simulation.run(**AHEAD["grants"]) as run:
        simulation.authorize(run, 3)
        stranger = simulation.client("admin").get_run(run.id)
        simulation.fails(Fault.UNHEARD)
        tried, paused = len(simulation.requests) + 1, list[str]()

        def pause_before_the_second_try(_: object) -> None:
            if len(simulation.requests) > tried and not paused:
                paused.append(run.id)
                stranger.pause()

        simulation.before = pause_before_the_second_try
        simulation.authorize(run, 3)
        assert run.state.reservation is not None
        stranger.resume()
        simulation.authorize(run, 2)
    assert simulation.exact(run)


def test_end_that_is_unheard_is_not_undone_by_step(simulation: Simulation) -> None:
    run = simulation.run(**AHEAD["grants"])
    simulation.authorize(run, 2)
    simulation.fails(Fault.NONE, *[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.complete()
    with pytest.raises(RunStateConflictError):
        run.authorize()
    run.complete()
    assert simulation.exact(run)


@pytest.mark.parametrize(("way", "fault"), [("grants", Fault.LATE), ("in the background", Fault.CRASHED)])
@pytest.mark.parametrize("refused", ["a report", "a pause"])
def test_run_that_takes_no_steps_can_be_completed_whatever_was_unanswered(
    simulation: Simulation, way: str, refused: str, fault: Fault
) -> None:
    run = simulation.run(**AHEAD[way])
    simulation.authorize(run, 2)
    if refused == "a report":
        assert run.report(500).overdrawn
        simulation.note(run, [LOUD] * 500)
    else:
        simulation.client().get_run(run.id).pause()
        simulation.authorize(run, 3)
    simulation.fails(fault)
    with pytest.raises(LedgerError):
        run.authorize()
    simulation.faults.clear()
    run.complete()
    simulation.deliver()
    assert (simulation.charged(run), run.status) == (simulation.released[run.id], "completed")


@pytest.mark.parametrize(
    ("way", "noise", "error"),
    [
        ("grants", 1e-9, InvalidRequestError),
        ("grants", math.nan, ValueError),
        ("grants", None, InvalidRequestError),
        ("in the background", math.nan, ValueError),
        ("in the background", None, InvalidRequestError),
    ],
)
def test_bad_event_far_ahead_stops_training_only_when_reached(
    simulation: Simulation, way: str, noise: float | None, error: type[Exception]
) -> None:
    planned = [LOUD, LOUD, QUIET, QUIET, {"type": "gaussian", "noise_multiplier": noise}]
    with simulation.run(**AHEAD[way], schedule=lambda step: planned[step]) as run:
        simulation.take(run, 4)
        with pytest.raises(error):
            run.authorize()
    assert simulation.exact(run)


def test_schedule_that_fails_ahead_is_not_called_again_for_that_grant(simulation: Simulation) -> None:
    failures = [IndexError("not yet")]

    def schedule(step: int) -> Event:
        if step == 2 and failures:
            raise failures.pop()
        return LOUD

    with simulation.run(**AHEAD["grants"], schedule=schedule) as run:
        simulation.authorize(run)
        [planned] = json.loads(simulation.requests[-1].content)["events"]
        assert planned["count"] == 2
        simulation.take(run, 2)
    assert simulation.exact(run)
