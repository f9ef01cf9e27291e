"""A run that waits for its plan: until it is granted, in vain, or until its trainer has enough."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from app.service.maintenance import expire_reservations
from epsilon_ledger import (
    AsyncRun,
    BudgetExceededError,
    LedgerUnavailableError,
    PlanNotGrantedError,
    Reservation,
    Run,
    Waiting,
)
from epsilon_ledger._run import plan_waits
from tests.api import trainer
from tests.sdk.simulation import BUDGET, LOUD, TRIES, Fault, Simulation
from tests.sdk.waits import HOUR, Waits, plan


@pytest.fixture
def waits(simulation: Simulation) -> Waits:
    return Waits(simulation)


def wait_for(waits: Waits, **terms: Any) -> Run:  # noqa: ANN401 - passed on
    """Create a run whose plan of 20 steps has to wait."""
    wanted: dict[str, Any] = {"budget": BUDGET, "event": LOUD, "plan": plan(20), "wait": HOUR}
    return waits.client().create_run("second", **(wanted | terms))


def reservation_of(waits: Waits, run: str, status: str) -> Reservation:
    """The only reservation of a run, as the audit log names it."""
    [queued] = [
        event
        for event in waits.simulation.client("admin").list_audit_events(action="reservation.queued")
        if event.after is not None and event.after["run"] == run
    ]
    found = waits.simulation.client().get_reservation(queued.subject)
    assert found.status == status
    return found


def only_waiter(waits: Waits) -> str:
    """The run that is called second."""
    [found] = [run for run in waits.simulation.client().list_runs(budget=BUDGET) if run.name == "second"]
    return found.id


def test_a_run_waits_until_its_plan_fits_and_claims_it(waits: Waits) -> None:
    seen: list[Waiting] = []
    waits.acts = {3: waits.give_back}
    run = wait_for(waits, on_wait=seen.append)
    assert len(waits.pauses) == 3
    [told] = seen
    assert (told.rule, told.position, told.plans, told.estimated_at) == ("first_come", 1, 1, None)
    [lacking] = told.lacks
    assert (lacking.account_path, lacking.reason) == (BUDGET, "reserved")
    assert lacking.available < lacking.requested
    assert (run.status, run.state.waiting_reservation) == ("active", None)
    assert run.state.reservation is not None
    held = waits.simulation.client().get_reservation(run.state.reservation)
    assert (held.status, held.claimed_at is not None, held.waiting) == ("active", True, None)
    assert waits.simulation.authorize(run, 4).reservation == held.id
    run.complete(4)
    assert waits.simulation.exact(run)


def test_an_awaited_run_does_the_same(waits: Waits) -> None:
    seen: list[Waiting] = []
    waits.acts = {2: waits.give_back}

    async def main() -> AsyncRun:
        async with waits.async_client() as client:
            opening = client.create_run(
                "second", budget=BUDGET, event=LOUD, plan=plan(20), wait=HOUR, on_wait=seen.append
            )
            async with opening as run:
                await waits.simulation.authorize_async(run)
                await run.commit(1)
        return run

    run = asyncio.run(main())
    assert (len(seen), len(waits.pauses), run.status) == (1, 2, "completed")
    assert waits.simulation.exact(run)


def test_a_plan_that_fits_does_not_wait(waits: Waits) -> None:
    waits.give_back()
    run = wait_for(waits, on_wait=lambda _: pytest.fail("it waits"))
    assert (run.status, waits.pauses) == ("active", [])
    assert "renew" not in waits.simulation.wire.asked


def test_the_pauses_grow_and_differ_at_random(waits: Waits) -> None:
    waits.acts = {12: waits.give_back}
    wait_for(waits)
    assert waits.pauses[:4] == pytest.approx([1.2, 1.8, 2.7, 4.05])
    assert waits.pauses[-4:] == pytest.approx([18.0] * 4)


def test_short_lease_is_looked_at_often_enough_to_claim_the_plan(waits: Waits) -> None:
    with pytest.raises(BudgetExceededError):  # it never fits, and does not wait
        wait_for(waits, plan=plan(1000))
    waits.acts = {12: waits.give_back}
    wait_for(waits, lease_seconds=8)
    assert max(waits.pauses) == pytest.approx(2.4)


def test_each_change_of_place_is_told_and_nothing_twice(waits: Waits) -> None:
    ledger = waits.simulation.ledger
    until = (trainer.Clock.now(tz=None).astimezone() + HOUR).isoformat()
    body = {"name": "first", "budget": BUDGET, "plan": plan(30), "wait_until": until}
    first = ledger.post("/v1/runs", body).json()
    seen: list[Waiting] = []
    cancelled = waits.simulation.client("admin")
    waits.acts = {
        2: lambda: cancelled.cancel_reservation(first["waiting_reservation"], reason="Not needed."),
        5: waits.give_back,
    }
    wait_for(waits, on_wait=seen.append)
    assert [(told.position, told.plans) for told in seen] == [(2, 2), (1, 1)]
    assert str(seen[1]).startswith(f"place 1 of 1 by first_come; waits for {BUDGET} (reserved: ")


def test_the_log_has_the_first_line_as_a_warning_and_the_others_as_news(
    waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    other = waits.simulation.run(plan=plan(2))
    waits.acts = {2: lambda: other.complete(0), 4: waits.give_back}
    with caplog.at_level(logging.INFO, "epsilon_ledger"):
        run = wait_for(waits)
    lines = [record for record in caplog.records if record.name == "epsilon_ledger.waiting"]
    assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]
    assert lines[0].getMessage().startswith(f"{run.id} waits for its plan {run.state.reservation}: place 1 of 1")


def test_a_plan_that_waits_in_vain_is_an_exception_with_its_facts(waits: Waits) -> None:
    with pytest.raises(PlanNotGrantedError, match=f"it is expired. At last: place 1 .* {BUDGET}") as caught:
        wait_for(waits, wait=timedelta(seconds=30))
    error = caught.value
    assert error.reservation is not None
    found = waits.simulation.client().get_reservation(error.reservation)
    assert (error.reservation_status, error.wait_until, error.run) == ("expired", found.wait_until, found.run)
    assert error.waiting is not None
    assert error.waiting.lacks[0].reason == "reserved"
    over = waits.simulation.client().get_run(error.run).state
    assert (over.status, over.end_reason, over.waiting_reservation) == ("aborted", "not_granted", None)
    assert not getattr(error, "__notes__", [])


def interrupt(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=["ctrl-c", "exit"])
def test_an_interrupt_cancels_the_plan(waits: Waits, error: BaseException) -> None:
    waits.acts = {3: interrupt(error)}
    with pytest.raises(type(error)) as caught:
        wait_for(waits)
    run = only_waiter(waits)
    reservation_of(waits, run, "cancelled")
    assert waits.simulation.client().get_run(run).state.end_reason == "not_granted"
    assert not getattr(caught.value, "__notes__", [])


def test_a_callback_that_fails_cancels_the_plan(waits: Waits) -> None:
    def impatient(told: Waiting) -> None:
        raise TimeoutError(f"place {told.position} is not good enough")

    with pytest.raises(TimeoutError, match="place 1"):
        wait_for(waits, on_wait=impatient)
    reservation_of(waits, only_waiter(waits), "cancelled")


def test_an_interrupt_after_the_grant_returns_the_plan(waits: Waits) -> None:
    def granted_and_interrupted() -> None:
        waits.give_back()
        waits.look()
        raise KeyboardInterrupt

    waits.acts = {2: granted_and_interrupted}
    with pytest.raises(KeyboardInterrupt):
        wait_for(waits)
    run = only_waiter(waits)
    found = reservation_of(waits, run, "committed")
    assert (found.granted_at is not None, found.steps_executed) == (True, 0)
    assert waits.simulation.client().get_run(run).status == "aborted"
    assert waits.left() == waits.most


@pytest.mark.parametrize("last", ["renew", "runs"])
def test_an_interrupt_while_the_plan_is_claimed_returns_it(waits: Waits, last: str) -> None:
    def stop(request: httpx2.Request) -> None:
        granted = request.method == "GET" and request.url.path.split("/")[2] == "runs"
        if request.url.path.endswith("/renew") if last == "renew" else granted:
            waits.simulation.wire.after = lambda _: None
            raise KeyboardInterrupt

    waits.acts = {2: waits.give_back}
    waits.simulation.wire.after = stop
    with pytest.raises(KeyboardInterrupt):
        wait_for(waits)
    assert reservation_of(waits, only_waiter(waits), "committed").steps_executed == 0
    assert waits.left() == waits.most


def test_an_interrupt_is_not_held_up_by_a_ledger_that_does_not_answer(waits: Waits) -> None:
    def cut_off() -> None:
        waits.simulation.wire.fails(*[Fault.LOST] * 10)
        asked.append(len(waits.simulation.wire.requests))
        raise KeyboardInterrupt

    asked: list[int] = []
    waits.acts = {2: cut_off}
    with pytest.raises(KeyboardInterrupt) as caught:
        wait_for(waits)
    assert len(waits.simulation.wire.requests) == asked[0] + 1
    assert "did not confirm that the plan" in caught.value.__notes__[0]
    waits.simulation.wire.faults.clear()
    reservation_of(waits, only_waiter(waits), "waiting")


def test_a_cancelled_task_cancels_the_plan(waits: Waits) -> None:
    async def main() -> None:
        async with waits.async_client() as client:
            task = asyncio.create_task(client.create_run("second", budget=BUDGET, event=LOUD, plan=plan(20), wait=HOUR))
            waits.acts = {2: task.cancel}
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    reservation_of(waits, only_waiter(waits), "cancelled")


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BUSY])
def test_a_ledger_that_is_away_for_long_is_waited_for(
    waits: Waits, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    waits.acts = {2: lambda: waits.simulation.wire.fails(*[fault] * 4 * TRIES), 20: waits.give_back}
    assert wait_for(waits).status == "active"
    assert sum("No answer about" in record.getMessage() for record in caplog.records) == 4


def test_a_ledger_that_stays_away_until_the_end_is_given_up(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_waits, "datetime", trainer.Clock)
    waits.acts = {2: lambda: waits.simulation.wire.fails(*[Fault.LOST] * 1000)}
    with pytest.raises(LedgerUnavailableError) as caught:
        wait_for(waits, wait=timedelta(seconds=60))
    waits.simulation.wire.faults.clear()
    run = only_waiter(waits)
    assert f"get_run('{run}').wait_for_plan() waits on for it" in "".join(caught.value.__notes__)


def test_a_claim_whose_answer_is_lost_is_repeated(waits: Waits) -> None:
    def lose(request: httpx2.Request) -> None:
        if request.url.path.endswith("/renew") and not lost:
            lost.extend([Fault.UNHEARD] * TRIES)
            waits.simulation.wire.fails(*lost)

    lost: list[Fault] = []
    waits.acts = {2: waits.give_back}
    waits.simulation.wire.before = lose
    run = wait_for(waits)
    assert waits.simulation.wire.asked.count("renew") == TRIES + 1
    waits.simulation.authorize(run, 20)
    run.complete(20)
    assert waits.simulation.exact(run)


@pytest.mark.parametrize("seen_first", [False, True], ids=["at the claim", "at a look"])
def test_a_plan_whose_lease_ends_before_it_is_claimed_is_not_granted(waits: Waits, seen_first: bool) -> None:  # noqa: FBT001 - a case
    def asleep() -> None:
        waits.give_back()
        waits.look()
        waits.simulation.clock.wait(5000)
        if seen_first:
            expire_reservations(waits.database, trainer.Clock.now(tz=None).astimezone())

    waits.acts = {2: asleep}
    with pytest.raises(PlanNotGrantedError, match="it is voided") as caught:
        wait_for(waits, wait=10 * HOUR)
    assert caught.value.reservation_status == "voided"
    expire_reservations(waits.database, trainer.Clock.now(tz=None).astimezone())
    assert waits.left() == waits.most


@pytest.mark.parametrize(("wait", "error"), [(3600, TypeError), (timedelta(0), ValueError), (-HOUR, ValueError)])
def test_a_wait_is_a_time_to_come(waits: Waits, wait: Any, error: type[Exception]) -> None:  # noqa: ANN401 - a wrong one
    with pytest.raises(error, match="wait must be"):
        wait_for(waits, wait=wait)


def test_only_a_plan_can_wait_and_grants_are_plans_themselves(waits: Waits) -> None:
    with pytest.raises(ValueError, match="Only a plan can wait"):
        wait_for(waits, plan=None)
    with pytest.raises(ValueError, match="leave authorize_every at 1"):
        wait_for(waits, authorize_every=5)
    with pytest.raises(ValueError, match="leave authorize_every at 1"):
        wait_for(waits, authorize_every=5, wait=None)
    assert not [run for run in waits.simulation.client().list_runs(budget=BUDGET) if run.name == "second"]
