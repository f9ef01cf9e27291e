"""Rows that a process remembers: changes and older states are noticed before the next decision."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event, insert

from app.accounting.events import Laplace
from app.ledger.errors import AccountQuarantinedError, LedgerUnavailableError, RunStateConflictError
from app.persistence.database import Database
from app.persistence.repositories import balances
from app.persistence.sqlite import WriteLockBusyError
from app.persistence.tables import event_costs, metadata
from app.service.charging.requests import StepResult
from tests.api.trainer import LOUD as LOUD_IN_JSON
from tests.api.trainer import Trainer, is_refused
from tests.conftest import Ledger
from tests.persistence.dump import Dump, dump
from tests.service.step_commands import QUIET, CommandRunner, another, request, sound
from tests.service.tampering import set_account, set_run, tampering, write_account


class Reads:
    """The SELECT statements of a database's transactions."""

    def __init__(self, database: Database) -> None:
        self.seen: list[str] = []
        event.listen(database.engine, "before_cursor_execute", self._see)

    def _see(self, *arguments: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
        if arguments[2].startswith("SELECT"):
            self.seen.append(arguments[2])

    def during(self, work: Callable[[], object]) -> int:
        self.seen.clear()
        work()
        return len(self.seen)


def restore(database: Database, before: Dump) -> None:
    """Put every row in the place of what it was, as a backup does behind the back of a process that lives on."""
    with tampering(database) as tx:
        for table in metadata.sorted_tables:
            tx.execute(delete(table))
            rows = [dict(zip(table.c.keys(), row, strict=True)) for row in before[table.name]]
            if rows:
                tx.execute(insert(table), rows)


@pytest.fixture
def another_process(ledger: Ledger, replica: Database) -> Ledger:
    """The same ledger by connections of its own."""
    return replace(ledger, database=replica)


@pytest.mark.both_databases
def test_file_is_read_again_only_if_another_has_written(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    runner.charged(request(run))
    reads = Reads(ledger.database)
    usual = reads.during(lambda: runner.once(request(run)))
    assert usual == 0
    other = another(ledger)
    again = reads.during(lambda: runner.once(request(run)))
    assert again or ledger.database.dialect == "postgresql"  # which compares the versions of the rows
    assert reads.during(lambda: runner.once(request(run))) == usual
    assert reads.during(lambda: runner.once(request(run), request(other))) > usual
    assert reads.during(lambda: runner.once(request(run), request(other))) == usual
    assert sound(ledger)


@pytest.mark.both_databases
def test_processes_in_turns_see_each_other(
    ledger: Ledger, run: str, runner: CommandRunner, another_process: Ledger
) -> None:
    ours, theirs = runner, CommandRunner(another_process)
    left = [runner.charged(request(run)).steps_remaining for runner in (ours, ours, theirs, ours, theirs, theirs, ours)]
    assert left == list(range(left[0], left[0] - 7, -1))
    assert sound(ledger)


def pause(tx: Connection, path: str) -> None:
    set_run(tx, path, status="paused")
    set_account(tx, path, version=99)


ELSEWHERE: dict[str, Callable[[Connection, str], None]] = {
    "a lowered limit": lambda tx, _: set_account(tx, "mimic", limit_value=0.001, version=99),
    "a quarantine": lambda tx, _: set_account(tx, "mimic", quarantine_reason="its balance is unproven", version=99),
    "a pause": pause,
}


@pytest.mark.both_databases
@pytest.mark.parametrize("what", ELSEWHERE)
def test_change_by_another_process_holds_for_the_next_step(
    run: str, runner: CommandRunner, another_process: Ledger, what: str
) -> None:
    assert runner.charged(request(run)).admitted
    path = runner.path(run)[-1].path
    with tampering(another_process.database) as tx:
        ELSEWHERE[what](tx, path)
    [outcome] = runner.group(request(run)) if what == "a lowered limit" else runner.once(request(run))
    if what == "a lowered limit":
        assert isinstance(outcome, StepResult)
        assert not outcome.decision.admitted
    else:
        assert isinstance(outcome, AccountQuarantinedError if what == "a quarantine" else RunStateConflictError)


@pytest.mark.both_databases
def test_everything_is_read_again_after_a_failed_group(
    ledger: Ledger, run: str, runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = runner.charged(request(run)).steps_remaining

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(balances, "save", fail)
        with pytest.raises(OSError, match="disk"):
            runner.once(request(run))
    assert runner.memory.revision is None  # by itself, although the connection is replaced, too
    reads = Reads(ledger.database)
    again = reads.during(lambda: runner.once(request(run)))
    assert again > 0
    assert runner.charged(request(run)).steps_remaining == left - 2
    assert sound(ledger)


def test_steps_of_a_plan_use_it_after_a_step_beside_it(trainer: Trainer, runner: CommandRunner) -> None:
    plan = trainer.reserved((LOUD_IN_JSON, 5))
    assert runner.charged(request(trainer.run, (QUIET, 1))).reservation_id is None
    assert [runner.charged(request(trainer.run)).reservation_id for _ in range(2)] == [plan] * 2


def test_rest_of_a_plan_is_held_at_its_stored_prices(trainer: Trainer, runner: CommandRunner) -> None:
    """Also of events that the steps do not name, at orders where subtraction does not tell what is left."""
    laplace = {"type": "laplace", "noise_multiplier": 200.0}
    trainer.reserved((LOUD_IN_JSON, 5), (laplace, 3))
    [outcome] = runner.once(request(trainer.run, (Laplace(200.0), 1)))
    assert isinstance(outcome, StepResult)
    assert trainer.path()[-1].held == trainer.price((LOUD_IN_JSON, 5), (laplace, 2))


@pytest.mark.both_databases
def test_new_connection_proves_nothing(
    ledger: Ledger, run: str, runner: CommandRunner, another_process: Ledger
) -> None:
    """Its data versions may be those of the one before, whatever others have written in between."""
    ours, theirs = runner, CommandRunner(another_process)
    left = ours.charged(request(run)).steps_remaining
    ours.charged(request(run))
    with another_process.database.write(ours.organisation_id):
        if ledger.database.dialect == "sqlite":
            with pytest.raises(WriteLockBusyError), ledger.database.write(ours.organisation_id, wait=False):
                raise AssertionError("two write at once")
    theirs.charged(request(run))
    reads = Reads(ledger.database)
    assert reads.during(lambda: ours.once(request(run))) > 0
    assert ours.charged(request(run)).steps_remaining == left - 4


@pytest.mark.both_databases
@pytest.mark.parametrize("asked", [(), ((QUIET, 2),)], ids=["the default event", "another event"])
def test_prices_lost_by_a_restore_are_written_again(
    ledger: Ledger, run: str, runner: CommandRunner, replica: Database, asked: tuple[tuple[Any, int], ...]
) -> None:
    before = dump(ledger.database)
    step = request(run, *asked, first=0)
    first = runner.charged(step)
    assert not runner.charged(request(run, (QUIET, 10**9))).admitted
    restore(replica, before)
    assert runner.charged(step).steps_remaining == first.steps_remaining
    assert sound(ledger)
    assert CommandRunner(ledger).charged(request(run)).admitted  # another process can price what this one has charged
    restore(replica, before)
    assert not runner.charged(request(run, (QUIET, 10**9))).admitted  # the event of a refusal is written, too
    assert sound(ledger)


def test_plan_used_before_a_restore_is_read_anew(trainer: Trainer) -> None:
    ledger, _ = trainer.ledger, trainer.reserved((LOUD_IN_JSON, 5))
    before = dump(ledger.database)
    assert [trainer.steps(event=LOUD_IN_JSON).json()["steps_remaining"] for _ in range(3)] == [4, 3, 2]
    restore(ledger.database, before)
    assert trainer.steps(event=LOUD_IN_JSON).json()["steps_remaining"] == 4
    assert sound(ledger)


def test_plan_without_its_price_is_an_error_and_no_endless_loop(trainer: Trainer) -> None:
    trainer.reserved((LOUD_IN_JSON, 5))
    with tampering(trainer.ledger.database) as tx:
        tx.execute(delete(event_costs))
    for how, body in (("abort", {}), ("complete", {"steps_executed": 3})):
        assert "verify" in is_refused(trainer.act(how, body), 503, "ledger_unavailable")["detail"]


def test_reserved_steps_under_a_quarantined_account_are_not_released(trainer: Trainer) -> None:
    trainer.reserved((LOUD_IN_JSON, 5))
    assert trainer.steps().status_code == 200
    for place, doubtful in enumerate(trainer.path()):
        write_account(trainer.ledger.database, doubtful.path, quarantine_reason="its balance is wrong")
        assert is_refused(trainer.steps(), 409, "account_quarantined")["account"] == doubtful.id
        write_account(trainer.ledger.database, doubtful.path, quarantine_reason=None)
        assert trainer.steps().json()["steps_remaining"] == 3 - place


def test_account_without_its_balance_is_not_charged(ledger: Ledger, run: str, runner: CommandRunner) -> None:
    before = dump(ledger.database)
    runner.charged(request(run))
    restore(ledger.database, before | {"balances": []})
    with pytest.raises(LedgerUnavailableError, match="balance of mimic"):
        CommandRunner(ledger).once(request(run))
