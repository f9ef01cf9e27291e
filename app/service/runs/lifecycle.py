"""Lifecycle of a run: pause, resume, completion, abort and attempts."""

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, ReservationStateConflictError
from app.ledger.governance.proposals import ProposalKind, ProposalStatus
from app.ledger.permissions import Permission
from app.ledger.runs.reservation_closing import commit, forfeit
from app.ledger.runs.reservations import has_lapsed
from app.ledger.runs.run import (
    ENDS,
    EndReason,
    RunAction,
    RunStatus,
    end_reason_of,
    next_status,
    require_attempt,
    require_no_sweep,
    require_not_ended,
    status_payload,
)
from app.ledger.scheduling.waiting import cancel
from app.persistence.repositories import reservations, runs
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.change_control import close_proposal, open_proposals
from app.service.charging.loading import load_for
from app.service.charging.reservation_ends import close_reservation
from app.service.charging.saving import save_transition
from app.service.charging.unit_of_work import UnitOfWork
from app.service.queries.runs import RunRecord, read_run
from app.service.scheduling.endings import end_waiting, waiting_of

_DONE = {
    RunAction.PAUSE: AuditAction.RUN_PAUSED,
    RunAction.RESUME: AuditAction.RUN_RESUMED,
    RunAction.COMPLETE: AuditAction.RUN_COMPLETED,
    RunAction.ABORT: AuditAction.RUN_ABORTED,
}


@use_case(Permission.RUN_MANAGE)
def transition_run(
    tx: Connection,
    context: RequestContext,
    run_id: str,
    action: RunAction,
    steps_executed: int | None = None,
    *,
    attempt: int | None = None,
    reason: EndReason | None = None,
) -> RunRecord:
    """Pause, resume, complete or abort a run; a repeated action changes nothing.

    A run with an active reservation needs `steps_executed` to complete; without it, an abort forfeits the rest of the
    reservation. `attempt` None, for an operator, matches any attempt. `reason` is why the run ends; None: the usual
    one.

    Raises:
        AttemptSupersededError: a newer attempt has begun.
        RunStateConflictError: the run has ended in another state.
        ReservationStateConflictError: `steps_executed` is missing, has no reservation, or differs from the number with
            which the run ended.
        InvalidInputError: `steps_executed` is below the authorised or above the planned steps, or the action does not
            end a run for this reason.
    """
    end = end_reason_of(action, reason) if action in ENDS else None
    work = load_for(tx, context, run_id)
    run = work.run(run_id)
    if attempt is not None:
        require_attempt(run, attempt)
    reached = next_status(run.status, action)
    if reached is not run.status:
        if run.status in {RunStatus.PENDING, RunStatus.OVERDRAWN}:  # a pending run may overdraw by a report
            for waiting in open_proposals(tx, context, run_id, {ProposalKind.RUN}, limit=1):
                close_proposal(tx, context, waiting, ProposalStatus.SUPERSEDED)
        if action in ENDS:
            _cancel_waiting(tx, context, run_id, f"The run has to {action}.")
            needed = action is RunAction.COMPLETE
            _end_reservation(tx, work, context, run_id, steps_executed, attested_only=needed)
        after = work.run(run_id)
        after = after._replace(status=reached) if end is None else after.ended(reached, end, context.now)
        save_transition(tx, work, context.now, after)
        context.record(tx, _DONE[action], run_id, status_payload(run), status_payload(after))
    elif steps_executed is not None:
        _require_same_step_count(tx, context, run_id, steps_executed)
    return read_run(tx, context, run_id)


@use_case(Permission.STEP_AUTHORIZE)
def start_attempt(
    tx: Connection, context: RequestContext, run_id: str, first_step: int | None, steps_executed: int | None
) -> RunRecord:
    """Start an attempt from a checkpoint, fencing off the last one without refund.

    `first_step` None is the run's next step. `steps_executed` commits an active reservation; without it, the rest of
    the reservation is forfeited.

    Raises:
        RunStateConflictError: it has ended, is overdrawn, or belongs to a sweep that is charged as a whole.
        InvalidInputError: `first_step` is after the run's next step.
        ReservationStateConflictError: `steps_executed` is given without an active reservation.
    """
    work = load_for(tx, context, run_id)
    run = work.run(run_id)
    require_not_ended(run)
    require_no_sweep(run, work.sweeps)
    _cancel_waiting(tx, context, run_id, "A new attempt of the run has begun.")
    _end_reservation(tx, work, context, run_id, steps_executed, attested_only=False)
    run = work.run(run_id)
    first = run.next_step if first_step is None else first_step
    if first > run.next_step:
        raise InvalidInputError(
            f"No checkpoint can lie before step {first}: the run's next step is {run.next_step}. "
            f"Send a `first_step` of at most {run.next_step}."
        )
    opened = run._replace(attempt=run.attempt + 1, next_step=first, attempt_first_step=first)
    runs.add_attempt(tx, context.organisation_id, opened, context.now)
    save_transition(tx, work, context.now, opened)
    before, now = ({"attempt": each.attempt, "first_step": each.attempt_first_step} for each in (run, opened))
    context.record(tx, AuditAction.RUN_ATTEMPT_CREATED, run_id, before, now)
    return read_run(tx, context, run_id)


def _cancel_waiting(tx: Connection, context: RequestContext, run_id: str, reason: str) -> None:
    """Cancel the reservation for which a run waits, if any, before the run ends or goes on."""
    waiting = waiting_of(tx, context.organisation_id, run_id)
    if waiting is not None:
        end_waiting(tx, context, cancel(waiting), reason, ends_run=False)


def _end_reservation(
    tx: Connection,
    work: UnitOfWork,
    context: RequestContext,
    run_id: str,
    steps_executed: int | None,
    *,
    attested_only: bool,
) -> None:
    """Close a run's active reservation before its end or its next attempt.

    `steps_executed` None forfeits the rest of the reservation, unless `attested_only`. The run's path must be locked.

    Raises:
        ReservationStateConflictError: `steps_executed` is missing, or given without an active reservation.
        InvalidInputError: it is below the authorised or above the planned steps.
    """
    active = work.reservations.get(run_id)
    if active is None:
        # It may be closed already: by a step that a lowered limit refused (ADR 0026), or with this very number.
        if steps_executed not in {None, reservations.last_attested(tx, context.organisation_id, run_id)}:
            raise ReservationStateConflictError(
                "The run has no active reservation; leave out `steps_executed`; its steps were charged individually."
            )
        return
    lapsed = has_lapsed(active, context.lapsed_by)
    if steps_executed is None and attested_only and not lapsed:
        raise ReservationStateConflictError(
            f"The run has the active reservation {active.id}: say in `steps_executed` how many of its steps were "
            f"executed ({active.steps_used} were authorised), or commit or void it first.",
            reservation=active.id,
            steps_authorized=active.steps_used,
        )
    closing = forfeit(active) if lapsed or steps_executed is None else commit(active, steps_executed)
    close_reservation(tx, work, active, closing, context.actor, context.now)


def _require_same_step_count(tx: Connection, context: RequestContext, run_id: str, steps_executed: int) -> None:
    """Require the step count with which a run's last reservation was committed."""
    attested = reservations.last_attested(tx, context.organisation_id, run_id)
    if attested != steps_executed:
        before = "no word on its steps" if attested is None else f"{attested} steps executed"
        raise ReservationStateConflictError(
            f"The run has ended before, with {before}, and stays so.", steps_executed=attested
        )
