"""The commit queue: commands that come while a group is written are in the next one, and each gets an answer."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError, TimeoutError  # noqa: A004 - of its pool

from app.accounting.events import Gaussian
from app.ledger.errors import LedgerUnavailableError, NotFoundError, RateLimitedError
from app.persistence.database import ALL_TENANTS, Database
from app.service.charging import commit_queue, readings
from app.service.charging.commit_queue import CommitQueue
from app.service.charging.groups import commit_group
from app.service.charging.requests import StepRequest, StepResult
from app.service.costing import CostNotReadyError
from app.service.verification.verify import verify
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.prepared_ledgers import ATTESTED
from tests.service.step_commands import (
    EPSILON,
    HUGE,
    LOUD,
    PATIENCE_SECONDS,
    QUIET,
    CommandRunner,
    another,
    computed_at_once,
    organisation,
    request,
    sound,
)
from tests.service.tampering import set_run, tampering


class Crash(BaseException):
    """What no ordinary handler catches."""


class Groups:
    """The groups that were tried, of which the first may fail."""

    error: BaseException | None = None
    written_first = False

    def __init__(self) -> None:
        self.runs: list[list[str]] = []

    @property
    def sizes(self) -> list[int]:
        return [len(runs) for runs in self.runs]

    def commit(self, db: Any, memory: Any, commands: Any, **more: Any) -> Any:  # noqa: ANN401 - passed through
        self.runs.append([command.request.run_id for command in commands])
        error = self.error if len(self.runs) == 1 else None
        outcomes = commit_group(db, memory, commands, **more) if self.written_first or error is None else None
        if error is not None:
            raise error
        return outcomes


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    made = Groups()
    monkeypatch.setattr(commit_queue, "commit_group", made.commit)
    return made


@pytest.fixture(autouse=True)
def known_epsilons(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step waits for its epsilon, whatever ran before in this process."""
    monkeypatch.setattr(readings, "_epsilon", computed_at_once)


@pytest.fixture
def run(run: str, runner: CommandRunner) -> str:
    """A run with one step."""
    runner.charged(request(run))
    return run


def within(work: Callable[[CommitQueue], Coroutine[Any, Any, Any]], database: Database) -> Any:  # noqa: ANN401 - whatever the work returns
    """Do something with a queue of its own, and close it."""

    async def main() -> Any:  # noqa: ANN401 - as above
        charges = CommitQueue(database)
        try:
            return await asyncio.wait_for(work(charges), PATIENCE_SECONDS)
        finally:
            await charges.close()

    return asyncio.run(main())


async def together(*asked: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*asked, return_exceptions=True))


def answers(ledger: Ledger, *rounds: list[StepRequest]) -> list[Any]:
    """What a queue answers to requests that come together, round by round."""
    runner = CommandRunner(ledger)

    async def work(charges: CommitQueue) -> list[Any]:
        found: list[Any] = []
        for asked in rounds:
            found += await together(*[charges.authorize_steps(runner.call(), each) for each in asked])
        return found

    return list(within(work, ledger.database))


def firsts(found: list[Any]) -> list[int]:
    return [answered.decision.first_step for answered in found]


