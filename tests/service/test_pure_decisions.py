"""Decisions on steps and plans have no connection and execute no SQL."""

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from app.ledger.errors import SequenceConflictError
from app.persistence.database import NO_TENANT
from app.service.charging import groups
from app.service.charging.requests import StepCommand, StepResult
from app.service.charging.unit_of_work import UnitOfWork
from tests.conftest import Ledger
from tests.pure_decisions import DECISIONS
from tests.service.step_commands import LOUD, QUIET, CommandRunner, opened, request, sound


class _Asking:
    """An argument of a decision that executes SQL once it is used."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, _: str) -> object:
        with self._ledger.database.read(NO_TENANT) as tx:
            return tx.execute(text("SELECT 1"))


@pytest.mark.parametrize("decision", DECISIONS)
def test_statement_within_a_decision_fails(ledger: Ledger, decision: Callable[..., object]) -> None:
    arguments = [_Asking(ledger) for _ in signature(decision).parameters]
    with pytest.raises(AssertionError, match=f"{decision.__name__} executes"):
        decision(*arguments)


def test_a_unit_of_work_has_no_connection(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(ledger)
    seen: list[Any] = []

    def look(work: UnitOfWork, command: StepCommand) -> StepResult:
        seen.extend(getattr(work, each.name) for each in fields(work))
        return decide(work, command)

    decide: Callable[[UnitOfWork, StepCommand], StepResult] = vars(groups)["decide"]
    monkeypatch.setattr(groups, "decide", look)
    CommandRunner(ledger).charged(request(run))
    assert seen
    assert not any(isinstance(each, Connection | Engine) for each in seen)


def test_steps_that_were_taken_before_are_loaded_for_the_whole_group(ledger: Ledger) -> None:
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
