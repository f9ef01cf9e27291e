"""A run: its numbers, its states, and the end of its `with` block."""

import asyncio
import gc
import inspect
import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import httpx2
import numpy as np
import pytest

from epsilon_ledger import (
    AsyncLedgerClient,
    AsyncRun,
    BudgetExceededError,
    LedgerClient,
    LedgerUnavailableError,
    Limit,
    Run,
    RunOpening,
    RunStateConflictError,
    StepsAlreadyTakenError,
    gaussian,
    poisson_sampled,
)
from tests.sdk.fake_ledger import RAISED, REFUSAL, RUN_ID, TRIES, FakeLedger, problem
from tests.sdk.test_reservation_waits import raising
from tests.sdk.wire import KEY, URL, Fault, Try

ICU: dict[str, Any] = {"name": "icu", "budget": "mimic/icu-team"}
DOWN = httpx2.ConnectError("refused")


def paths(ledger: FakeLedger) -> list[str]:
    return [request.url.path.rsplit("/", 1)[-1] for request in ledger.requests]


def async_client_of(ledger: FakeLedger) -> AsyncLedgerClient:
    return AsyncLedgerClient(URL, KEY, max_attempts=1, transport=ledger)


def test_each_admission_moves_run_on(run: Run) -> None:
    assert (run.id, run.name, run.status, run.next_step, run.epsilon) == (RUN_ID, "icu", "active", 0, 0.0)
    answer = run.authorize(4)
    assert (answer.decision, answer.first_step, answer.count, answer.steps_remaining) == ("admitted", 0, 4, 6)
    assert (run.next_step, run.epsilon, run.state.steps_remaining) == (4, 1.0, 6)
    assert repr(run) == "<Run run_1 'icu' active next_step=4>"


def test_events_are_sent_as_they_were_given(run: Run, ledger: FakeLedger) -> None:
    event = poisson_sampled(0.01, gaussian(1.1))
    several: list[Any] = [{"event": event, "count": 3}, {"event": {"type": "laplace"}, "count": 1}]
    run.authorize(2, event=event)
    run.authorize(events=several)
    inner = {"type": "gaussian", "noise_multiplier": 1.1}
    wire = {"type": "poisson_sampled", "sampling_probability": 0.01, "event": inner}
    items = [{"event": wire, "count": 3}, {"event": {"type": "laplace"}, "count": 1}]
    assert ledger.bodies == [
        {"first_step": 0, "attempt": 1, "count": 2, "event": wire},
        {"first_step": 2, "attempt": 1, "events": items},
    ]
    assert run.next_step == 6


