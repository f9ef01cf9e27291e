"""A run that waits for its reservation: until it is granted, in vain, or until its trainer has enough."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from app.service.maintenance import expire_reservations
from app.service.scheduling.grants import expire_waiting, grant_waiting
from epsilon_ledger import (
    AsyncLedgerClient,
    AsyncRun,
    BudgetExceededError,
    EventCount,
    LedgerClient,
    LedgerUnavailableError,
    Reservation,
    ReservationNotGrantedError,
    Run,
    Waiting,
)
from epsilon_ledger._run import reservation_waits
from tests.sdk.simulation import BUDGET, HOUR, LOUD, TRIES, Simulation
from tests.sdk.wire import Fault

LEASE = 7 * 24 * 3600
"""Of the reservation that holds the budget, in seconds."""


def plan(count: int) -> list[EventCount]:
    return [EventCount(event=LOUD, count=count)]


@dataclass(eq=False, kw_only=True)
class Waits(Simulation):
    """A simulation whose budget is held but for 10 steps; the pauses of a client are when the ledger looks at
    reservations.

    `acts` are called at the pauses of these numbers, from 1, before the ledger looks.
    """

    acts: dict[int, Callable[[], object]] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.most = self.left()
        self.holder = self.run(reserve=plan(self.most - 10), lease_seconds=LEASE)

    def give_back(self) -> None:
        """Let the other run end without having used its reservation."""
        self.holder.complete(0)

    def waiter(self) -> LedgerClient:
        return self.client(sleep=self._pause, jitter=lambda _low, high: high)

    def async_waiter(self) -> AsyncLedgerClient:
        async def pause(seconds: float) -> None:
            await asyncio.sleep(0)
            self._pause(seconds)

        return self.async_client(async_sleep=pause, jitter=lambda _low, high: high)

    def look(self) -> None:
        """Let the service's maintenance look at the reservations."""
        grant_waiting(self.ledger.database)
        expire_waiting(self.ledger.database)

    def left(self) -> int:
        """How many steps the budget admits now."""
        left = self.run().state.steps_remaining
        assert left is not None
        return left

    def left_behind(self, **terms: Any) -> str:  # noqa: ANN401 - passed on
        """A run whose trainer died while its reservation waited; returns its id."""
        until = (self.clock.now() + HOUR).isoformat()
        body = {"name": "second", "budget": BUDGET, "event": LOUD, "reserve": plan(20), "wait_until": until} | terms
        made = self.ledger.post("/v1/runs", body).json()
        assert made["status"] == "waiting"
        return str(made["id"])

    def wait_for(self, **terms: Any) -> Run:  # noqa: ANN401 - passed on
        """Wait for a reservation of 20 steps."""
        return self.waiter().create_run("second", **(TERMS | terms))

    def second(self, status: str) -> Reservation:
        """The reservation of the only run of this name, as the audit log names it."""
        [run] = [run for run in self.client().list_runs(budget=BUDGET) if run.name == "second"]
        events = self.client("admin").list_audit_events(action="reservation.queued")
        [queued] = [event for event in events if event.after is not None and event.after["run"] == run.id]
        found = self.client().get_reservation(queued.subject)
        assert found.status == status
        # A run whose reservation was given up is not trained.
        assert run.status == ("waiting" if status == "waiting" else "aborted")
        return found

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        assert len(self.pauses) < 500, "it waits for ever"
        self.clock.sleep(seconds)
        self.acts.get(len(self.pauses), lambda: None)()
        self.look()


TERMS: dict[str, Any] = {"budget": BUDGET, "event": LOUD, "reserve": plan(20), "wait": HOUR}


@pytest.fixture
def waits(simulation: Simulation) -> Waits:
    return Waits(ledger=simulation.ledger, clock=simulation.clock)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def act(*_: object) -> NoReturn:
        raise error

    return act


def test_run_waits_until_its_reservation_fits_and_claims_it(waits: Waits) -> None:
    seen: list[Waiting] = []
    waits.acts = {3: waits.give_back}
    run = waits.wait_for(on_wait=seen.append)
    assert len(waits.pauses) == 3
    [told] = seen
    assert (told.rule, told.position, told.reservations, told.estimated_at) == ("first_come", 1, 1, None)
    [lacking] = told.lacks
    assert (lacking.account_path, lacking.reason) == (BUDGET, "reserved")
    assert lacking.available < lacking.requested
    assert (run.status, run.state.waiting_reservation) == ("active", None)
    assert run.state.reservation is not None
    held = waits.client().get_reservation(run.state.reservation)
    assert (held.status, held.claimed_at is not None, held.waiting) == ("active", True, None)
    assert waits.authorize(run, 4).reservation == held.id
    run.complete(4)
    assert waits.exact(run)
    assert waits.sound()


def test_awaited_run_waits_and_reserves_again(waits: Waits) -> None:
    seen: list[Waiting] = []
    waits.acts = {2: waits.give_back}

    async def main() -> AsyncRun:
        async with waits.async_waiter() as client, client.create_run("second", **TERMS, on_wait=seen.append) as run:
            await waits.authorize_async(run)
            await run.commit(1)
            await run.reserve(plan(2), wait=HOUR)
            await waits.authorize_async(run, 2)
            await run.commit(2)
        return run

    run = asyncio.run(main())
    assert (len(seen), len(waits.pauses), run.status) == (1, 2, "completed")
    assert waits.exact(run)


