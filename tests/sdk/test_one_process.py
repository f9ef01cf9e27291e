"""One run is used by one process: others are turned away, whether they came by its id, by a fork or by a copy."""

import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from epsilon_ledger import (
    Event,
    EventCount,
    LedgerError,
    LedgerUnavailableError,
    ReservationStateConflictError,
    RunStateConflictError,
    SequenceConflictError,
    StepsAlreadyTakenError,
    Trial,
)
from tests.sdk.simulation import HUSHED, LOUD, QUIET, TRIES, Fault, Simulation
from tests.sdk.test_grants import in_grants, take
from tests.sdk.test_resume import reported


@in_grants
@pytest.mark.parametrize("event", [None, QUIET, HUSHED], ids=["planned", "planned later", "not planned"])
def test_process_without_grant_gets_no_step_while_another_has_one(
    simulation: Simulation, ahead: dict[str, Any], event: Event | None
) -> None:
    """Not even one that is started again and again: what it asked for would be taken out of the grant."""
    planned = [LOUD, LOUD, LOUD, QUIET, QUIET]
    run = simulation.run(**ahead, schedule=lambda step: planned[step])
    take(simulation, run, 2)
    for _ in range(4):
        other = simulation.client().get_run(run.id)
        with pytest.raises(StepsAlreadyTakenError, match="release nothing"):
            other.authorize(event=event)
        with pytest.raises(StepsAlreadyTakenError, match="release nothing"):
            other.preview()
    take(simulation, run, 1)
    run.complete()
    assert simulation.exact(run)


def test_steps_of_returned_grant_are_free_for_other_process(simulation: Simulation) -> None:
    run = simulation.run(authorize_every=5)
    take(simulation, run, 2)
    other = simulation.client().get_run(run.id)
    run.preview()
    assert simulation.authorize(other).first_step == 2
    other.complete()
    assert simulation.exact(run)


def test_reports_of_two_processes_are_both_recorded_or_one_of_them_is_told(simulation: Simulation) -> None:
    first = simulation.run()
    take(simulation, first, 2)
    second = simulation.client().get_run(first.id)
    reported(simulation, first)
    with pytest.raises(StepsAlreadyTakenError):
        reported(simulation, second)
    with pytest.raises(SequenceConflictError):
        second.report(2, event=QUIET)
    second.refresh()
    reported(simulation, second)
    assert simulation.exact(first)


def test_report_that_is_unheard_is_recorded_once(simulation: Simulation) -> None:
    run = simulation.run()
    simulation.wire.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.report(2, event=QUIET)
    with pytest.raises(LedgerError):
        run.authorize()
    run.report(2, event=QUIET)
    simulation.note(run, [QUIET] * 2)
    reported(simulation, run)
    take(simulation, run, 2)
    assert simulation.exact(run)


def test_plan_that_earlier_process_made_is_gone_on_with(simulation: Simulation) -> None:
    run = simulation.run()
    run.reserve([EventCount(event=LOUD, count=10)])
    take(simulation, run, 3)
    with pytest.raises(StepsAlreadyTakenError):
        simulation.client().get_run(run.id).authorize()
    going_on = simulation.client().get_run(run.id, with_plan=True)
    going_on.renew()
    take(simulation, going_on, 2)
    with pytest.raises(ReservationStateConflictError):
        going_on.complete()
    going_on.complete(5)
    assert simulation.exact(run)


def test_plan_and_steps_that_are_asked_for_ahead_do_not_go_together(simulation: Simulation) -> None:
    run = simulation.run()
    run.reserve([EventCount(event=LOUD, count=4)])
    with pytest.raises(ValueError, match="authorize_every"):
        simulation.client().get_run(run.id, with_plan=True, authorize_every=5)
    with pytest.raises(ValueError, match="makes its own reservations"):
        simulation.run(authorize_every=5).reserve([EventCount(event=LOUD, count=1)])


def test_new_attempt_commits_plan_by_trainers_word(simulation: Simulation) -> None:
    run = simulation.run(plan=[EventCount(event=LOUD, count=10)])
    take(simulation, run, 3)
    resumed = simulation.client().resume_run(run.state_dict(), steps_executed=4)
    simulation.note(run, [LOUD])
    assert resumed.next_step == 3
    take(simulation, resumed, 2)
    resumed.complete()
    assert simulation.exact(run)
    with pytest.raises(RunStateConflictError):
        simulation.client().resume_run(run.id)


@pytest.mark.parametrize("kind", ["run", "training charge", "trial"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda how: how.__name__)
def test_run_and_its_charges_cannot_be_copied(
    simulation: Simulation, copied: Callable[[object], object], kind: str
) -> None:
    run = simulation.run()
    made: object = run
    if kind == "training charge":
        made = run.charge_training(LOUD, steps=5)
    if kind == "trial":
        made = Trial(run.state, 7, [EventCount(event=LOUD, count=1)])
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(made)


def in_a_fork(ask: Callable[[], object]) -> str:
    """What came of it in a forked process; it is killed if it waits for ever."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        signal.alarm(30)
        try:
            ask()
            said = "nothing"
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode()[:4096])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "it waited for ever"
    return said


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@in_grants
@pytest.mark.parametrize("what", ["authorize", "preview", "complete"])
def test_forked_process_has_no_part_in_run(simulation: Simulation, ahead: dict[str, Any], what: str) -> None:
    run = simulation.run(**ahead)
    take(simulation, run, 2)
    assert "belongs to process" in in_a_fork(getattr(run, what))
    take(simulation, run, 4)
    run.complete()
    assert simulation.exact(run)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_process_that_is_forked_in_middle_of_call_is_told_as_well(simulation: Simulation) -> None:
    run = simulation.run()
    inside, gate = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        inside.set()
        assert gate.wait(60)

    simulation.wire.before = hold
    thread = threading.Thread(target=take, args=(simulation, run, 1))
    thread.start()
    assert inside.wait(60)
    assert "belongs to process" in in_a_fork(run.authorize)
    gate.set()
    thread.join()
    assert simulation.exact(run)
