"""Checks of steps against the run's declaration and its path's policies."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from app.accounting.events import RepeatAndSelect
from app.ledger.accounts import Account, StepEvent
from app.ledger.deviations import Declared, Deviation, deviations, merge_deviations
from app.ledger.errors import RunStateConflictError
from app.ledger.policy_checks import require_declared, require_reporter, require_steps, sources_of
from app.ledger.runs import Run
from app.persistence.repositories import experiments
from app.service.charging.requests import Mode, StepCommand
from app.service.charging.unit_of_work import UnitOfWork


def require_allowed(
    work: UnitOfWork, command: StepCommand, run: Run, path: tuple[Account, ...], steps: Sequence[StepEvent]
) -> None:
    """Require that policies allow the steps; for reported steps, only the reporter's role."""
    sources = sources_of(path)
    if not sources:
        return
    if command.request.mode is Mode.REPORT:
        require_reporter(sources, command.call.principal.role)
        return
    require_steps(sources, path[0].relation, [step.event for step in steps])
    require_declared(sources, find_deviations(work, command.organisation_id, run, steps, command.now))


def require_no_sweep(work: UnitOfWork, organisation_id: str, run: Run) -> None:
    """Refuse steps of a sweep's run, which was approved for one charge.

    Only runs with a selection event cost a query.
    """
    if isinstance(run.event, RepeatAndSelect) and experiments.is_charged_at_once(
        work.tx, organisation_id, run.account_id
    ):
        raise RunStateConflictError(
            "The run belongs to an experiment that is charged at once, and takes no steps of its own. Charge the "
            "experiment: POST /v1/experiments/{id}/charge.",
            run_status=str(run.status),
        )


def find_deviations(
    work: UnitOfWork, organisation_id: str, run: Run, steps: Sequence[StepEvent], now: datetime
) -> tuple[Deviation, ...]:
    """Find the deviations of steps from the run's declaration."""
    own = work.accounts[organisation_id, run.account_id]
    declared = Declared(run.event, own.account.planned, run.declared_steps, run.declared_steps_per_hour)
    return deviations(declared, run.next_step, steps, (now - own.created_at).total_seconds() / 3600)


def with_deviations(work: UnitOfWork, command: StepCommand, run: Run, steps: Sequence[StepEvent]) -> Run:
    """Add the steps' deviations to the run."""
    found = find_deviations(work, command.organisation_id, run, steps, command.now)
    return replace(run, deviations=merge_deviations(run.deviations, found)) if found else run
