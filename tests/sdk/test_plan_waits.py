"""A run that waits for its plan: until it is granted, in vain, or until its trainer has enough."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

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


TERMS: dict[str, Any] = {"budget": BUDGET, "event": LOUD, "plan": plan(20), "wait": HOUR}
"""Of a run whose plan of 20 steps has to wait."""


def wait_for(waits: Waits, **terms: Any) -> Run:  # noqa: ANN401 - passed on
    return waits.client().create_run("second", **(TERMS | terms))


def second(waits: Waits, status: str) -> Reservation:
    """The reservation of the only run of this name, as the audit log names it."""
    [run] = [run for run in waits.simulation.client().list_runs(budget=BUDGET) if run.name == "second"]
    events = waits.simulation.client("admin").list_audit_events(action="reservation.queued")
    [queued] = [event for event in events if event.after is not None and event.after["run"] == run.id]
    found = waits.simulation.client().get_reservation(queued.subject)
    assert found.status == status
    # Nobody trains a run whose plan was given up.
    assert run.status == ("waiting" if status == "waiting" else "aborted")
    return found


def test_run_waits_until_its_plan_fits_and_claims_it(waits: Waits) -> None:
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


def test_awaited_run_waits_and_reserves_again(waits: Waits) -> None:
    seen: list[Waiting] = []
    waits.acts = {2: waits.give_back}

    async def main() -> AsyncRun:
        async with waits.async_client() as client, client.create_run("second", **TERMS, on_wait=seen.append) as run:
            await waits.simulation.authorize_async(run)
            await run.commit(1)
            await run.reserve(plan(2), wait=HOUR)
            await waits.simulation.authorize_async(run, 2)
            await run.commit(2)
        return run

    run = asyncio.run(main())
    assert (len(seen), len(waits.pauses), run.status) == (1, 2, "completed")
    assert waits.simulation.exact(run)


def test_plan_that_fits_or_never_fits_does_not_wait(waits: Waits) -> None:
    with pytest.raises(BudgetExceededError):
        wait_for(waits, plan=plan(1000))
    waits.give_back()
    run = wait_for(waits, on_wait=lambda _: pytest.fail("it waits"))
    assert (run.status, waits.pauses) == ("active", [])
    assert "renew" not in waits.simulation.wire.asked


@pytest.mark.parametrize(
    ("terms", "first", "longest"), [({}, [1.2, 1.8, 2.7, 4.05], 18.0), ({"lease_seconds": 8}, [1.2, 1.8, 2.4], 2.4)]
)
def test_pauses_grow_up_to_part_of_lease(
    waits: Waits, terms: dict[str, Any], first: list[float], longest: float
) -> None:
    waits.acts = {12: waits.give_back}
    wait_for(waits, **terms)
    assert waits.pauses[: len(first)] == pytest.approx(first)
    assert waits.pauses[-4:] == pytest.approx([longest] * 4)


def test_each_change_of_place_is_told_once_and_logged(waits: Waits, caplog: pytest.LogCaptureFixture) -> None:
    until = (trainer.Clock.now(tz=None).astimezone() + HOUR).isoformat()
    body = {"name": "first", "budget": BUDGET, "plan": plan(30), "wait_until": until}
    first = waits.simulation.ledger.post("/v1/runs", body).json()
    seen: list[Waiting] = []
    office = waits.simulation.client("admin")
    waits.acts = {
        2: lambda: office.cancel_reservation(first["waiting_reservation"], reason="Not needed."),
        5: waits.give_back,
    }
    with caplog.at_level(logging.INFO, "epsilon_ledger"):
        run = wait_for(waits, on_wait=seen.append)
        assert [(told.position, told.plans) for told in seen] == [(2, 2), (1, 1)]
        assert str(seen[1]).startswith(f"place 1 of 1 by first_come; waits for {BUDGET} (reserved: ")
        assert not [record for record in caplog.records if record.name == "epsilon_ledger.waiting"]
        run.complete(0)
        holder = waits.client().create_run("third", budget=BUDGET, plan=plan(waits.most - 10), lease_seconds=3600)
        other = waits.client().create_run("fourth", budget=BUDGET, plan=plan(2))
        waits.acts = {
            len(waits.pauses) + 2: lambda: other.complete(0),
            len(waits.pauses) + 4: lambda: holder.complete(0),
        }
        run = waits.client().create_run("fifth", **TERMS)
    lines = [record for record in caplog.records if record.name == "epsilon_ledger.waiting"]
    assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]
    assert lines[0].getMessage().startswith(f"{run.id} waits for its plan {run.state.reservation}: place 1 of 1")


def test_plan_that_waits_in_vain_is_error_with_its_facts(waits: Waits) -> None:
    with pytest.raises(PlanNotGrantedError, match=f"it is expired. At last: place 1 .* {BUDGET}") as caught:
        wait_for(waits, wait=timedelta(seconds=30))
    error = caught.value
    found = second(waits, "expired")
    facts = (error.reservation, error.reservation_status, error.wait_until, error.run)
    assert facts == (found.id, "expired", found.wait_until, found.run)
    assert error.waiting is not None
    assert error.waiting.lacks[0].reason == "reserved"
    over = waits.simulation.client().get_run(error.run).state
    assert (over.end_reason, over.waiting_reservation) == ("not_granted", None)
    assert not getattr(error, "__notes__", [])


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def act(*_: object) -> NoReturn:
        raise error

    return act


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), TimeoutError("place 1 is not good enough")], ids=repr
)
def test_interrupt_cancels_plan(waits: Waits, error: BaseException) -> None:
    asked: dict[str, Any] = {}
    if isinstance(error, TimeoutError):
        asked["on_wait"] = raising(error)
    else:
        waits.acts = {3: raising(error)}
    with pytest.raises(type(error)) as caught:
        wait_for(waits, **asked)
    found = second(waits, "cancelled")
    assert waits.simulation.client().get_run(found.run).state.end_reason == "not_granted"
    assert not getattr(caught.value, "__notes__", [])


def test_cancelled_task_cancels_plan(waits: Waits) -> None:
    async def main() -> None:
        async with waits.async_client() as client:
            task = asyncio.create_task(client.create_run("second", **TERMS))
            waits.acts = {2: task.cancel}
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    second(waits, "cancelled")


@pytest.mark.parametrize("last", ["look", "renew", "runs"])
def test_interrupt_after_grant_returns_plan(waits: Waits, last: str) -> None:
    def granted_and_interrupted() -> None:
        waits.give_back()
        waits.look()
        raise KeyboardInterrupt

    def stop(request: httpx2.Request) -> None:
        granted = request.method == "GET" and request.url.path.split("/")[2] == "runs"
        if request.url.path.endswith("/renew") if last == "renew" else granted:
            waits.simulation.wire.after = lambda _: None
            raise KeyboardInterrupt

    waits.acts = {2: granted_and_interrupted if last == "look" else waits.give_back}
    if last != "look":
        waits.simulation.wire.after = stop
    with pytest.raises(KeyboardInterrupt):
        wait_for(waits)
    found = second(waits, "committed")
    assert (found.granted_at is not None, found.steps_executed) == (True, 0)
    assert waits.left() == waits.most


def test_interrupt_is_not_held_up_by_ledger_that_does_not_answer(waits: Waits) -> None:
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
    second(waits, "waiting")


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BUSY])
def test_ledger_that_is_away_for_long_is_waited_for(
    waits: Waits, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    waits.acts = {2: lambda: waits.simulation.wire.fails(*[fault] * 4 * TRIES), 20: waits.give_back}
    assert wait_for(waits).status == "active"
    assert sum("No answer about" in record.getMessage() for record in caplog.records) == 4


def test_ledger_that_stays_away_until_end_is_given_up(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_waits, "datetime", trainer.Clock)
    waits.acts = {2: lambda: waits.simulation.wire.fails(*[Fault.LOST] * 1000)}
    with pytest.raises(LedgerUnavailableError) as caught:
        wait_for(waits, wait=timedelta(seconds=70))
    waits.simulation.wire.faults.clear()
    # Its end has come at the ledger too, which the client cannot know.
    run = second(waits, "expired").run
    assert f"get_run('{run}').wait_for_plan() waits on for it" in "".join(caught.value.__notes__)


def test_claim_whose_answer_is_lost_is_repeated(waits: Waits) -> None:
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
def test_plan_whose_lease_ends_before_its_claim_is_not_granted(waits: Waits, *, seen_first: bool) -> None:
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


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"wait": 3600}, TypeError, "wait must be"),
    *(({"wait": wait}, ValueError, "wait must be") for wait in (timedelta(0), -HOUR)),
    ({"plan": None}, ValueError, "Only a plan can wait"),
    *(({"authorize_every": 5, "wait": wait}, ValueError, "leave authorize_every at 1") for wait in (HOUR, None)),
]


@pytest.mark.parametrize(("terms", "error", "said"), WRONG)
def test_wrong_wait_is_refused_before_anything_is_sent(
    waits: Waits, terms: dict[str, Any], error: type[Exception], said: str
) -> None:
    asked = len(waits.simulation.wire.requests)
    with pytest.raises(error, match=said):
        wait_for(waits, **terms)
    assert len(waits.simulation.wire.requests) == asked
