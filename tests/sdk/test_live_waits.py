"""Waiting for a plan of a real server, in real time."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest

from epsilon_ledger import EventCount, LedgerClient, Limit, Run, Waiting, gaussian
from epsilon_ledger._run import plan_waits
from tests.conftest import LiveServer

PLAN = [EventCount(event=gaussian(20.0), count=20)]
HOUR = timedelta(hours=1)


@pytest.fixture
def budget(admin: LedgerClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """A budget with room for one plan; waits look at it often."""
    monkeypatch.setattr(plan_waits, "_LONGEST_PAUSE", 0.4)
    monkeypatch.setattr(plan_waits, "_FIRST_PAUSE", 0.1)
    name = f"mimic-{uuid.uuid4().hex[:8]}"
    limit = Limit(1.0, 1e-5)
    admin.create_population(name, privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=limit)
    return admin.create_budget("icu-team", parent=name, limit=limit).path


def test_a_wait_outlives_the_server(live_server: LiveServer, budget: str) -> None:
    def restart(told: Waiting) -> None:
        if told.lacks:  # later it fits, and is granted within a second
            live_server.kill()
            back.start()

    def come_back() -> None:
        time.sleep(0.3)
        live_server.start()
        with LedgerClient(live_server.url, live_server.key("trainer")) as other:
            other.get_run(holder.id, with_plan=True).complete(0)

    back = threading.Thread(target=come_back)
    # One try for each look: the wait has to bear the failures, however slowly this machine starts a server.
    with LedgerClient(live_server.url, live_server.key("trainer"), max_attempts=1) as client:
        holder = client.create_run("first", budget=budget, plan=PLAN)
        run = client.create_run("second", budget=budget, event=gaussian(20.0), plan=PLAN, wait=HOUR, on_wait=restart)
        back.join()
        assert run.authorize(20).reservation == run.state.reservation
        run.complete(20)
        assert holder.refresh().status == "completed"


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """A shell starts jobs in the background with interrupts ignored: nothing would end the wait."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_interrupts")
def test_ctrl_c_cancels_the_plan(trainer: LedgerClient, admin: LedgerClient, budget: str) -> None:
    def press(_: Waiting) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    def create() -> Run:
        return trainer.create_run("second", budget=budget, plan=PLAN, wait=HOUR, on_wait=press)

    trainer.create_run("first", budget=budget, plan=PLAN)
    with pytest.raises(KeyboardInterrupt):
        create()
    [run] = trainer.list_runs(budget=budget, status="aborted")
    assert (run.name, run.end_reason) == ("second", "not_granted")
    assert admin.get_queue(budget).plans == 0
