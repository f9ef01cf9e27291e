"""One run is used by one process: others are turned away, whether they came by its id, by a fork or by a copy."""

import copy
import os
import pickle
import signal
from collections.abc import Callable

import httpx2
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
from tests.sdk.simulation import HUSHED, LOUD, QUIET, TRIES, Simulation
from tests.sdk.test_grants import AHEAD
from tests.sdk.test_resume import reported
from tests.sdk.wire import Fault
from tests.soak import in_turns

EVENTS: dict[str, Event | None] = {"planned": None, "planned later": QUIET, "not planned": HUSHED}


@pytest.mark.parametrize(("event", "way"), in_turns(EVENTS, ["grants", "in the background"]))
def test_process_without_grant_gets_no_step_while_another_has_one(simulation: Simulation, way: str, event: str) -> None:
    """Not even one that is started again and again: what it asked for would be taken out of the grant."""
    planned = [LOUD, LOUD, LOUD, QUIET, QUIET]
    run = simulation.run(**AHEAD[way], schedule=lambda step: planned[step])
    simulation.take(run, 2)
    for _ in range(3):
        other = simulation.client().get_run(run.id)
        with pytest.raises(StepsAlreadyTakenError, match="release nothing"):
            other.authorize(event=EVENTS[event])
        with pytest.raises(StepsAlreadyTakenError, match="release nothing"):
            other.preview()
    simulation.take(run, 1)
    run.complete()
    assert simulation.exact(run)


@pytest.mark.parametrize("names_key", [True, False], ids=["the ledger names the key", "it does not"])
def test_steps_of_another_process_are_never_released(simulation: Simulation, *, names_key: bool) -> None:
    """A process that asks for the same steps hears of a replay, and that the first key was not its own."""
    restarted = simulation.run()
    zombie = simulation.client().get_run(restarted.id)
    arrive = simulation.arrive

    def arrived(request: httpx2.Request) -> httpx2.Response:
        response = arrive(request)
        if not names_key:
            response.headers.pop("Idempotent-Replay-Of", None)
        return response

    simulation.arrive = arrived  # type: ignore[method-assign]
    simulation.authorize(restarted, 2)
    with pytest.raises(StepsAlreadyTakenError, match=f"Steps 0 to 1 of {restarted.id}") as caught:
        zombie.authorize(2)
    assert (caught.value.run, caught.value.first_step, caught.value.next_step) == (restarted.id, 0, 2)
    # Neither does a try that never arrived, or may have arrived for all that it knows, make them its own.
    for fault in (Fault.NEVER_SENT, *([Fault.BUSY] if names_key else [])):
        for ask in (zombie.authorize, zombie.preview):
            simulation.fails(fault)
            with pytest.raises(StepsAlreadyTakenError):
                ask(2)
    with pytest.raises(SequenceConflictError):
        zombie.authorize(2, event=QUIET)
    assert zombie.next_step == 0
    simulation.fails(Fault.UNHEARD)
    assert simulation.authorize(restarted, 2).first_step == 2
    assert simulation.exact(restarted)


def test_reports_of_two_processes_are_both_recorded_or_one_of_them_is_told(simulation: Simulation) -> None:
    first = simulation.run()
    simulation.take(first, 2)
    second = simulation.client().get_run(first.id)
    reported(simulation, first)
    with pytest.raises(StepsAlreadyTakenError):
        reported(simulation, second)
    with pytest.raises(SequenceConflictError):
        second.report(2, event=QUIET)
    second.refresh()
    simulation.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        second.report(event=QUIET)
    with pytest.raises(LedgerError):
        second.authorize()
    reported(simulation, second)  # once, though it was unheard before
    assert simulation.exact(first)


def test_reservation_that_earlier_process_made_is_gone_on_with(simulation: Simulation) -> None:
    run = simulation.run()
    run.reserve([EventCount(event=LOUD, count=10)])
    simulation.take(run, 3)
    with pytest.raises(StepsAlreadyTakenError):
        simulation.client().get_run(run.id).authorize()
    with pytest.raises(ValueError, match="prefetch"):
        simulation.client().get_run(run.id, with_reservation=True, prefetch=5)
    with pytest.raises(ValueError, match="makes its own reservations"):
        simulation.run(prefetch=5).reserve([EventCount(event=LOUD, count=1)])
    going_on = simulation.client().get_run(run.id, with_reservation=True)
    going_on.renew()
    simulation.take(going_on, 2)
    with pytest.raises(ReservationStateConflictError):
        going_on.complete()
    going_on.complete(5)
    assert simulation.exact(run)


def test_new_attempt_commits_reservation_by_trainers_word(simulation: Simulation) -> None:
    run = simulation.run(reserve=[EventCount(event=LOUD, count=10)])
    simulation.take(run, 3)
    resumed = simulation.client().resume_run(run.state_dict(), steps_executed=4)
    simulation.note(run, [LOUD])
    assert resumed.next_step == 3
    simulation.take(resumed, 2)
    resumed.complete()
    assert simulation.exact(run)
    with pytest.raises(RunStateConflictError):
        simulation.client().resume_run(run.id)


def test_run_and_its_charges_cannot_be_copied(simulation: Simulation) -> None:
    run = simulation.run()
    trial = Trial(run.state, 7, [EventCount(event=LOUD, count=1)])
    ways: list[Callable[[object], object]] = [copy.copy, copy.deepcopy, pickle.dumps]
    for made in (run, run.charge_training(LOUD, steps=5), trial):
        for copied in ways:
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
def test_forked_process_has_no_part_in_run(simulation: Simulation) -> None:
    run = simulation.run(**AHEAD["in the background"])
    simulation.take(run, 2)
    for ask in (run.authorize, run.preview, run.complete):
        assert "belongs to process" in in_a_fork(ask)
    simulation.take(run, 4)
    run.complete()
    assert simulation.exact(run)