def test_contradicting_arguments_are_refused_before_anything_is_sent(run: Run, ledger: FakeLedger) -> None:
    items: Any = [{"event": gaussian(1.0), "count": 1}]
    with pytest.raises(ValueError, match="either events"):
        run.authorize(2, events=items)
    with pytest.raises(ValueError, match="either events"):
        run.preview(event=gaussian(1.0), events=items)
    for count in (1.5, "3", True):
        with pytest.raises(TypeError, match="count must be a whole number"):
            run.authorize(count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        run.authorize(0)
    with pytest.raises(ValueError, match="JSON compliant"):
        run.authorize(event={"type": "gaussian", "noise_multiplier": float("nan")})
    assert not ledger.requests
    assert run.authorize(np.int64(1), event=gaussian(np.float32(1.5))).next_step == 1  # type: ignore[arg-type]


def test_preview_charges_nothing(run: Run, ledger: FakeLedger) -> None:
    assert run.preview(10).dry_run
    assert (run.next_step, ledger.next_step) == (0, 0)
    with pytest.raises(BudgetExceededError) as caught:
        run.preview(11)
    assert caught.value.dry_run
    assert ledger.requests[0].url.query == b"dry_run=true"


def test_states(run: Run, ledger: FakeLedger) -> None:
    for act, status in ((run.pause, "paused"), (run.resume, "active"), (run.abort, "aborted")):
        act()
        assert run.status == status
    with pytest.raises(RunStateConflictError) as caught:
        run.complete()
    assert caught.value.run_status == "aborted"
    assert paths(ledger) == ["pause", "resume", "abort", "complete"]
    assert ledger.bodies == [{}, {}, {"attempt": 1}, {"attempt": 1}]


ENDS: dict[str, tuple[Callable[[Run], object], type[BaseException] | None, str]] = {
    "admitted step": (lambda run: run.authorize(), None, "completed"),
    "refusal": (lambda run: run.authorize(11), BudgetExceededError, "completed"),
    "no memory": (raising(RuntimeError("out of memory")), RuntimeError, "aborted"),
    "interrupt": (raising(KeyboardInterrupt()), KeyboardInterrupt, "aborted"),
    "exit": (raising(SystemExit(1)), SystemExit, "aborted"),
    "cancelled": (raising(asyncio.CancelledError()), asyncio.CancelledError, "aborted"),
    "other process": (raising(StepsAlreadyTakenError("taken")), StepsAlreadyTakenError, "active"),
    "no ledger": (raising(LedgerUnavailableError("gone")), LedgerUnavailableError, "active"),
}
"""What a training does in its block, what leaves the block, and the run's status then."""


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
@pytest.mark.parametrize("name", ENDS)
def test_end_of_block_decides_status(client: LedgerClient, ledger: FakeLedger, name: str, *, awaited: bool) -> None:
    act, error, status = ENDS[name]

    async def main() -> None:
        async with async_client_of(ledger) as other, other.create_run(**ICU) as run:
            found = act(cast("Run", run))
            if inspect.isawaitable(found):
                await found

    with nullcontext() if error is None else pytest.raises(error):
        if awaited:
            asyncio.run(main())
        else:
            with client.create_run(**ICU) as run:
                act(run)
    assert ledger.run["status"] == status


def test_paused_or_ended_run_is_not_ended_by_its_trainer(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.fails(Fault.NONE, Try(problem(409, "run_state_conflict", run_status="paused"), 0))
    with pytest.raises(RunStateConflictError), client.create_run(**ICU) as run:
        run.authorize()
    with client.create_run(**ICU) as run:
        run.complete()
    with pytest.raises(RuntimeError), run:
        raise RuntimeError
    assert paths(ledger) == ["runs", "steps", "runs", "complete"]


def test_first_exception_is_one_that_is_seen(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.fails(Fault.NONE, *[Try(DOWN, 0)] * TRIES)
    with pytest.raises(ValueError, match="mine") as caught, client.create_run(**ICU):
        raise ValueError("mine")
    assert any("did not confirm the request to abort the run run_1" in note for note in caught.value.__notes__)
    with pytest.raises(LedgerUnavailableError), client.get_run(RUN_ID):
        ledger.answers(*[DOWN] * TRIES)


# A run of the awaited client, while it is opened.


def test_opening_can_be_awaited_gathered_and_made_task(ledger: FakeLedger) -> None:
    async def main() -> None:
        async with async_client_of(ledger) as client:
            opening = client.get_run(RUN_ID)
            assert isinstance(opening, RunOpening)
            assert inspect.isawaitable(opening)
            assert asyncio.iscoroutine(opening)
            run: AsyncRun = await opening
            gathered = await asyncio.gather(client.get_run(RUN_ID), client.get_run(RUN_ID))
            task = await asyncio.create_task(client.get_run(RUN_ID))
            waited = await asyncio.wait_for(client.get_run(RUN_ID), 5)
            assert {each.id for each in (run, *gathered, task, waited)} == {RUN_ID}
            async with run:
                pass
            assert run.status == "completed"
            ledger.answers(DOWN)
            with pytest.raises(LedgerUnavailableError):
                async with client.create_run("model", budget="mimic"):
                    pytest.fail("it was not opened")
        assert paths(ledger)[-2:] == ["complete", "runs"]

    asyncio.run(main())


def test_opening_that_is_dropped_warns_and_closed_one_is_silent(
    ledger: FakeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    client = async_client_of(ledger)
    with pytest.raises(ValueError, match="state_dict"):
        client.resume_run({"format": 0})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'x' is no argument"):
        client.create_run("model", budget="mimic", x=1)  # type: ignore[call-arg]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.get_run(RUN_ID).close()
        gc.collect()
        assert not caught
        client.get_run(RUN_ID)
        gc.collect()
    assert ["was never awaited" in str(warning.message) for warning in caught] == [True]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not ledger.requests


def test_request_for_a_higher_limit_asks_for_all_that_the_refusal_names(run: Run, ledger: FakeLedger) -> None:
    with pytest.raises(ValueError, match="names no limit that would be enough"):
        run.request_limit("All epochs.")
    limits = [RAISED, RAISED | {"account": "pop_1", "account_path": "mimic", "epsilon": 9.0}]
    offered = [{"type": "higher_limit", "steps": 4, "limits": limits}]
    ledger.answers(problem(403, "budget_exceeded", **REFUSAL | {"alternatives": offered}))
    with pytest.raises(BudgetExceededError):
        run.authorize(4)
    made: dict[str, Any] = {
        "id": "prp_1",
        "kind": "limit",
        "account": "bud_1",
        "proposed": {},
        "status": "open",
        "reason": "All epochs.",
    }
    made |= {"proposed_by": "key_1", "proposed_at": "2026-11-21T08:00:00Z", "decided_by": None, "decided_at": None}
    made |= {"decision_reason": None}
    asked: list[tuple[dict[str, Any], list[tuple[str, float]]]] = [
        ({}, [("bud_1", 3.25), ("pop_1", 9.0)]),
        ({"limit": Limit(4.0, 1e-5)}, [("bud_1", 4.0), ("pop_1", 9.0)]),
        ({"account": "mimic"}, [("pop_1", 9.0)]),
        ({"limit": Limit(4.0, 1e-5), "account": "mimic"}, [("mimic", 4.0)]),
    ]
    for given, sent in asked:
        ledger.requests.clear()
        ids = [{"mimic": "pop_1"}.get(account, account) for account, _ in sent]
        ledger.answers(*(httpx2.Response(201, json=made | {"account": each}) for each in ids))
        assert len(run.request_limit("All epochs.", **given)) == len(sent)
        bodies: list[dict[str, Any]] = ledger.bodies
        assert [(body["account"], body["limit"]["epsilon"]) for body in bodies] == sent
