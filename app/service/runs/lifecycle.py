"""The life of a run after its registration: pause, resume, end, and the attempts that follow one another."""

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import InvalidInputError
from app.ledger.permissions import Permission
from app.ledger.runs import ENDS, RunAction, RunStatus, after, require_attempt, require_not_ended
from app.persistence.repositories import organisations, proposals, runs
from app.persistence.repositories.proposals import ProposalKind, ProposalStatus
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_for
from app.service.charging.saving import save_transition
from app.service.charging.watching import require_no_sweep
from app.service.costing import PrecomputedCosts, run_with_costs
from app.service.governance.proposing import open_proposals
from app.service.idempotency import IdempotentRequest, StoredResponse, run_idempotent
from app.service.queries.runs import RunRecord, read_run
from app.service.reservations.close import end_with_the_run, require_same_step_count

_DONE = {
    RunAction.PAUSE: AuditAction.RUN_PAUSED,
    RunAction.RESUME: AuditAction.RUN_RESUMED,
    RunAction.COMPLETE: AuditAction.RUN_COMPLETED,
    RunAction.ABORT: AuditAction.RUN_ABORTED,
}


def transition_run(
    call: RequestContext, run_id: str, action: RunAction, steps_executed: int | None = None, attempt: int | None = None
) -> RunRecord:
    """Pause, resume, complete or abort a run.

    Args:
        call: needs RUN_MANAGE.
        run_id: its id.
        action: what to do; doing it again changes nothing.
        steps_executed: to the end of a run with an active reservation: how many of its steps were executed. A run is
            not completed without it; an aborted run forfeits what is left of the plan.
        attempt: whose trainer asks; None: whichever is current, as an operator means it.

    Returns:
        The run afterwards.

    Raises:
        NotFoundError: the organisation has none such.
        AttemptSupersededError: another attempt of the run has begun.
        RunStateConflictError: a completed or aborted run stays what it is.
        ReservationStateConflictError: `steps_executed` is missing, or nothing is reserved; or the run has
            ended before with another number.
        InvalidInputError: it is fewer steps than were authorised, or more than were planned.
    """
    call.require_permission(Permission.RUN_MANAGE)

    def change(ready: PrecomputedCosts) -> RunRecord:
        with call.db.write(call.organisation_id) as tx:
            organisations.lock(tx, call.organisation_id)
            work = load_for(tx, call, run_id)
            run = work.run(call.organisation_id, run_id)
            if attempt is not None:
                require_attempt(run, attempt)
            reached = after(run.status, action)
            if reached is not run.status:
                if run.status in {RunStatus.PENDING, RunStatus.OVERDRAWN}:  # one may have reported while it waited
                    _supersede(tx, call, run_id)
                if action in ENDS:
                    needed = action is RunAction.COMPLETE
                    end_with_the_run(work, call, run_id, steps_executed, attested_only=needed)
                save_transition(work, call, replace(work.run(call.organisation_id, run_id), status=reached))
                done = AuditEvent(_DONE[action], run_id, {"status": run.status}, {"status": reached})
                call.record(tx, done)
            elif steps_executed is not None:
                require_same_step_count(tx, call, run_id, steps_executed)
            return read_run(tx, call, run_id, ready)

    return run_with_costs(call.organisation_id, lambda ready: call.db.retried(lambda: change(ready)))


def start_attempt(
    call: RequestContext,
    run_id: str,
    first_step: int | None,
    steps_executed: int | None,
    identity: IdempotentRequest,
    render: Callable[[RunRecord], str],
) -> StoredResponse:
    """Let a run go on from a checkpoint: the trainer before is fenced off, and what it spent stays spent.

    Args:
        call: needs STEP_AUTHORIZE.
        run_id: its id.
        first_step: the number of the first step after the checkpoint; None: none is repeated.
        steps_executed: of the active reservation's plan, if there is one: it is committed with them. Without, what is
            left of it is forfeited.
        identity: of the request.
        render: makes the reply's body.

    Returns:
        The reply; the run's `attempt` is the new fencing token.

    Raises:
        NotFoundError: the organisation has no such run.
        RunStateConflictError: the run has ended, is overdrawn, or belongs to a sweep that is charged at once.
        InvalidInputError: `first_step` was not reached yet.
        ReservationStateConflictError: `steps_executed` is given, and nothing is reserved.
    """
    call.require_permission(Permission.STEP_AUTHORIZE)

    def create(tx: Connection, ready: PrecomputedCosts) -> str:
        work = load_for(tx, call, run_id)
        run = work.run(call.organisation_id, run_id)
        require_not_ended(run)
        require_no_sweep(work, call.organisation_id, run)
        end_with_the_run(work, call, run_id, steps_executed, attested_only=False)
        run = work.run(call.organisation_id, run_id)
        start = run.next_step if first_step is None else first_step
        if start > run.next_step:
            raise InvalidInputError(
                f"No checkpoint can lie before step {start}: the run's next step is {run.next_step}. "
                f"Send a `first_step` of at most {run.next_step}."
            )
        opened = replace(run, attempt=run.attempt + 1, next_step=start, attempt_first_step=start)
        runs.add_attempt(tx, call.organisation_id, opened, call.now)
        save_transition(work, call, opened)
        before, now = ({"attempt": each.attempt, "first_step": each.attempt_first_step} for each in (run, opened))
        call.record(tx, AuditEvent(AuditAction.RUN_ATTEMPT_CREATED, run_id, before, now))
        return render(read_run(tx, call, run_id, ready))

    return run_idempotent(call, identity, create)


def _supersede(tx: Connection, call: RequestContext, run_id: str) -> None:
    """Nobody has to decide any more about a registration whose run is aborted."""
    for waiting in open_proposals(tx, call, run_id, {ProposalKind.RUN}, limit=1):
        decided = replace(
            waiting, status=ProposalStatus.SUPERSEDED, decided_by=call.principal.actor, decided_at=call.now
        )
        proposals.decide(tx, call.organisation_id, decided)
        before, now = ({"status": str(each.status)} for each in (waiting, decided))
        call.record(tx, AuditEvent(AuditAction(f"{waiting.kind}.{decided.status}"), waiting.id, before, now))
