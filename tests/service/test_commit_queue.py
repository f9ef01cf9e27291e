"""The commit queue: commands that come while a group is written are in the next one, and each gets an answer."""

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
from app.service.charging.requests import StepRequest, StepResult
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
        failing = self.error is not None and len(self.runs) == 1
        outcomes = commit_group(db, memory, commands, **more) if self.written_first or not failing else None
        if failing and self.error is not None:
            raise self.error
        return outcomes


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    made = Groups()
    monkeypatch.setattr(commit_queue, "commit_group", made.commit)
    return made


@pytest.fixture
def run(ledger: Ledger) -> str:
    """A run with one step."""
    made = opened(ledger)
    CommandRunner(ledger).charged(request(made))
    return made


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


def test_simultaneous_requests_are_one_group(ledger: Ledger, run: str, groups: Groups) -> None:
    runs = [run, another(ledger), another(ledger)]
    CommandRunner(ledger).group(*map(request, runs[1:]))
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


def test_missing_costs_are_computed_beside_the_queue(ledger: Ledger) -> None:
    run = opened(ledger)
    asked = [request(run, (QUIET, 1)), request(run, (HUGE, 1)), request(run, (LOUD, 10**6)), request("run_x")]
    admitted, hopeless, refused, nothing = answers(ledger, asked)
    assert (admitted.decision.admitted, hopeless.decision.admitted) == (True, False)
    offered = json.loads(refused.decision.refusal_details)["alternatives"]
    assert next(each["noise_multiplier"] for each in offered if each["type"] == "more_noise") > 60
    assert isinstance(nothing, NotFoundError)
    assert sound(ledger)


def test_full_queue_refuses_new_requests_and_serves_the_others(
    ledger: Ledger, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_queue, "MOST_WAITING", 4)
    found = answers(ledger, [request(run)] * 10, [request(run)])
    assert [isinstance(each, StepResult) for each in found] == [True] * 4 + [False] * 6 + [True]
    assert {type(each) for each in found[4:10]} == {LedgerUnavailableError}
    assert len(dump(ledger.database)["decisions"]) == 6
    monkeypatch.setattr(commit_queue, "MOST_WAITING", 0)
    reply = ledger.post(f"/v1/runs/{run}/steps", {})
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
    assert int(reply.headers["retry-after"]) >= 1


def test_poisonous_command_harms_no_other(ledger: Ledger, run: str) -> None:
    """The next decision of a run whose rows were tampered with has the place of an earlier one."""
    sick, runner = another(ledger), CommandRunner(ledger)
    runner.charged(request(sick))
    path = runner.path(sick)[-1].path
    with tampering(ledger.database) as tx:
        set_run(tx, path, decision_count=0)
    one, poison, two, nothing, three = answers(ledger, [request(each) for each in (run, sick, run, "run_x", run)])
    assert firsts([one, two, three]) == [1, 2, 3]
    assert (type(poison), type(nothing)) == (IntegrityError, NotFoundError)
    assert runner.path(run)[-1].spent == runner.path(sick)[-1].spent.times(4)
    assert runner.path(run)[0].spent == runner.path(sick)[-1].spent.times(5)


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


def test_cancelled_command_is_decided_and_holds_up_no_other(ledger: Ledger, run: str) -> None:
    runner = CommandRunner(ledger)

    async def work(charges: CommitQueue) -> list[Any]:
        asked = [asyncio.create_task(charges.authorize_steps(runner.call(), request(run))) for _ in range(3)]
        await asyncio.sleep(0)  # all of them wait now
        asked[1].cancel()
        return [*await together(*asked), await charges.authorize_steps(runner.call(), request(run))]

    one, gone, three, later = within(work, ledger.database)
    assert isinstance(gone, asyncio.CancelledError)
    assert firsts([one, three, later]) == [1, 3, 4]
    assert sound(ledger)


def test_closed_queue_has_answered_every_command(ledger: Ledger, run: str) -> None:
    runner = CommandRunner(ledger)

    async def main() -> list[Any]:
        charges = CommitQueue(ledger.database)
        asked = [asyncio.create_task(charges.authorize_steps(runner.call(), request(run))) for _ in range(5)]
        await asyncio.sleep(0)
        await charges.close()
        return await asyncio.wait_for(together(*asked), PATIENCE_SECONDS)

    assert firsts(asyncio.run(main())) == [1, 2, 3, 4, 5]


def test_role_without_permission_is_refused_before_the_queue(ledger: Ledger) -> None:
    run, call = opened(ledger), CommandRunner(ledger).call(role=Role.VIEWER)

    async def work(charges: CommitQueue) -> list[Any]:
        return await together(charges.authorize_steps(call, request(run)), charges.preview(call, request(run)))

    assert {type(each) for each in within(work, ledger.database)} == {InsufficientScopeError}
