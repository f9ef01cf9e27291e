"""Plans of runs that exist: reserved with patience, and taken up by a trainer that has restarted."""

from typing import Any

import pytest

from epsilon_ledger import (
    LedgerUnavailableError,
    ReservationStateConflictError,
    Run,
    RunStateConflictError,
    StepsAlreadyTakenError,
    Waiting,
)
from tests.api import trainer
from tests.sdk.simulation import BUDGET, LOUD, TRIES, Fault, Simulation
from tests.sdk.waits import HOUR, Waits, plan


@pytest.fixture
def waits(simulation: Simulation) -> Waits:
    return Waits(simulation)


def left_behind(waits: Waits, **terms: Any) -> str:  # noqa: ANN401 - passed on
    """A run whose trainer died while its plan waited; returns its id."""
    until = (trainer.Clock.now(tz=None).astimezone() + HOUR).isoformat()
    body = {"name": "second", "budget": BUDGET, "event": LOUD, "plan": plan(20), "wait_until": until} | terms
    made = waits.simulation.ledger.post("/v1/runs", body).json()
    assert made["status"] == "waiting"
    return str(made["id"])


def test_trainer_that_restarts_waits_on_for_its_plan(waits: Waits) -> None:
    seen: list[Waiting] = []
    run = waits.client().get_run(left_behind(waits))
    assert (run.status, run.state.waiting_reservation is not None) == ("waiting", True)
    with pytest.raises(RunStateConflictError, match="Its plan waits for budget") as caught:
        run.authorize()
    assert caught.value.run_status == "waiting"
    waits.acts = {2: waits.give_back}
    held = run.wait_for_plan(on_wait=seen.append)
    assert (held.status, held.claimed_at is not None, len(seen)) == ("active", True, 1)
    assert (run.status, run.state.reservation) == ("active", held.id)
    assert waits.simulation.authorize(run, 3).reservation == held.id
    assert run.wait_for_plan().id == held.id
    run.complete(3)
    assert waits.simulation.exact(run)


def test_plan_that_was_granted_meanwhile_is_claimed_at_once_and_only_once(waits: Waits) -> None:
    run_id = left_behind(waits)
    # The plan that holds the budget is that of the process that has reserved it.
    with pytest.raises(StepsAlreadyTakenError):
        waits.client().get_run(waits.holder.id).wait_for_plan()
    waits.give_back()
    waits.look()
    run, other = waits.client().get_run(run_id), waits.client().get_run(run_id)
    run.wait_for_plan()
    with pytest.raises(StepsAlreadyTakenError, match="release nothing"):
        other.wait_for_plan()
    assert not waits.pauses
    # Its steps are those of the trainer that has claimed it.
    with pytest.raises(StepsAlreadyTakenError):
        other.authorize()
    waits.simulation.authorize(run, 20)
    run.complete(20)
    assert waits.simulation.exact(run)


def test_run_without_plan_has_nothing_to_wait_for(waits: Waits) -> None:
    with pytest.raises(ValueError, match="has no plan"):
        waits.simulation.run().wait_for_plan()
    with pytest.raises(ValueError, match="prefetches grants"):
        waits.simulation.run(authorize_every=5).wait_for_plan()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_interrupt_leaves_plan_that_was_taken_up_and_block_ends_it(waits: Waits) -> None:
    run_id = left_behind(waits)
    client = waits.client()
    waits.acts = {2: interrupt, 4: interrupt}
    with pytest.raises(KeyboardInterrupt):
        client.get_run(run_id).wait_for_plan()
    assert client.get_run(run_id).status == "waiting"
    with pytest.raises(KeyboardInterrupt), client.get_run(run_id) as run:
        run.wait_for_plan()
    assert (run.status, client.get_run(run_id).status) == ("aborted", "aborted")
    assert not client.get_run(run_id).state.waiting_reservation


def running(waits: Waits) -> Run:
    run = waits.client().create_run("second", budget=BUDGET, event=LOUD)
    waits.simulation.authorize(run)
    return run


def test_next_plan_of_run_waits_too(waits: Waits) -> None:
    run, seen = running(waits), list[Waiting]()
    waits.acts = {2: waits.give_back}
    held = run.reserve(plan(20), wait=HOUR, on_wait=seen.append)
    assert (held.status, len(seen), run.state.reservation) == ("active", 1, held.id)
    assert waits.simulation.authorize(run, 2).reservation == held.id
    run.commit(2)
    assert run.reserve(plan(2), wait=HOUR).status == "active"  # it fits now
    run.void()
    run.complete()
    assert waits.simulation.exact(run)


def test_run_with_waiting_plan_reserves_no_other_one(waits: Waits) -> None:
    run = running(waits)
    waits.acts = {2: lambda: waits.simulation.wire.fails(*[Fault.LOST] * 1000)}
    waits.simulation.wire.fails(Fault.NONE, *[Fault.LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError, match="No answer"):
        run.reserve(plan(20), wait=HOUR)
    waits.simulation.wire.faults.clear()
    with pytest.raises(ReservationStateConflictError, match="waits until"):
        run.reserve(plan(1))
    waits.acts = {len(waits.pauses) + 2: waits.give_back}
    assert run.wait_for_plan().steps_planned == 20


def test_interrupt_cancels_plan_and_run_goes_on(waits: Waits) -> None:
    run = running(waits)
    waits.acts = {2: interrupt}
    with pytest.raises(KeyboardInterrupt):
        run.reserve(plan(20), wait=HOUR)
    state = run.refresh()
    assert (state.status, state.reservation, state.waiting_reservation) == ("active", None, None)
    waits.simulation.authorize(run)
    run.complete()
    assert waits.simulation.exact(run)
