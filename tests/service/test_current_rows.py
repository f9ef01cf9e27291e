"""Rows that a process remembers: changes and older states are noticed before the next decision."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event

from app.ledger.errors import AccountQuarantinedError, LedgerUnavailableError, RunStateConflictError
from app.persistence.database import Database
from app.persistence.sqlite import WriteLockBusyError
from app.persistence.tables import event_costs
from app.service import maintenance
from app.service.charging import close, groups
from app.service.charging.groups import preview
from app.service.charging.requests import StepRequest, StepResult
from app.service.maintenance import expire_reservations
from tests.api.trainer import LOUD as LOUD_IN_JSON
from tests.api.trainer import Trainer, moved
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.step_commands import QUIET, CommandRunner, another, opened, request, sound
from tests.service.tampering import restore, set_account, set_run, tampering


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


@pytest.mark.both_databases
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


@pytest.mark.both_databases
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


@pytest.mark.both_databases
@pytest.mark.parametrize("what", ELSEWHERE)
def test_change_by_another_process_holds_for_the_next_step(ledger: Ledger, another_process: Ledger, what: str) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
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


@pytest.mark.both_databases
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


@pytest.mark.both_databases
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


@pytest.mark.both_databases
@pytest.mark.parametrize("asked", [(), ((QUIET, 2),)], ids=["the default event", "another event"])
def test_prices_lost_by_a_restore_are_written_again(ledger: Ledger, asked: tuple[tuple[object, int], ...]) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    before = dump(ledger.database)
    step: StepRequest = request(run, *asked, first=0)  # type: ignore[arg-type]
    first = runner.charged(step)
    restore(ledger.database, before)
    assert runner.charged(step).steps_remaining == first.steps_remaining
    assert sound(ledger)
    assert CommandRunner(ledger).charged(request(run)).admitted  # another process can price what this one has charged
    assert sound(ledger)


def test_events_lost_by_a_restore_are_written_again_with_a_refusal(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    before = dump(ledger.database)
    assert runner.charged(request(run, (QUIET, 1))).admitted
    assert not runner.charged(request(run, (QUIET, 10**9))).admitted
    restore(ledger.database, before)
    assert not runner.charged(request(run, (QUIET, 10**9))).admitted
    assert sound(ledger)


def test_plan_used_before_a_restore_is_read_anew(ledger: Ledger) -> None:
    trainer = Trainer(ledger, opened(ledger))
    trainer.reserved((LOUD_IN_JSON, 5))
    before = dump(ledger.database)
    assert [trainer.steps(event=LOUD_IN_JSON).json()["steps_remaining"] for _ in range(3)] == [4, 3, 2]
    restore(ledger.database, before)
    assert trainer.steps(event=LOUD_IN_JSON).json()["steps_remaining"] == 4
    assert sound(ledger)


@pytest.mark.parametrize("how", ["abort", "complete"])
def test_plan_without_its_price_is_an_error_and_no_endless_loop(ledger: Ledger, how: str) -> None:
    trainer = Trainer(ledger, opened(ledger))
    trainer.reserved((LOUD_IN_JSON, 5))
    with tampering(ledger.database) as tx:
        tx.execute(delete(event_costs))
    body = {"steps_executed": 3} if how == "complete" else {}
    reply = ledger.post(f"/v1/runs/{trainer.run}/{how}", body)
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable"), reply.text
    assert "verify" in reply.json()["detail"]


def test_sweep_ends_other_plans_where_one_cannot_be_ended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened(ledger)
    ill, well = Trainer(ledger, another(ledger)), Trainer(ledger, another(ledger))
    for trainer, each in ((ill, LOUD_IN_JSON), (well, {"type": "gaussian", "noise_multiplier": 77.0})):
        trainer.reserved((each, 2), lease_seconds=60)

    real, first = close.close_reservation, ledger.get(f"/v1/runs/{ill.run}").json()["reservation"]

    def end(tx: Any, work: Any, before: Any, *more: Any) -> None:  # noqa: ANN401 - passed through
        if before.id == first:
            raise LookupError("a bug")
        real(tx, work, before, *more)

    now = moved(monkeypatch, seconds=61)
    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "close_reservation", end)
        assert expire_reservations(ledger.database, now) == 1
    assert first in caplog.text
    assert expire_reservations(ledger.database, now) == 1
    assert sound(ledger)


def test_page_of_plans_that_cannot_be_ended_holds_up_no_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(ledger)
    ill, well = Trainer(ledger, another(ledger)), Trainer(ledger, another(ledger))
    for trainer in (ill, well):
        trainer.reserved((LOUD_IN_JSON, 2), lease_seconds=60)
    own = ill.path()[-1]
    with tampering(ledger.database) as tx:
        set_account(tx, own.path, quarantine_reason="its balance is wrong")
    monkeypatch.setattr(maintenance, "PAGE", 1)
    now = moved(monkeypatch, seconds=61)
    assert [expire_reservations(ledger.database, now) for _ in range(2)] == [1, 0]
    assert well.read()["reservation"] is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_reserved_steps_under_a_quarantined_account_are_not_released(ledger: Ledger, place: int) -> None:
    trainer = Trainer(ledger, opened(ledger))
    trainer.reserved((LOUD_IN_JSON, 5))
    assert trainer.steps().status_code == 200
    doubtful = trainer.path()[place]
    with tampering(ledger.database) as tx:
        set_account(tx, doubtful.path, quarantine_reason="its balance is wrong")
    answer = trainer.steps()
    assert (answer.status_code, answer.json()["code"], answer.json()["account"]) == (
        409,
        "account_quarantined",
        doubtful.id,
    )
    with tampering(ledger.database) as tx:
        set_account(tx, doubtful.path, quarantine_reason=None)
    assert trainer.steps().json()["steps_remaining"] == 3


def test_account_without_its_balance_is_not_charged(ledger: Ledger) -> None:
    run = opened(ledger)
    before = dump(ledger.database)
    runner = CommandRunner(ledger)
    runner.charged(request(run))
    restore(ledger.database, before | {"balances": []})
    with pytest.raises(LedgerUnavailableError, match="balance of mimic"):
        CommandRunner(ledger).once(request(run))