def test_reservation_that_fits_or_never_fits_does_not_wait(waits: Waits) -> None:
    with pytest.raises(BudgetExceededError):
        waits.wait_for(reserve=plan(1000))
    waits.give_back()
    run = waits.wait_for(on_wait=lambda _: pytest.fail("it waits"))
    assert (run.status, waits.pauses) == ("active", [])
    assert "claim" not in waits.asked


@pytest.mark.parametrize(
    ("terms", "first", "longest"), [({}, [1.2, 1.8, 2.7, 4.05], 18.0), ({"lease_seconds": 8}, [1.2, 1.8, 2.4], 2.4)]
)
def test_pauses_grow_up_to_part_of_lease(
    waits: Waits, terms: dict[str, Any], first: list[float], longest: float
) -> None:
    waits.acts = {10: waits.give_back}
    waits.wait_for(**terms)
    assert waits.pauses[: len(first)] == pytest.approx(first)
    assert waits.pauses[-2:] == pytest.approx([longest] * 2)


def test_each_change_of_place_is_told_once_and_logged(waits: Waits, caplog: pytest.LogCaptureFixture) -> None:
    first = waits.left_behind(name="first", reserve=plan(30))
    reservation = waits.client().get_run(first).state.waiting_reservation
    assert reservation is not None
    seen: list[Waiting] = []
    office = waits.client("admin")
    waits.acts = {2: lambda: office.cancel_reservation(reservation, reason="Not needed."), 5: waits.give_back}
    with caplog.at_level(logging.INFO, "epsilon_ledger"):
        run = waits.wait_for(on_wait=seen.append)
        assert [(told.position, told.reservations) for told in seen] == [(2, 2), (1, 1)]
        assert str(seen[1]).startswith(f"place 1 of 1 by first_come; waits for {BUDGET} (reserved: ")
        assert not [record for record in caplog.records if record.name == "epsilon_ledger.waiting"]
        run.complete(0)
        holder = waits.waiter().create_run("third", budget=BUDGET, reserve=plan(waits.most - 10), lease_seconds=3600)
        other = waits.waiter().create_run("fourth", budget=BUDGET, reserve=plan(2))
        now = len(waits.pauses)
        waits.acts = {now + 2: lambda: other.complete(0), now + 4: lambda: holder.complete(0)}
        run = waits.waiter().create_run("fifth", **TERMS)
    lines = [record for record in caplog.records if record.name == "epsilon_ledger.waiting"]
    assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]
    assert lines[0].getMessage().startswith(f"{run.id} waits for its reservation {run.state.reservation}: place 1 of 1")


def test_reservation_that_waits_in_vain_is_error_with_its_facts(waits: Waits) -> None:
    with pytest.raises(ReservationNotGrantedError, match=f"it is expired. At last: place 1 .* {BUDGET}") as caught:
        waits.wait_for(wait=timedelta(seconds=30))
    error = caught.value
    found = waits.second("expired")
    facts = (error.reservation, error.reservation_status, error.wait_until, error.run)
    assert facts == (found.id, "expired", found.wait_until, found.run)
    assert error.waiting is not None
    assert error.waiting.lacks[0].reason == "reserved"
    over = waits.client().get_run(error.run).state
    assert (over.end_reason, over.waiting_reservation) == ("not_granted", None)
    assert not getattr(error, "__notes__", [])


def test_ledger_that_is_away_for_long_is_waited_for(waits: Waits, caplog: pytest.LogCaptureFixture) -> None:
    faults = [*[Fault.LOST] * 2 * TRIES, *[Fault.BUSY] * 2 * TRIES]
    waits.acts = {2: lambda: waits.fails(*faults), 20: waits.give_back}
    assert waits.wait_for().status == "active"
    assert sum("No answer about" in record.getMessage() for record in caplog.records) == 4


def test_ledger_that_stays_away_until_end_is_given_up(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_waits, "datetime", waits.clock)
    waits.acts = {2: lambda: waits.fails(*[Fault.LOST] * 1000)}
    with pytest.raises(LedgerUnavailableError) as caught:
        waits.wait_for(wait=timedelta(seconds=70))
    waits.faults.clear()
    # Its end has come at the ledger too, which the client cannot know.
    run = waits.second("expired").run
    assert f"get_run('{run}').wait_for_reservation() waits on for it" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("seen_first", [False, True], ids=["at the claim", "at a look"])
def test_reservation_whose_lease_ends_before_its_claim_is_not_granted(waits: Waits, *, seen_first: bool) -> None:
    def expire() -> None:
        expire_reservations(waits.ledger.database, waits.clock.now())

    def asleep() -> None:
        waits.give_back()
        waits.look()
        waits.clock.sleep(5000)
        if seen_first:
            expire()

    waits.acts = {2: asleep}
    with pytest.raises(ReservationNotGrantedError, match="it is voided") as caught:
        waits.wait_for(wait=10 * HOUR)
    assert caught.value.reservation_status == "voided"
    expire()
    assert waits.left() == waits.most


def test_wrong_wait_is_refused_before_anything_is_sent(waits: Waits) -> None:
    asked = len(waits.requests)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"wait": 3600}, TypeError, "wait must be"),
        *(({"wait": wait}, ValueError, "wait must be") for wait in (timedelta(0), -HOUR)),
        ({"reserve": None}, ValueError, "Only a reservation can wait"),
        *(({"prefetch": 5, "wait": wait}, ValueError, "leave prefetch at 1") for wait in (HOUR, None)),
    ]
    for terms, error, said in wrong:
        with pytest.raises(error, match=said):
            waits.wait_for(**terms)
    assert len(waits.requests) == asked
