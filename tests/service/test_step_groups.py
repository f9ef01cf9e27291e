"""Groups: commands of one transaction see each other, do not harm each other, and use nothing unproven."""

import json
from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from app.accounting.events import Gaussian, event_to_dict
from app.ledger import errors
from app.ledger.accounts.account_records import MOST_EVENTS
from app.ledger.errors import NotFoundError, SequenceConflictError, SequenceGapError
from app.persistence.database import ALL_TENANTS, NO_TENANT
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.dp_events import CostCache
from app.persistence.tables import accounts, balances
from app.service.charging.ledger_state import LedgerState
from app.service.charging.requests import StepResult
from app.service.costing import CostNotReadyError
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.pure_decisions import DECISIONS
from tests.service.step_commands import HUGE, LOUD, QUIET, CommandRunner, another, organisation, request, sound
from tests.service.tampering import account, set_account, set_balance, set_run, tampering, write_account

LIMIT = {"epsilon": 1000.0, "delta": 1e-5}


def decisions(outcomes: list[Any]) -> list[Any]:
    assert all(isinstance(outcome, StepResult) for outcome in outcomes), outcomes
    return [outcome.decision for outcome in outcomes]


def test_steps_of_one_run_follow_one_another(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    found = decisions(runner.group(*[request(run, (LOUD, count)) for count in (1, 2, 3)], request(run, first=6)))
    places = [(each.position, each.first_step, each.next_step) for each in found]
    assert places == [(0, 0, 1), (1, 1, 3), (2, 3, 6), (3, 6, 7)]
    assert [each.steps_remaining for each in found] == [found[0].steps_remaining - more for more in (0, 2, 5, 6)]
    assert sound(ledger)


def test_repeated_key_in_a_group_gets_the_first_decision(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    first, again, reworded, elsewhere = runner.group(
        *(request(run, key="k"), request(run, key="k")),
        *(request(run, (LOUD, 2), key="k"), request(another(ledger), key="k")),
    )
    assert isinstance(first, StepResult)
    assert again == StepResult(first.decision, replayed=True)
    assert {type(reworded), type(elsewhere)} == {errors.IdempotencyKeyReusedError}
    [later] = runner.once(request(run, key="k"))
    assert isinstance(later, StepResult)
    # Read again, the decision is without its steps, which whoever repeats a request knows.
    read = later.decision._replace(steps=first.decision.steps, entry_hash=b"")
    assert (read, later.replayed) == (first.decision, True)
    refused: list[Any] = runner.group(*[request(run, (LOUD, 10**6), key="r", first=1)] * 3)
    assert [(each.decision.position, each.decision.admitted) for each in refused] == [(1, False)] * 3
    assert [each.replayed for each in refused] == [False, True, True]
    assert sound(ledger)


def test_repeated_step_number_in_a_group_gets_one_decision(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    keyed = [request(run, (LOUD, 4), first=0, key=key) for key in ("k-1", None, "k-2")]
    others = request(run, (LOUD, 3), first=0), request(run, first=5)
    first, again, other_key, other, gap = runner.group(*keyed, *others)
    assert isinstance(first, StepResult)
    assert again == other_key == StepResult(first.decision, replayed=True)
    assert isinstance(other, SequenceConflictError)
    assert isinstance(gap, SequenceGapError)
    assert (other.members["next_step"], gap.members["expected_step"]) == (4, 4)
    assert sound(ledger)


def test_earlier_steps_are_loaded_for_the_whole_group(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    """Beside steps that only this group takes."""
    runner.group(request(run, (LOUD, 2), first=0), request(run, (QUIET, 1), first=2))
    again, other, new, newer, wrong = runner.group(
        *(request(run, (LOUD, 2), first=0), request(run, (LOUD, 1), first=1), request(run, (LOUD, 3), first=3)),
        *(request(run, (LOUD, 3), first=3), request(run, (QUIET, 2), first=2)),
    )
    assert isinstance(again, StepResult)
    assert isinstance(new, StepResult)
    assert (again.replayed, again.decision.position, new.replayed) == (True, 0, False)
    assert newer == StepResult(new.decision, replayed=True)
    assert isinstance(other, SequenceConflictError)
    assert isinstance(wrong, SequenceConflictError)
    assert "steps 2" not in wrong.detail
    assert sound(ledger)


def test_failed_command_leaves_no_trace_and_harms_no_other(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    other, silent = another(ledger), another(ledger, event=None)
    runner.charged(request(run))
    bad = [request("run_nothing", (LOUD, 1)), request(run, first=99), request(run, attempt=2), request(silent)]
    bad.append(request(run, (LOUD, 2), first=0))
    before = dump(ledger.database)
    alone = [runner.once(each)[0] for each in bad]
    kinds = [NotFoundError, SequenceGapError, errors.AttemptSupersededError, None, SequenceConflictError]
    assert all(kind is None or type(error) is kind for kind, error in zip(kinds, alone, strict=True))
    assert not any(isinstance(error, StepResult) for error in alone)
    assert dump(ledger.database) == before
    outcomes = runner.group(request(run), bad[0], request(other), *bad[1:4], request(run, first=2))
    assert [isinstance(outcome, StepResult) for outcome in outcomes] == [True, False, True, False, False, False, True]
    assert [len(rows) for rows in (before["decisions"], dump(ledger.database)["decisions"])] == [1, 4]
    assert sound(ledger)


def test_last_steps_of_a_budget_go_to_the_first_commands(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    other = another(ledger)
    left = runner.charged(request(run)).steps_remaining
    asked = [request(each, (LOUD, left - 3), on_exceed="truncate") for each in (run, other, run)]
    found = decisions(runner.group(request(other), *asked, request(other, (LOUD, 2))))
    assert [each.admitted for each in found] == [True, True, True, False, False]
    assert [each.step_count for each in found[:3]] == [1, left - 3, 2]
    assert found[2].steps_remaining == 0
    assert sound(ledger)


def test_planned_steps_are_taken_from_their_plan_beside_steps_of_others(
    ledger: Ledger, run: str, runner: CommandRunner
) -> None:
    """The others' steps lock the whole path, so that counting could charge the budget, too."""
    planned = another(ledger, reserve=[{"event": event_to_dict(LOUD), "count": 5}])
    for left in (4, 3):
        beside, taken = decisions(runner.group(request(run), request(planned)))
        assert (beside.reservation_id, taken.steps_remaining) == (None, left)
        assert taken.reservation_id is not None
    assert sound(ledger)


def test_report_in_a_group_freezes_its_run_for_the_next_one(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    asked = (request(run, (LOUD, 10**4), mode="report"), request(run), request(another(ledger)))
    reported, frozen, refused = runner.group(*asked)
    assert isinstance(frozen, errors.RunStateConflictError)
    assert [each.admitted for each in decisions([reported, refused])] == [True, False]
    assert sound(ledger)


def test_new_price_is_stored_once_for_a_group(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    other = another(ledger)
    asked = [request(run, (QUIET, 1)), request(other, (QUIET, 2), (LOUD, 1)), request(run, (HUGE, 1)), request(run)]
    assert [each.admitted for each in decisions(runner.group(*asked))] == [True, True, False, True]
    rows = dump(ledger.database)
    assert (len(rows["event_costs"]), len(rows["dp_events"])) == (2, 3)  # what was refused has no price
    command = runner.command(request(other, (Gaussian(77.0), 1)))
    lacking, done = runner.once(command, request(run))
    assert isinstance(lacking, CostNotReadyError)
    assert isinstance(done, StepResult)  # which did not wait for the other's price
    lacking.compute(command.context.organisation_id)
    assert decisions(runner.once(command))[0].admitted
    assert sound(ledger)


@pytest.mark.parametrize("size", [1, 2])
def test_evicted_rows_are_read_again(ledger: Ledger, run: str, size: int) -> None:
    """A memory so small that prices, paths and accounts go between two groups, or within one."""
    runs, events = [run, another(ledger), another(ledger)], [LOUD, QUIET, Gaussian(100.0)]
    runner = CommandRunner(ledger, memory=LedgerState(LruCache(size), LruCache(size), CostCache(size)))
    asked = [request(each, (event, 1)) for each in runs for event in events]
    decisions(runner.group(*asked))
    before = dump(ledger.database)
    for _ in range(2):
        decisions(runner.once(*asked))
    assert "event_costs" not in changed(before, dump(ledger.database))
    assert runner.path(run)[0].spent == runner.path(run)[1].spent
    assert sound(ledger)


ALL, TEAM, DAY, INSTANT = "mimic", "mimic/icu-team", timedelta(days=-1), timedelta(microseconds=1)
BEHIND: list[tuple[str, str, int | timedelta]] = [
    (ALL, "version", 1),
    (TEAM, "version", -1),
    (ALL, "updated_at", INSTANT),
    (TEAM, "updated_at", DAY),
]


@pytest.mark.both_databases
@pytest.mark.parametrize(("path", "column", "more"), BEHIND)
def test_cached_account_of_another_version_or_time_is_read_again(
    ledger: Ledger, run: str, runner: CommandRunner, path: str, column: str, more: int | timedelta
) -> None:
    """As after a backup was restored: the row is another one, and the next charge builds on it."""
    one = runner.charged(request(run)) and runner.path(run)[0].spent
    with tampering(ledger.database) as tx:
        set_balance(tx, path, spent_curve=one.times(9).to_bytes())
        set_account(tx, path, **{column: getattr(account(tx, path), column) + more})
    runner.charged(request(run))
    spent = {each.path: each.spent for each in runner.path(run)}
    assert spent.pop(path) == one.times(10)
    assert set(spent.values()) == {one.times(2)}


def test_quarantined_account_refuses_every_charge(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    ledger.budget("other")
    other = another(ledger, budget="mimic/other")
    runner.group(request(run, key="k"), request(other))
    for path in ("mimic/icu-team", "mimic"):
        write_account(ledger.database, path, quarantine_reason="its balance is wrong")
        before = dump(ledger.database)
        outcomes = runner.group(request(run), request(other), request(run, mode="report"), request(run, key="k"))
        stopped = [isinstance(outcome, errors.AccountQuarantinedError) for outcome in outcomes]
        assert stopped == [True, path == "mimic", True, False]
        assert (changed(before, dump(ledger.database)) == set()) == (path == "mimic")
        write_account(ledger.database, path, quarantine_reason=None)
        assert decisions(runner.group(request(run), request(other)))[1].admitted
    assert sound(ledger)


@pytest.mark.both_databases
def test_failed_group_changes_nothing_and_is_not_cached(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    """A run whose rows were tampered with: its next decision has the place of an earlier one."""
    other = another(ledger)
    decisions(runner.group(request(run), request(other)))
    path = runner.path(run)[-1].path
    with tampering(ledger.database) as tx:
        set_run(tx, path, decision_count=0)
        set_account(tx, path, version=99)
    before, remembered = dump(ledger.database), runner.path(other)
    with pytest.raises(IntegrityError):  # of a new event: PostgreSQL would commit repetitions by themselves
        runner.group(request(other, (QUIET, 1)), request(run, (QUIET, 1)))
    assert dump(ledger.database) == before
    kept = runner.memory.accounts.get_many((runner.organisation_id, each.id) for each in remembered)
    assert [counted.copy().settled().account for counted in kept.values()] == remembered
    assert decisions(runner.group(request(other), request(other, (QUIET, 1))))[1].next_step == 3
    assert runner.path(other)[0].spent == runner.path(other)[-1].spent + runner.path(run)[-1].spent


@pytest.mark.both_databases
def test_organisations_in_one_group_share_nothing(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    there = CommandRunner(ledger, organisation(ledger, "clinic"), runner.memory)
    commands = [each.command(request(run, key="k")) for each in (runner, there)]
    runner._prepare(commands[0])
    mine, theirs = runner.once(*commands)
    assert (type(mine), type(theirs)) == (StepResult, NotFoundError)
    assert sound(ledger)


def written(ledger: Ledger, run: str) -> tuple[dict[str, list[int]], bool]:
    """What is counted since the run's curve was written, and whether it ever was."""
    both = select(accounts.c.uncompacted_charges, balances.c.spent_curve).where(accounts.c.id == balances.c.account_id)
    with ledger.database.read(ALL_TENANTS) as tx:
        since, spent = tx.execute(both.where(accounts.c.id == run)).one()
    return json.loads(since), bool(spent)


def test_charges_of_few_events_are_counted_and_of_many_written_whole(ledger: Ledger, runner: CommandRunner) -> None:
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    run = ledger.run()
    for count in (1, 2, 3):
        runner.charged(request(run, (LOUD, count), (QUIET, 1)))
    since, whole = written(ledger, run)
    assert (sorted(map(tuple, since.values())), whole) == ([(3, 0), (6, 0)], False)
    decaying = ledger.run(name="decaying")
    for step in range(2 * (MOST_EVENTS + 1)):
        runner.charged(request(decaying, (Gaussian(60.0 + step), 1 + step % 3)))
        since, whole = written(ledger, decaying)
        assert (len(since), whole) == ((step + 1) % (MOST_EVENTS + 1), step >= MOST_EVENTS)
    for count in (MOST_EVENTS, MOST_EVENTS + 1):
        run = ledger.run(name=f"of-{count}")
        runner.charged(request(run, *[(Gaussian(60.0 + place), 2) for place in range(count)]))
        since, whole = written(ledger, run)
        assert (len(since), whole) == ((count, False) if count <= MOST_EVENTS else (0, True))
    assert sound(ledger)  # byte for byte the sum of all charges


class Asking:
    """An argument of a decision that executes SQL once it is used."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, _: str) -> object:
        with self._ledger.database.read(NO_TENANT) as tx:
            return tx.execute(text("SELECT 1"))


@pytest.mark.parametrize("decision", DECISIONS)
def test_statement_within_a_decision_fails(ledger: Ledger, decision: Callable[..., object]) -> None:
    arguments = [Asking(ledger) for _ in signature(decision).parameters]
    with pytest.raises(AssertionError, match=f"{decision.__name__} executes"):
        decision(*arguments)
