"""Reservations that are interrupted, or taken up after a restart; and grants beside reservations that wait."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from epsilon_ledger import (
    AccountAllocation,
    LedgerUnavailableError,
    ReservationNotGrantedError,
    ReservationRequiredError,
    ReservationStateConflictError,
    ReservationsWaitingError,
    Run,
    RunStateConflictError,
    StepsAlreadyTakenError,
    Waiting,
)
from tests.sdk.simulation import BUDGET, HOUR, LOUD, TRIES, Simulation
from tests.sdk.test_grants import AHEAD, in_grants
from tests.sdk.test_reservation_waits import TERMS, Waits, plan, raising
from tests.sdk.wire import Fault

DAY = timedelta(days=1)


@pytest.fixture
def waits(simulation: Simulation) -> Waits:
    return Waits(ledger=simulation.ledger, clock=simulation.clock)


def test_trainer_that_restarts_waits_on_for_its_reservation(waits: Waits) -> None:
    seen: list[Waiting] = []
    run = waits.waiter().get_run(waits.left_behind())
    assert (run.status, run.state.waiting_reservation is not None) == ("waiting", True)
    with pytest.raises(RunStateConflictError, match="Its reservation waits for budget") as caught:
        run.authorize()
    assert caught.value.run_status == "waiting"
    waits.acts = {2: waits.give_back}
    held = run.wait_for_reservation(on_wait=seen.append)
    assert (held.status, held.claimed_at is not None, len(seen)) == ("active", True, 1)
    assert (run.status, run.state.reservation) == ("active", held.id)
    assert waits.authorize(run, 3).reservation == held.id
    assert run.wait_for_reservation().id == held.id
    run.complete(3)
    assert waits.exact(run)


def test_reservation_that_was_granted_meanwhile_is_claimed_at_once_and_only_once(waits: Waits) -> None:
    run_id = waits.left_behind()
    # The reservation that holds the budget is that of the process that has reserved it.
    with pytest.raises(StepsAlreadyTakenError):
        waits.waiter().get_run(waits.holder.id).wait_for_reservation()
    waits.give_back()
    waits.look()
    run, other = waits.waiter().get_run(run_id), waits.waiter().get_run(run_id)
    run.wait_for_reservation()
    with pytest.raises(StepsAlreadyTakenError, match="release nothing"):
        other.wait_for_reservation()
    assert not waits.pauses
    # Its steps are those of the trainer that has claimed it.
    with pytest.raises(StepsAlreadyTakenError):
        other.authorize()
    waits.authorize(run, 20)
    run.complete(20)
    assert waits.exact(run)


def test_granted_reservation_of_an_earlier_process_is_claimed_before_it_is_renewed(waits: Waits) -> None:
    run_id = waits.left_behind()
    waits.give_back()
    waits.look()
    run = waits.client().get_run(run_id, with_reservation=True)
    with pytest.raises(ReservationStateConflictError, match="Claim it first"):
        run.renew()
    assert run.wait_for_reservation().claimed_at is not None
    assert run.renew().claimed_at is not None
    waits.authorize(run, 20)
    run.complete(20)
    assert waits.exact(run)


def test_steps_are_admitted_once_reservation_of_another_process_has_ended(waits: Waits) -> None:
    other = waits.client().get_run(waits.holder.id)
    waits.holder.void()
    assert waits.authorize(other).reservation is None
    other.complete()
    assert waits.exact(other)


def test_reservation_that_has_waited_in_vain_meanwhile_says_so(waits: Waits) -> None:
    run_id = waits.left_behind()
    waits.clock.sleep(2 * HOUR.total_seconds())
    waits.look()
    with pytest.raises(ReservationNotGrantedError, match="the run is aborted") as caught:
        waits.waiter().get_run(run_id).wait_for_reservation()
    assert caught.value.run == run_id


def test_run_without_reservation_has_nothing_to_wait_for(simulation: Simulation) -> None:
    with pytest.raises(ValueError, match="has no reservation"):
        simulation.run().wait_for_reservation()
    with pytest.raises(ValueError, match="prefetches grants"):
        simulation.run(prefetch=5).wait_for_reservation()


def test_interrupt_leaves_reservation_that_was_taken_up_and_block_ends_it(waits: Waits) -> None:
    run_id, client = waits.left_behind(), waits.waiter()
    waits.acts = dict.fromkeys((2, 4), raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        client.get_run(run_id).wait_for_reservation()
    assert client.get_run(run_id).status == "waiting"
    with pytest.raises(KeyboardInterrupt), client.get_run(run_id) as run:
        run.wait_for_reservation()
    assert (run.status, client.get_run(run_id).status) == ("aborted", "aborted")
    assert not client.get_run(run_id).state.waiting_reservation


@pytest.mark.parametrize("how", ["interrupt", "callback", "cancelled task"])
def test_interrupt_cancels_reservation_of_new_run(waits: Waits, how: str) -> None:
    async def main() -> None:
        async with waits.async_waiter() as client:
            task = asyncio.create_task(client.create_run("second", **TERMS))
            waits.acts = {2: task.cancel}
            await task

    waits.acts = {3: raising(KeyboardInterrupt())} if how == "interrupt" else {}
    ways: dict[str, tuple[type[BaseException], Callable[[], object]]] = {
        "interrupt": (KeyboardInterrupt, waits.wait_for),
        "callback": (TimeoutError, lambda: waits.wait_for(on_wait=raising(TimeoutError("place 1")))),
        "cancelled task": (asyncio.CancelledError, lambda: asyncio.run(main())),
    }
    error, wait = ways[how]
    with pytest.raises(error) as caught:
        wait()
    found = waits.second("cancelled")
    assert waits.client().get_run(found.run).state.end_reason == "not_granted"
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("last", ["look", "claim", "runs"])
def test_interrupt_after_grant_returns_reservation(waits: Waits, last: str) -> None:
    def granted_and_interrupted() -> None:
        waits.give_back()
        waits.look()
        raise KeyboardInterrupt

    def stop(request: httpx2.Request) -> None:
        granted = request.method == "GET" and request.url.path.split("/")[2] == "runs"
        if request.url.path.endswith("/claim") if last == "claim" else granted:
            waits.after = lambda _: None
            raise KeyboardInterrupt

    waits.acts = {2: granted_and_interrupted if last == "look" else waits.give_back}
    if last != "look":
        waits.after = stop
    with pytest.raises(KeyboardInterrupt):
        waits.wait_for()
    found = waits.second("committed")
    assert (found.granted_at is not None, found.steps_executed) == (True, 0)
    assert waits.left() == waits.most


def test_interrupt_is_not_held_up_by_ledger_that_does_not_answer(waits: Waits) -> None:
    def cut_off() -> None:
        waits.fails(*[Fault.LOST] * 10)
        asked.append(len(waits.requests))
        raise KeyboardInterrupt

    asked: list[int] = []
    waits.acts = {2: cut_off}
    with pytest.raises(KeyboardInterrupt) as caught:
        waits.wait_for()
    assert len(waits.requests) == asked[0] + 1
    assert "did not confirm that the reservation" in caught.value.__notes__[0]
    waits.faults.clear()
    waits.second("waiting")


def running(waits: Waits) -> Run:
    run = waits.waiter().create_run("second", budget=BUDGET, event=LOUD)
    waits.authorize(run)
    return run


def test_next_reservation_of_run_waits_too(waits: Waits) -> None:
    run, seen = running(waits), list[Waiting]()
    waits.acts = {2: waits.give_back}
    held = run.reserve(plan(20), wait=HOUR, on_wait=seen.append)
    assert (held.status, len(seen), run.state.reservation) == ("active", 1, held.id)
    assert waits.authorize(run, 2).reservation == held.id
    run.commit(2)
    assert run.reserve(plan(2), wait=HOUR).status == "active"  # it fits now
    run.void()
    run.complete()
    assert waits.exact(run)


def test_interrupt_cancels_reservation_and_run_goes_on(waits: Waits) -> None:
    run = running(waits)
    waits.acts = {2: raising(KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        run.reserve(plan(20), wait=HOUR)
    state = run.refresh()
    assert (state.status, state.reservation, state.waiting_reservation) == ("active", None, None)
    waits.authorize(run)
    run.complete()
    assert waits.exact(run)


# Grants on budgets for which others wait, or that are for reservations only: no step too many, no request without end.


def in_order(waits: Waits) -> None:
    """Let no reservation be overtaken; the population is then for reservations only."""
    office = waits.client("admin")
    allocation = office.replace_allocation("mimic", {"aging_seconds": 0}, reason="In order of arrival.")
    assert isinstance(allocation, AccountAllocation)
    assert allocation.reservations_only


def requests(simulation: Simulation, act: Callable[[], object]) -> list[str]:
    """What is requested during an act."""
    before = len(simulation.requests)
    act()
    return simulation.asked[before:]


def test_budget_for_reservations_only_says_so(waits: Waits) -> None:
    run = waits.run()
    in_order(waits)
    with pytest.raises(ReservationRequiredError, match="Register the run with `reserve`") as caught:
        run.authorize()
    assert caught.value.account_path == "mimic"
    assert waits.asked[-1] == "steps"
    run.reserve(plan(2))
    waits.authorize(run, 2)
    run.complete(2)
    assert waits.exact(run)


def test_steps_are_asked_for_one_by_one_while_others_are_first(waits: Waits) -> None:
    ahead = AHEAD["grants"]
    waits.left_behind(wait_until=(waits.clock.now() + 30 * DAY).isoformat())
    for _ in range(2):  # after a week it is overtaken no more
        waits.clock.sleep((4 * DAY).total_seconds())
        waits.holder.renew()
    run = waits.run(**ahead)
    for _ in range(2):
        assert requests(waits, lambda: waits.authorize(run)) == ["reservations", "steps"]
    run.complete()
    assert waits.exact(run)


def test_trainer_is_told_of_earlier_reservations_where_only_reservations_are_admitted(waits: Waits) -> None:
    ahead = AHEAD["in the background"]
    in_order(waits)
    first = waits.left_behind()
    with (
        pytest.raises(ReservationsWaitingError, match="others wait for the same budget"),
        waits.run(**ahead) as run,
    ):
        run.authorize()
    assert waits.asked[-2:] == ["reservations", "steps"]
    assert run.refresh().status == "active"
    waits.client().get_run(first).abort()
    with run:
        waits.authorize(run)
    assert waits.exact(run)


def granted(waits: Waits, ahead: dict[str, Any]) -> Run:
    """A run with four more steps of a grant, when others begin to wait."""
    in_order(waits)
    run = waits.run(**ahead)
    waits.authorize(run)
    waits.left_behind()
    return run


@in_grants
def test_grant_is_used_and_renewed_while_others_wait(waits: Waits, ahead: dict[str, Any]) -> None:
    run = granted(waits, ahead)
    waits.pass_time(run, 301.0)
    asked = requests(waits, lambda: waits.take(run, 4))
    assert asked.count("reservations") <= 2
    assert waits.covers()
    with pytest.raises(ReservationsWaitingError):
        run.authorize()
    run.complete()
    assert waits.exact(run)


def test_grant_in_doubt_that_is_refused_so_is_given_up(waits: Waits) -> None:
    run = granted(waits, {"prefetch": 5})
    waits.take(run, 4)
    waits.fails(*[Fault.LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize()
    with pytest.raises(ReservationsWaitingError):
        run.authorize()
    run.complete()
    assert waits.exact(run)
