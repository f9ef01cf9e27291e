"""Lifecycle of a run: pause, resume, completion, abort and attempts."""

from dataclasses import replace

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError
from app.ledger.permissions import Permission
from app.ledger.proposals import ProposalKind, ProposalStatus
from app.ledger.runs import ENDS, RunAction, RunStatus, next_status, require_attempt, require_not_ended
from app.persistence.repositories import proposals, runs
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.charging.decision import require_no_sweep
from app.service.charging.loading import load_for
from app.service.charging.saving import save_transition
from app.service.costing import PrecomputedCosts
from app.service.governance.change_control import open_proposals
from app.service.idempotency import Effect, run_effect
from app.service.queries.runs import RunRecord, read_run
from app.service.reservations.close import end_with_the_run, require_same_step_count

_DONE = {
    RunAction.PAUSE: AuditAction.RUN_PAUSED,
    RunAction.RESUME: AuditAction.RUN_RESUMED,
    RunAction.COMPLETE: AuditAction.RUN_COMPLETED,
    RunAction.ABORT: AuditAction.RUN_ABORTED,
}


def transition_run(
    context: RequestContext,
    run_id: str,
    action: RunAction,
    steps_executed: int | None = None,
    attempt: int | None = None,
) -> RunRecord:
    """Pause, resume, complete or abort a run; a repeated action changes nothing.

    A run with an active reservation needs `steps_executed` to complete; without it, an abort forfeits the rest of the
    plan. `attempt` None, for an operator, matches any attempt.

    Raises:
        AttemptSupersededError: a newer attempt has begun.
        RunStateConflictError: the run has ended in another state.
        ReservationStateConflictError: `steps_executed` is missing, has no reservation, or differs from the number with
            which the run ended.
        InvalidInputError: `steps_executed` is below the authorised or above the planned steps.
    """
    context.require_permission(Permission.RUN_MANAGE)

    def change(tx: Connection, ready: PrecomputedCosts) -> RunRecord:
        work = load_for(tx, context, run_id)
        run = work.run(run_id)
        if attempt is not None:
            require_attempt(run, attempt)
        reached = next_status(run.status, action)
        if reached is not run.status:
            if run.status in {RunStatus.PENDING, RunStatus.OVERDRAWN}:  # a pending run may overdraw by a report
                _supersede(tx, context, run_id)
            if action in ENDS:
                needed = action is RunAction.COMPLETE
                end_with_the_run(tx, work, context, run_id, steps_executed, attested_only=needed)
            save_transition(tx, work, context, replace(work.run(run_id), status=reached))
            done = AuditEvent(_DONE[action], run_id, {"status": run.status}, {"status": reached})
            context.record(tx, done)
        elif steps_executed is not None:
            require_same_step_count(tx, context, run_id, steps_executed)
        return read_run(tx, context, run_id, ready)

    return run_effect(context, change)


def start_attempt(
    context: RequestContext, run_id: str, first_step: int | None, steps_executed: int | None
) -> Effect[RunRecord]:
    """Start an attempt from a checkpoint, fencing off the last one without refund.

    `first_step` None is the run's next step. `steps_executed` commits an active reservation; without it, the rest of
    the plan is forfeited.

    Raises:
        RunStateConflictError: it has ended, is overdrawn, or belongs to a sweep that is charged as a whole.
        InvalidInputError: `first_step` is after the run's next step.
        ReservationStateConflictError: `steps_executed` is given without an active reservation.
    """
    context.require_permission(Permission.STEP_AUTHORIZE)

    def start(tx: Connection, ready: PrecomputedCosts) -> RunRecord:
        work = load_for(tx, context, run_id)
        run = work.run(run_id)
        require_not_ended(run)
        require_no_sweep(work, run)
        end_with_the_run(tx, work, context, run_id, steps_executed, attested_only=False)
        run = work.run(run_id)
        first = run.next_step if first_step is None else first_step
        if first > run.next_step:
            raise InvalidInputError(
                f"No checkpoint can lie before step {first}: the run's next step is {run.next_step}. "
                f"Send a `first_step` of at most {run.next_step}."
            )
        opened = replace(run, attempt=run.attempt + 1, next_step=first, attempt_first_step=first)
        runs.add_attempt(tx, context.organisation_id, opened, context.now)
        save_transition(tx, work, context, opened)
        before, now = ({"attempt": each.attempt, "first_step": each.attempt_first_step} for each in (run, opened))
        context.record(tx, AuditEvent(AuditAction.RUN_ATTEMPT_CREATED, run_id, before, now))
        return read_run(tx, context, run_id, ready)

    return start


def _supersede(tx: Connection, context: RequestContext, run_id: str) -> None:
    """Close the proposal of a run that is aborted before its approval."""
    for waiting in open_proposals(tx, context, run_id, {ProposalKind.RUN}, limit=1):
        decided = replace(
            waiting, status=ProposalStatus.SUPERSEDED, decided_by=context.principal.actor, decided_at=context.now
        )
        proposals.decide(tx, context.organisation_id, decided)
        before, now = ({"status": str(each.status)} for each in (waiting, decided))
        context.record(tx, AuditEvent(AuditAction(f"{waiting.kind}.{decided.status}"), waiting.id, before, now))