def test_simultaneous_requests_are_one_group(ledger: Ledger, run: str, runner: CommandRunner, groups: Groups) -> None:
    runs = [run, another(ledger), another(ledger)]
    runner.group(*map(request, runs[1:]))
    found = answers(ledger, [request(each) for each in runs * 10], [request(run)])
    assert groups.runs == [runs * 10, [run]]
    assert firsts(found) == [*(1 + place // 3 for place in range(30)), 11]
    assert sound(ledger)


@pytest.mark.parametrize(("bound", "sizes"), [("MOST_COMMANDS", [4, 4, 2]), ("MOST_ITEMS", [2] * 5)])
def test_group_is_bounded(
    ledger: Ledger, run: str, groups: Groups, monkeypatch: pytest.MonkeyPatch, bound: str, sizes: list[int]
) -> None:
    monkeypatch.setattr(commit_queue, bound, 4)
    found = answers(ledger, [request(run, (LOUD, 1), (LOUD, 1))] * 10)
    assert firsts(found) == list(range(1, 20, 2))
    assert groups.sizes == sizes


def test_missing_costs_are_computed_beside_the_queue(ledger: Ledger, run: str) -> None:
    asked = [request(run, (QUIET, 1)), request(run, (HUGE, 1)), request(run, (LOUD, 10**6)), request("run_x")]
    admitted, hopeless, refused, nothing = answers(ledger, asked)
    assert (admitted.decision.admitted, hopeless.decision.admitted) == (True, False)
    offered = json.loads(refused.decision.refusal_details)["alternatives"]
    assert next(each["noise_multiplier"] for each in offered if each["type"] == "more_noise") > 60
    assert isinstance(nothing, NotFoundError)
    assert sound(ledger)


def test_steps_behind_one_that_lacks_something_wait_with_it(
    ledger: Ledger, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that does not wait for its answers numbers its steps; prices and epsilons of new events are missing."""
    monkeypatch.setattr(readings, "_epsilon", EPSILON)
    events = [QUIET, LOUD, Gaussian(70.0), QUIET, Gaussian(71.0), LOUD]
    found = answers(ledger, [request(run, (event, 1), first=place) for place, event in enumerate(events, 1)])
    assert firsts(found) == [1, 2, 3, 4, 5, 6]
    assert sound(ledger)


def test_steps_behind_one_that_fails_are_decided_without_it(
    ledger: Ledger, run: str, runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def computed(_missing: CostNotReadyError, _organisation_id: str) -> None:
        raise RateLimitedError("Too many wait.", retry_after=2)

    runner.group(request(run))
    monkeypatch.setattr(CostNotReadyError, "computed", computed)
    asked = [request(run, (Gaussian(72.0), 1)), request(run, first=1), request(run)]
    failed, *others = answers(ledger, asked)
    assert isinstance(failed, RateLimitedError)
    assert firsts(others) == [1, 2]
    assert sound(ledger)


def test_another_organisation_does_not_wait_for_a_run(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    if ledger.database.dialect != "sqlite":
        pytest.skip("only on SQLite may a group mix organisations")
    stranger = CommandRunner(ledger, organisation(ledger, "clinic"))
    commands = [runner.command(request(run, (Gaussian(73.0), 1))), stranger.command(request(run))]
    unready, unknown = commit_group(ledger.database, runner.memory, commands)
    assert isinstance(unready, CostNotReadyError)
    assert isinstance(unknown, NotFoundError)


def test_full_queue_refuses_some_and_serves_others(ledger: Ledger, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MOST_WAITING", 4)
    found = answers(ledger, [request(run)] * 10, [request(run)])
    assert [type(each) for each in found] == [*[StepResult] * 4, *[LedgerUnavailableError] * 6, StepResult]
    assert len(dump(ledger.database)["decisions"]) == 6
    monkeypatch.setattr(commit_queue, "MOST_WAITING", 0)
    reply = ledger.post(f"/v1/runs/{run}/steps", {})
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
    assert int(reply.headers["retry-after"]) >= 1


def test_poisonous_command_harms_no_other(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    """The next decision of a run whose rows were tampered with has the place of an earlier one."""
    sick = another(ledger)
    runner.charged(request(sick))
    path = runner.path(sick)[-1].path
    with tampering(ledger.database) as tx:
        set_run(tx, path, decision_count=0)
    one, poison, two, nothing, three = answers(ledger, [request(each) for each in (run, sick, run, "run_x", run)])
    assert firsts([one, two, three]) == [1, 2, 3]
    assert (type(poison), type(nothing)) == (IntegrityError, NotFoundError)
    spent = runner.path(sick)[-1].spent
    assert [runner.path(run)[place].spent for place in (-1, 0)] == [spent.times(4), spent.times(5)]


DOWN = OperationalError("COMMIT", {}, Exception("the disk is full"))


@pytest.mark.parametrize("error", [DOWN, LedgerUnavailableError("In doubt."), TimeoutError("the pool is empty")])
@pytest.mark.parametrize("written", [False, True])
def test_failing_database_is_not_asked_for_each_command(
    ledger: Ledger, run: str, groups: Groups, error: Exception, *, written: bool
) -> None:
    groups.error, groups.written_first = error, written
    asked = [request(run, first=first) for first in (1, 2, 3)]
    found = answers(ledger, asked, asked)
    assert (groups.sizes, found[:3]) == ([3, 3], [error] * 3)
    assert firsts(found[3:]) == [1, 2, 3]
    assert [answered.replayed for answered in found[3:]] == [written] * 3
    assert sound(ledger)


def test_unforeseen_error_is_tried_once_more_for_each_command(ledger: Ledger, run: str, groups: Groups) -> None:
    groups.error = AssertionError("a bug")
    assert firsts(answers(ledger, [request(run)] * 3)) == [1, 2, 3]
    assert groups.sizes == [3, 1, 1, 1]


def test_crash_of_the_writer_answers_every_command(ledger: Ledger, run: str, groups: Groups) -> None:
    groups.error = Crash()
    found = answers(ledger, [request(run)] * 3, [request(run)])
    assert {type(each) for each in found[:3]} <= {LedgerUnavailableError, Crash}
    assert firsts(found[3:]) == [1]
    assert sound(ledger)


async def asked_for(charges: CommitQueue, runner: CommandRunner, run: str) -> list[asyncio.Task[Any]]:
    """Three commands that wait."""
    asked = [asyncio.create_task(charges.authorize_steps(runner.call(), request(run))) for _ in range(3)]
    await asyncio.sleep(0)
    return asked


def test_cancelled_command_is_decided_and_holds_up_no_other(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    async def work(charges: CommitQueue) -> list[Any]:
        asked = await asked_for(charges, runner, run)
        asked[1].cancel()
        return [*await together(*asked), await charges.authorize_steps(runner.call(), request(run))]

    one, gone, three, later = within(work, ledger.database)
    assert isinstance(gone, asyncio.CancelledError)
    assert firsts([one, three, later]) == [1, 3, 4]
    assert sound(ledger)


def test_closed_queue_has_answered_every_command(run: str, runner: CommandRunner, groups: Groups) -> None:
    async def work(charges: CommitQueue) -> list[Any]:
        asked = [*await asked_for(charges, runner, run), *await asked_for(charges, runner, run)]
        await charges.close()
        return await together(*asked)

    assert firsts(within(work, runner.ledger.database)) == [1, 2, 3, 4, 5, 6]
    assert groups.sizes == [6]  # commands of the next loop turn join the first ones


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
def test_queue_waits_for_another_writer_in_a_thread(
    ledger: Ledger, run: str, runner: CommandRunner, replica: Database, *, elsewhere: bool
) -> None:
    """The loop goes on meanwhile: it is what lets the other writer end here."""
    with _writing(replica if elsewhere else ledger.database) as end:

        async def work(charges: CommitQueue) -> list[Any]:
            asked = await asked_for(charges, runner, run)
            for _ in range(20):
                await asyncio.sleep(0.001)
            waited = not any(task.done() for task in asked)
            end()
            return [waited, *await together(*asked)]

        waited, *found = within(work, ledger.database)
    assert waited or ledger.database.dialect == "postgresql"  # whose writers wait for rows only
    assert firsts(found) == [1, 2, 3]


def test_processes_share_the_last_of_a_budget(
    ledger: Ledger, run: str, runner: CommandRunner, replica: Database
) -> None:
    """Each has a database, a queue and a memory of its own; together they get what there is, and not one step more."""
    runs = [run, another(ledger)]
    left = runner.charged(request(run, (LOUD, 190))).steps_remaining
    assert 10 < left < 40

    def process(place: int, database: Database) -> list[Any]:
        keys = [[f"{place}-{round_}-{more}" for more in range(3)] for round_ in range(5)]
        rounds = ([request(run, key=f"{run}-{key}") for run in runs for key in each] for each in keys)
        return answers(replace(ledger, database=database), *rounds)

    with ThreadPoolExecutor(2) as pool:
        found = [each for part in pool.map(process, range(2), [ledger.database, replica]) for each in part]
    assert all(isinstance(each, StepResult) for each in found), found
    admitted = [each.decision for each in found if each.decision.admitted]
    assert (len(found), len(admitted)) == (60, left)
    assert len({(decision.run_id, decision.first_step) for decision in admitted}) == left
    assert sound(ledger)


@pytest.mark.both_databases
def test_threads_on_sibling_parts_never_get_past_the_whole(ledger: Ledger) -> None:
    """Each with a memory of its own, as processes have; each part may get what there is, and not one step more."""
    ledger.population(limit={"epsilon": 0.5, "delta": 1e-5}, **ATTESTED, max_partitions_per_unit=2)
    for name in ("north", "south", "east"):
        ledger.budget(name, limit={"epsilon": 4.0, "delta": 1e-5})
    runs = [another(ledger, budget=f"mimic/{name}") for name in ("north", "south", "east")]

    def train(run: str) -> int:
        runner = CommandRunner(ledger)
        return sum(runner.charged(request(run, (LOUD, 9))).admitted for _ in range(20))

    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(train, runs))
    first, second, _ = sorted(taken, reverse=True)
    alone = CommandRunner(ledger).charged(request(runs[taken.index(first)], (LOUD, 1)))
    assert not alone.admitted or alone.steps_remaining < 9
    assert 0 < first + second < 20
    assert verify(ledger.database).sound
