"""Decisions on steps and plans have no connection and execute no SQL."""

import pytest
from sqlalchemy import text

from app.ledger.errors import SequenceConflictError
from app.persistence.database import NO_TENANT
from app.service.charging.requests import StepResult
from tests.conftest import Ledger
from tests.pure_decisions import CALLED_IN, without_sql
from tests.service.step_commands import LOUD, QUIET, CommandRunner, opened, request, sound


def test_every_decision_is_watched() -> None:
    decisions = [vars(module)[name] for module, name in CALLED_IN]
    assert all(each.__globals__["__name__"] == "tests.pure_decisions" for each in decisions)


def test_statement_within_a_decision_is_noticed(ledger: Ledger) -> None:
    def ask() -> None:
        with ledger.database.read(NO_TENANT) as tx:
            tx.execute(text("SELECT 1"))

    with pytest.raises(AssertionError, match="ask executes"):
        without_sql(ask)()
    ask()


def test_earlier_steps_are_loaded_for_the_whole_group(ledger: Ledger) -> None:
    """Of runs and attempts that go on, and beside steps that only this group takes."""
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.group(request(run, (LOUD, 2), first=0), request(run, (QUIET, 1), first=2))
    again, other, new, newer, wrong = runner.group(
        *(request(run, (LOUD, 2), first=0), request(run, (LOUD, 1), first=1), request(run, (LOUD, 3), first=3)),
        *(request(run, (LOUD, 3), first=3), request(run, (QUIET, 2), first=2)),
    )
    assert isinstance(again, StepResult)
    assert isinstance(new, StepResult)
    assert isinstance(newer, StepResult)
    assert (again.replayed, again.decision.position) == (True, 0)
    assert (new.replayed, newer.replayed, newer.decision) == (False, True, new.decision)
    assert isinstance(other, SequenceConflictError)
    assert isinstance(wrong, SequenceConflictError)
    assert "steps 2" not in wrong.detail
    assert sound(ledger)
