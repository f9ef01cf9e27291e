"""Rows that a process remembers as current: whoever else writes to them is noticed before the next decision."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event

from app.ledger.errors import AccountQuarantinedError, RunStateConflictError
from app.persistence.database import Database
from app.persistence.sqlite import WriteLockBusyError
from app.service.charging import groups
from app.service.charging.groups import preview
from app.service.charging.requests import StepResult
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.step_commands import CommandRunner, another, opened, request, sound
from tests.service.tampering import restore, set_account, set_run, tampering

pytestmark = pytest.mark.both_databases


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


@pytest.fixture
def another_process(ledger: Ledger) -> Iterator[Ledger]:
    """The same ledger by connections of its own."""
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    database = Database(url)
    yield Ledger(ledger.http, database, ledger.keys)
    database.dispose()


def test_file_is_read_again_only_if_another_has_written(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
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


def test_processes_in_turns_see_each_others_steps(ledger: Ledger, another_process: Ledger) -> None:
    run, ours, theirs = opened(ledger), CommandRunner(ledger), CommandRunner(another_process)
    left = [runner.charged(request(run)).steps_remaining for runner in (ours, ours, theirs, ours, theirs, theirs, ours)]
    assert left == list(range(left[0], left[0] - 7, -1))
    assert sound(ledger)


ELSEWHERE: dict[str, Callable[[Connection, str], None]] = {
    "a lowered limit": lambda tx, _: set_account(tx, "mimic", epsilon_limit=0.001, version=99),
    "a quarantine": lambda tx, _: set_account(tx, "mimic", quarantine_reason="its balance is unproven", version=99),
    "a pause": lambda tx, path: set_run(tx, path, status="paused"),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_change_by_another_process_holds_for_the_next_step(ledger: Ledger, another_process: Ledger, what: str) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    assert runner.charged(request(run)).admitted
    with tampering(another_process.database) as tx:
        ELSEWHERE[what](tx, runner.path(run)[-1].path)
    [outcome] = runner.once(request(run))
    if what == "a lowered limit":
        assert isinstance(outcome, StepResult)
        assert not outcome.decision.admitted
    else:
        assert isinstance(outcome, AccountQuarantinedError if what == "a quarantine" else RunStateConflictError)


def test_older_state_is_noticed_between_any_two_groups(ledger: Ledger, another_process: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    before = dump(another_process.database)
    left = runner.charged(request(run)).steps_remaining
    runner.charged(request(run))
    restore(another_process.database, before)
    assert runner.charged(request(run)).steps_remaining == left
    assert sound(ledger)


def test_preview_sees_charges_of_another_process(ledger: Ledger, another_process: Ledger) -> None:
    run, ours, theirs = opened(ledger), CommandRunner(ledger), CommandRunner(another_process)
    ours.charged(request(run))
    left = theirs.charged(request(run)).steps_remaining
    assert left is not None
    shown = preview(ledger.database, ours.memory, ours.command(request(run)))
    assert shown.decision.steps_remaining == left - 1  # type: ignore[union-attr]


def test_everything_is_read_again_after_a_failed_group(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    left = runner.charged(request(run)).steps_remaining
    assert left is not None

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(groups, "save", fail)
        with pytest.raises(OSError, match="disk"):
            runner.once(request(run))
    assert runner.memory.revision is None  # by itself, although the connection is replaced, too
    reads = Reads(ledger.database)
    again = reads.during(lambda: runner.once(request(run)))
    assert (again > 0) is (ledger.database.dialect == "sqlite")  # PostgreSQL compares the versions of the rows
    assert runner.charged(request(run)).steps_remaining == left - 2
    assert sound(ledger)


def test_new_connection_proves_no_row_current(ledger: Ledger, another_process: Ledger) -> None:
    """Its data versions may be those of the one before, whatever others have written in between."""
    run, ours, theirs = opened(ledger), CommandRunner(ledger), CommandRunner(another_process)
    left = ours.charged(request(run)).steps_remaining
    assert left is not None
    ours.charged(request(run))
    with another_process.database.write(ours.organisation_id):
        if ledger.database.dialect == "sqlite":
            with pytest.raises(WriteLockBusyError), ledger.database.write(ours.organisation_id, wait=False):
                raise AssertionError("two write at once")
    theirs.charged(request(run))
    reads = Reads(ledger.database)
    assert reads.during(lambda: ours.once(request(run))) > 0
    assert ours.charged(request(run)).steps_remaining == left - 4
