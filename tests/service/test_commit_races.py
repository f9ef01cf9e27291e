"""Queues beside other writers: threads of the same process, and other processes on the same database."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import locks
from app.service.charging.commit_queue import CommitQueue
from app.service.charging.requests import StepResult
from tests.conftest import Ledger
from tests.service.step_commands import (
    LOUD,
    PATIENCE_SECONDS,
    CommandRunner,
    another,
    opened,
    organisation,
    request,
    sound,
    together,
    within,
)


@contextmanager
def _writing(database: Database) -> Iterator[Callable[[], None]]:
    """Another writer at work in a thread, until it is told to end."""
    begun, end = threading.Event(), threading.Event()

    def write() -> None:
        with database.write(ALL_TENANTS):
            begun.set()
            assert end.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(write)
        assert begun.wait(PATIENCE_SECONDS)
        try:
            yield end.set
        finally:
            end.set()
            busy.result()


@pytest.mark.both_databases
@pytest.mark.parametrize("elsewhere", [False, True])
def test_queue_waits_for_another_writer_in_a_thread(ledger: Ledger, *, elsewhere: bool) -> None:
    """The loop goes on meanwhile: it is what lets the other writer end here."""
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    other = Database(str(ledger.database.engine.url.render_as_string(hide_password=False)))
    with _writing(other if elsewhere else ledger.database) as end:

        async def work(charges: CommitQueue) -> list[Any]:
            asked = [asyncio.create_task(charges.authorize_steps(runner.call(), request(run))) for _ in range(3)]
            for _ in range(20):
                await asyncio.sleep(0.001)
            waited = not any(task.done() for task in asked)
            end()
            return [waited, *await together(*asked)]

        waited, *found = within(work, ledger.database)
    other.dispose()
    assert waited or ledger.database.dialect == "postgresql"  # whose writers wait for rows only
    assert [answered.decision.first_step for answered in found] == [1, 2, 3]


def test_processes_share_the_last_steps_of_a_budget(ledger: Ledger) -> None:
    """Each has a database, a queue and a memory of its own; together they get what there is, and not one step more."""
    runs, runner = [opened(ledger), another(ledger)], CommandRunner(ledger)
    left = runner.charged(request(runs[0], (LOUD, 190))).steps_remaining
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    assert 10 < left < 40

    def process(place: int) -> list[Any]:
        database = Database(url)

        async def work(charges: CommitQueue) -> list[Any]:
            found: list[Any] = []
            for _ in range(5):
                asked = [request(run, key=f"{place}-{run}-{len(found)}-{more}") for run in runs for more in range(3)]
                found += await together(*[charges.authorize_steps(runner.call(), each) for each in asked])
            return found

        try:
            return list(within(work, database))
        finally:
            database.dispose()

    with ThreadPoolExecutor(2) as pool:
        found = [each for part in pool.map(process, range(2)) for each in part]
    assert all(isinstance(each, StepResult) for each in found), found
    admitted = [each.decision for each in found if each.decision.admitted]
    assert (len(found), len(admitted)) == (60, left)
    assert len({(decision.run_id, decision.first_step) for decision in admitted}) == left
    assert sound(ledger)


def test_locked_rows_of_an_organisation_delay_no_other(ledger: Ledger) -> None:
    """On PostgreSQL; SQLite has one writer, whoever it is."""
    if ledger.database.dialect == "sqlite":
        return
    run, runner = opened(ledger), CommandRunner(ledger)
    keys = {("hospital", role): key for (name, role), key in ledger.keys.items() if name == "clinic"}
    clinic = Ledger(ledger.http, ledger.database, keys)
    other, its_office = opened(clinic), CommandRunner(ledger, organisation(ledger, "clinic"))
    for who, asked in ((runner, run), (its_office, other)):
        who.charged(request(asked))

    async def work(charges: CommitQueue) -> list[Any]:
        with ledger.database.write(ALL_TENANTS) as tx:
            locks.lock(tx, runner.organisation_id, [account.id for account in runner.path(run)])
            delayed = asyncio.create_task(charges.authorize_steps(runner.call(), request(run)))
            quick = [await charges.authorize_steps(its_office.call(), request(other)) for _ in range(3)]
            waited = not delayed.done()
        return [waited, *quick, await delayed]

    waited, *found = within(work, ledger.database)
    assert waited
    assert [answered.decision.first_step for answered in found] == [1, 2, 3, 1]
