"""Calculations in other processes: they take turns, one organisation never waits for all of another's, and they end."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import Gaussian, Laplace, NeighboringRelation, PoissonSampled, Zcdp
from app.accounting.rdp import event_curve, event_curves
from app.ledger.accounts.account import Account
from app.ledger.errors import LedgerUnavailableError, RateLimitedError
from app.planning.assumptions import if_planned
from app.service import costing, worker_pool
from app.service.costing import CostNotReadyError, PrecomputedCosts
from app.service.worker_pool import MOST_WAITING, FairQueue, Job, WorkerPool

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
SAMPLED = PoissonSampled(0.01, Gaussian(1.0))
DEAR = [PoissonSampled(0.001 * rate, Laplace(0.01)) for rate in range(1, 51)]
"""Counted as if their integral were computed, and quickly bounded without it."""


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Whose processes nothing ends: to start one takes a second."""
    made = WorkerPool()
    yield made
    for each in made._idle:
        each.end()


def test_lanes_take_turns_and_one_task_of_a_lane_runs_at_a_time() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(3):
        queue.put("loud", number)
    queue.put("quiet", 10)
    assert queue.take(0) == ("loud", 0)
    assert queue.take(0) == ("quiet", 10)
    assert queue.take(0) is None
    queue.put("late", 20)
    queue.done("loud")
    assert queue.take(0) == ("loud", 1)
    queue.done("loud")
    assert queue.take(0) == ("late", 20)
    assert queue.take(0) == ("loud", 2)


def test_urgent_task_is_taken_while_others_wait() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("plans", 1)
    assert queue.take(0, urgent=True) is None
    queue.put("prices", 2, urgent=True)
    assert queue.take(0, urgent=True) == ("prices", 2)
    assert queue.take(0) == ("plans", 1)


def test_step_with_an_expensive_event_does_not_wait_for_plans_of_many_organisations(pool: WorkerPool) -> None:
    plans = [pool.submit(f"plans {number}", Job(time.sleep, (0.3,))) for number in range(6)]
    missing = CostNotReadyError(Job(os.getpid, ()), work=costing.LITTLE_WORK + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costing, "WORKER_POOL", pool)
        missing.compute("org")
    assert not plans[-1].done()
    for plan in plans:
        plan.result(30)


def _for_ever() -> None:
    while True:
        with suppress(Exception):
            time.process_time()


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job(if_planned, (_for_ever,)), "0.05 s of a processor"),
        (Job(np.zeros, (10**18,)), "MB of memory"),
    ],
)
def test_job_beyond_its_time_or_memory_is_refused_whatever_handles_errors(
    monkeypatch: pytest.MonkeyPatch, job: Job[object], reason: str
) -> None:
    monkeypatch.setattr(worker_pool, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(worker_pool, "AGAIN_SECONDS", 0.01)
    before = signal.signal(signal.SIGPROF, worker_pool._stop)
    try:
        succeeded, error = worker_pool._run_job(job.function, job.arguments, job.most)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert (succeeded, type(error)) == (False, PlanTooExpensiveError)
    assert reason in str(error)
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_full_lane_refuses_and_others_do_not_and_a_waiting_taker_gets_the_next_task() -> None:
    queue: FairQueue[int] = FairQueue()
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take(10)))
    thread.start()
    queue.put("lane", 7)
    thread.join()
    assert taken == [("lane", 7)]
    for number in range(MOST_WAITING):
        queue.put("loud", number)
    with pytest.raises(RateLimitedError) as refused:
        queue.put("loud", 0)
    assert refused.value.members == {"retry_after": 2}
    queue.put("quiet", 0)


def test_another_process_answers_as_this_one_and_goes_on_after_an_error(pool: WorkerPool) -> None:
    answer = pool.submit("lane", Job(event_curves, ([SAMPLED], ADD, 1))).result(30)
    assert np.array_equal(answer[0].values, event_curve(SAMPLED, ADD).values)
    assert not answer[0].values.flags.writeable
    before = pool.submit("lane", Job(os.getpid, ())).result(30)
    assert before != os.getpid()
    unsound = Job(event_curves, ([PoissonSampled(0.5, Zcdp(1.0))], ADD, 1))
    with pytest.raises(UnsupportedEventError, match="does not amplify"):
        pool.submit("lane", unsound).result(30)
    with pytest.raises(PlanTooExpensiveError):
        pool.submit("lane", Job(event_curves, (DEAR, ADD, 1))).result(30)
    with pytest.raises(PlanTooExpensiveError, match="400 MB of memory"):
        pool.submit("lane", Job(np.ones, (10**8,))).result(30)
    _, given_up = (pool.submit("lane", Job(time.sleep, (0.2,))) for _ in range(2))
    assert given_up.cancel()
    assert pool.submit("lane", Job(os.getpid, ())).result(30) == before


def test_dead_or_silent_process_fails_one_task_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    own = WorkerPool()
    first = own.submit("lane", Job(os.getpid, ())).result(30)
    killed = own.submit("lane", Job(os.kill, (first, signal.SIGKILL)))
    with pytest.raises(LedgerUnavailableError):
        killed.result(30)
    assert own.submit("lane", Job(os.getpid, ())).result(30) != first
    monkeypatch.setattr(worker_pool, "ANSWER_SECONDS", 0.5)
    with pytest.raises(LedgerUnavailableError):
        own.submit("lane", Job(time.sleep, (60,))).result(30)


def test_request_may_be_repeated_where_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(LedgerUnavailableError, match="could be started: No such file"):
        WorkerPool().submit("lane", Job(os.getpid, ())).result(30)


def test_prices_of_many_events_are_computed_in_parts() -> None:
    account = cast("Account", SimpleNamespace(relation=ADD, grid_version=1))
    ready = PrecomputedCosts()
    parts = 0
    while True:
        try:
            ready.require(account, DEAR)
        except CostNotReadyError as missing:
            missing.compute("org_1")
            parts += 1
        else:
            break
    assert parts == 2


@pytest.mark.parametrize(("needed", "lane"), [(True, "prices org_1"), (False, "alternatives org_1")])
def test_search_that_takes_too_long_is_given_up_and_what_is_needed_is_refused(
    monkeypatch: pytest.MonkeyPatch, lane: str, *, needed: bool
) -> None:
    failed: Future[object] = Future()
    failed.set_exception(PlanTooExpensiveError("It takes too long."))
    lanes: list[str] = []
    kept: list[object] = []

    def submit(lane: str, _: object, *, urgent: bool) -> Future[object]:
        assert urgent == needed
        lanes.append(lane)
        return failed

    monkeypatch.setattr(costing, "WORKER_POOL", SimpleNamespace(submit=submit))
    missing = CostNotReadyError(Job(os.getpid, ()), kept.append, costing.LITTLE_WORK + 1, needed=needed)
    for compute in (missing.compute, lambda organisation: asyncio.run(missing.computed(organisation))):
        with pytest.raises(PlanTooExpensiveError) if needed else nullcontext():
            compute("org_1")
    assert (lanes, kept) == ([lane] * 2, [] if needed else [None] * 2)
