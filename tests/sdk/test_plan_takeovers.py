"""Plans of runs that exist: reserved with patience, taken up after a restart, and grants beside plans that wait."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from epsilon_ledger import (
    AccountAllocation,
    LedgerUnavailableError,
    PlanRequiredError,
    PlansWaitingError,
    Run,
    RunStateConflictError,
    StepsAlreadyTakenError,
    Waiting,
)
from tests.sdk.simulation import BUDGET, HOUR, LOUD, TRIES, Simulation
from tests.sdk.test_grants import AHEAD, in_grants
from tests.sdk.test_plan_waits import Waits, plan, raising
from tests.sdk.wire import Fault

DAY = timedelta(days=1)


@pytest.fixture
def waits(simulation: Simulation) -> Waits:
    return Waits(simulation)


def test_trainer_that_restarts_waits_on_for_its_plan(waits: Waits) -> None:
    seen: list[Waiting] = []
    run = waits.client().get_run(waits.left_behind())
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
    run_id = waits.left_behind()
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


def test_run_without_plan_has_nothing_to_wait_for(simulation: Simulation) -> None:
    with pytest.raises(ValueError, match="has no plan"):
        simulation.run().wait_for_plan()
    with pytest.raises(ValueError, match="prefetches grants"):
        simulation.run(authorize_every=5).wait_for_plan()


def test_interrupt_leaves_plan_that_was_taken_up_and_block_ends_it(waits: Waits) -> None:
    run_id, client = waits.left_behind(), waits.client()
    waits.acts = dict.fromkeys((2, 4), raising(KeyboardInterrupt()))
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


def test_interrupt_cancels_plan_and_run_goes_on(waits: Waits) -> None:
    run = running(waits)
    waits.acts = {2: raising(KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        run.reserve(plan(20), wait=HOUR)
    state = run.refresh()
    assert (state.status, state.reservation, state.waiting_reservation) == ("active", None, None)
    waits.simulation.authorize(run)
    run.complete()
    assert waits.simulation.exact(run)


# Grants on budgets for which others wait, or that are for plans only: no step too many, no request without end.


def in_order(waits: Waits) -> None:
    """Let no plan be overtaken; the population is then for plans only."""
    office = waits.simulation.client("admin")
    allocation = office.replace_allocation("mimic", {"aging_seconds": 0}, reason="In order of arrival.")
    assert isinstance(allocation, AccountAllocation)
    assert allocation.plans_only


def requests(simulation: Simulation, act: Callable[[], object]) -> list[str]:
    """What is requested during an act."""
    before = len(simulation.requests)
    act()
    return simulation.asked[before:]


def test_budget_for_plans_only_says_so(waits: Waits) -> None:
    run = waits.simulation.run()
    in_order(waits)
    with pytest.raises(PlanRequiredError, match="Register the run with a `plan`") as caught:
        run.authorize()
    assert caught.value.account_path == "mimic"
    assert waits.simulation.asked[-1] == "steps"
    run.reserve(plan(2))
    waits.simulation.authorize(run, 2)
    run.complete(2)
    assert waits.simulation.exact(run)


def test_steps_are_asked_for_one_by_one_while_others_are_first(waits: Waits) -> None:
    simulation, ahead = waits.simulation, AHEAD["grants"]
    waits.left_behind(wait_until=(simulation.clock.now() + 30 * DAY).isoformat())
    for _ in range(2):  # after a week it is overtaken no more
        simulation.clock.sleep((4 * DAY).total_seconds())
        waits.holder.renew()
    run = simulation.run(**ahead)
    for _ in range(2):
        assert requests(simulation, lambda: simulation.authorize(run)) == ["reservations", "steps"]
    run.complete()
    assert simulation.exact(run)


def test_trainer_is_told_of_earlier_plans_where_only_plans_are_admitted(waits: Waits) -> None:
    simulation, ahead = waits.simulation, AHEAD["in the background"]
    in_order(waits)
    first = waits.left_behind()
    with pytest.raises(PlansWaitingError, match="other plans wait for the same budget"), simulation.run(**ahead) as run:
        run.authorize()
    assert simulation.asked[-2:] == ["reservations", "steps"]
    assert run.refresh().status == "active"
    simulation.client().get_run(first).abort()
    with run:
        simulation.authorize(run)
    assert simulation.exact(run)


def granted(waits: Waits, ahead: dict[str, Any]) -> Run:
    """A run with four more steps of a grant, when others begin to wait."""
    in_order(waits)
    run = waits.simulation.run(**ahead)
    waits.simulation.authorize(run)
    waits.left_behind()
    return run


@in_grants
def test_grant_is_used_and_renewed_while_others_wait(waits: Waits, ahead: dict[str, Any]) -> None:
    simulation = waits.simulation
    run = granted(waits, ahead)
    simulation.pass_time(run, 301.0)
    asked = requests(simulation, lambda: simulation.take(run, 4))
    assert asked.count("reservations") <= 2
    assert simulation.covers()
    with pytest.raises(PlansWaitingError):
        run.authorize()
    run.complete()
    assert simulation.exact(run)


def test_grant_in_doubt_that_is_refused_so_is_given_up(waits: Waits) -> None:
    simulation = waits.simulation
    run = granted(waits, {"authorize_every": 5})
    simulation.take(run, 4)
    simulation.fails(*[Fault.LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    with pytest.raises(PlansWaitingError):
        run.authorize()
    run.complete()
    assert simulation.exact(run)
