"""The commit queue: whoever comes while a group is written is in the next one, and everybody gets an answer."""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError, TimeoutError  # noqa: A004 - of its pool

from app.ledger.errors import InsufficientScopeError, LedgerUnavailableError, NotFoundError
from app.ledger.permissions import Role
from app.service.charging import commit_queue
from app.service.charging.commit_queue import CommitQueue
from app.service.charging.groups import commit_group
from app.service.charging.requests import StepResult
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.step_commands import (
    HUGE,
    LOUD,
    PATIENCE_SECONDS,
    QUIET,
    CommandRunner,
    another,
    opened,
    request,
    sound,
    together,
    within,
)
from tests.service.tampering import set_run, tampering


class Crash(BaseException):
    """What no ordinary handler catches."""


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The runs of every group that was written or tried."""
    seen: list[list[str]] = []

    def watched(db: Any, memory: Any, commands: Any, **more: Any) -> Any:  # noqa: ANN401 - passed through
        outcomes = commit_group(db, memory, commands, **more)
        seen.append([command.request.run_id for command in commands])
        return outcomes

    monkeypatch.setattr(commit_queue, "commit_group", watched)
    return seen


def test_simultaneous_requests_are_one_group(ledger: Ledger, groups: list[list[str]]) -> None:
    runs, runner = [opened(ledger), another(ledger), another(ledger)], CommandRunner(ledger)
    for run in runs:
        runner.charged(request(run))

    async def work(charges: CommitQueue) -> list[Any]:
        return await together(*[charges.authorize_steps(runner.call(), request(run)) for run in runs * 10])

    found = within(work, ledger.database)
    assert groups == [runs * 10]
    assert [answered.decision.first_step for answered in found] == [1 + place // 3 for place in range(30)]
    assert sound(ledger)


@pytest.mark.parametrize("bound", ["MOST_COMMANDS", "MOST_ITEMS"])
def test_group_is_bounded(ledger: Ledger, groups: list[list[str]], monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    monkeypatch.setattr(commit_queue, bound, 4)

    async def work(charges: CommitQueue) -> list[Any]:
        asked = [charges.authorize_steps(runner.call(), request(run, (LOUD, 1), (LOUD, 1))) for _ in range(10)]
        return await together(*asked)

    found = within(work, ledger.database)
    assert [answered.decision.first_step for answered in found] == list(range(1, 20, 2))
    assert [len(group) for group in groups] == ([4, 4, 2] if bound == "MOST_COMMANDS" else [2] * 5)


def test_missing_costs_are_computed_beside_the_queue(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)

    async def work(charges: CommitQueue) -> list[Any]:
        asked = [request(run, (QUIET, 1)), request(run, (HUGE, 1)), request(run, (LOUD, 10**6)), request("run_x")]
        return await together(*[charges.authorize_steps(runner.call(), each) for each in asked])

    admitted, hopeless, refused, nothing = within(work, ledger.database)
    assert admitted.decision.admitted
    assert not hopeless.decision.admitted
    offered = json.loads(refused.decision.refusal_details)["alternatives"]
    assert next(each["noise_multiplier"] for each in offered if each["type"] == "more_noise") > 60
    assert isinstance(nothing, NotFoundError)
    assert sound(ledger)


def test_full_queue_refuses_new_requests_and_serves_the_others(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    monkeypatch.setattr(commit_queue, "MOST_WAITING", 4)

    async def work(charges: CommitQueue) -> list[Any]:
        found = await together(*[charges.authorize_steps(runner.call(), request(run)) for _ in range(10)])
        return [*found, await charges.authorize_steps(runner.call(), request(run))]

    found = within(work, ledger.database)
    assert [isinstance(each, StepResult) for each in found] == [True] * 4 + [False] * 6 + [True]
    assert {type(each) for each in found[4:10]} == {LedgerUnavailableError}
    assert len(dump(ledger.database)["decisions"]) == 6


def test_poisonous_command_harms_no_other(ledger: Ledger) -> None:
    """The next decision of a run whose rows were tampered with has the place of an earlier one."""
    run, runner = opened(ledger), CommandRunner(ledger)
    sick = another(ledger)
    runner.group(request(run), request(sick))
    path = runner.path(sick)[-1].path
    with tampering(ledger.database) as tx:
        set_run(tx, path, decision_count=0)

    async def work(charges: CommitQueue) -> list[Any]:
        asked = [request(run), request(sick), request(run), request("run_x", (LOUD, 1)), request(run)]
        return await together(*[charges.authorize_steps(runner.call(), each) for each in asked])

    one, poison, two, nothing, three = within(work, ledger.database)
    assert [answered.decision.first_step for answered in (one, two, three)] == [1, 2, 3]
    assert isinstance(poison, IntegrityError)
    assert isinstance(nothing, NotFoundError)
    assert runner.path(run)[-1].spent == runner.path(sick)[-1].spent.times(4)
    assert runner.path(run)[0].spent == runner.path(sick)[-1].spent.times(5)


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, place: str = "before") -> list[int]:
    """Let the next group fail; returns the sizes of those that were tried."""
    tried: list[int] = []

    def failing(db: Any, memory: Any, commands: Any, **more: Any) -> Any:  # noqa: ANN401 - passed through
        tried.append(len(commands))
        if place == "after" or len(tried) > 1:
            outcomes = commit_group(db, memory, commands, **more)
        if len(tried) == 1:
            raise error
        return outcomes

    monkeypatch.setattr(commit_queue, "commit_group", failing)
    return tried


DOWN = OperationalError("COMMIT", {}, Exception("the disk is full"))


@pytest.mark.both_databases
@pytest.mark.parametrize("error", [DOWN, LedgerUnavailableError("In doubt."), TimeoutError("the pool is empty")])
@pytest.mark.parametrize("place", ["before", "after"])
def test_failing_database_is_not_asked_for_each_command(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    tried = _failing(monkeypatch, error, place)

    async def work(charges: CommitQueue) -> list[Any]:
        asked = [request(run, first=first) for first in (1, 2, 3)]
        failed = await together(*[charges.authorize_steps(runner.call(), each) for each in asked])
        return [*failed, *await together(*[charges.authorize_steps(runner.call(), each) for each in asked])]

    found = within(work, ledger.database)
    assert tried == [3, 3]
    assert found[:3] == [error] * 3
    assert [answered.decision.first_step for answered in found[3:]] == [1, 2, 3]
    assert [answered.replayed for answered in found[3:]] == [place == "after"] * 3
    assert sound(ledger)


def test_unforeseen_error_is_tried_once_more_for_each_command(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    tried = _failing(monkeypatch, AssertionError("a bug"))

    async def work(charges: CommitQueue) -> list[Any]:
        return await together(*[charges.authorize_steps(runner.call(), request(run)) for _ in range(3)])

    assert [answered.decision.first_step for answered in within(work, ledger.database)] == [1, 2, 3]
    assert tried == [3, 1, 1, 1]


def test_crash_of_the_writer_answers_every_command(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    _failing(monkeypatch, Crash())

    async def work(charges: CommitQueue) -> list[Any]:
        failed = await together(*[charges.authorize_steps(runner.call(), request(run)) for _ in range(3)])
        return [*failed, await charges.authorize_steps(runner.call(), request(run))]

    found = within(work, ledger.database)
    assert {type(each) for each in found[:3]} <= {LedgerUnavailableError, Crash}
    assert found[3].decision.first_step == 1
    assert sound(ledger)


def test_cancelled_command_is_decided_and_holds_up_no_other(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))

    async def work(charges: CommitQueue) -> list[Any]:
        asked = [asyncio.create_task(charges.authorize_steps(runner.call(), request(run))) for _ in range(3)]
        await asyncio.sleep(0)  # all of them wait now
        asked[1].cancel()
        return [*await together(*asked), await charges.authorize_steps(runner.call(), request(run))]

    one, gone, three, later = within(work, ledger.database)
    assert isinstance(gone, asyncio.CancelledError)
    assert [each.decision.first_step for each in (one, three, later)] == [1, 3, 4]
    assert sound(ledger)


def test_closed_queue_has_answered_every_command(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))

    async def main() -> list[Any]:
        charges = CommitQueue(ledger.database)
        asked = [asyncio.create_task(charges.authorize_steps(runner.call(), request(run))) for _ in range(5)]
        await asyncio.sleep(0)
        await charges.close()
        return await asyncio.wait_for(together(*asked), PATIENCE_SECONDS)

    assert [answered.decision.first_step for answered in asyncio.run(main())] == [1, 2, 3, 4, 5]


def test_role_without_permission_is_refused_before_the_queue(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)

    async def work(charges: CommitQueue) -> list[Any]:
        call = runner.call(role=Role.VIEWER)
        return await together(charges.authorize_steps(call, request(run)), charges.preview(call, request(run)))

    assert {type(each) for each in within(work, ledger.database)} == {InsufficientScopeError}
