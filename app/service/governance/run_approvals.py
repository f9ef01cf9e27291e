"""Approval and rejection of pending runs."""

from dataclasses import replace

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.errors import PreconditionFailedError
from app.ledger.proposals import Proposal
from app.ledger.runs import RunStatus
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_for
from app.service.charging.saving import save_transition
from app.service.costing import PrecomputedCosts
from app.service.governance.run_policy_checks import require_still_allowed


def approve_run(tx: Connection, context: RequestContext, proposal: Proposal, ready: PrecomputedCosts) -> None:
    """Activate a pending run; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the run is not pending, or may spend more than was proposed.
        PolicyViolationError: a policy forbids it by now.
    """
    del ready
    _end_waiting(tx, context, proposal, RunStatus.ACTIVE, AuditAction.RUN_ACTIVATED)


def reject_run(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Abort a pending run; one that a report has overdrawn meanwhile stays overdrawn."""
    _end_waiting(tx, context, proposal, RunStatus.ABORTED, AuditAction.RUN_ABORTED)


def _end_waiting(
    tx: Connection, context: RequestContext, proposal: Proposal, reached: RunStatus, action: AuditAction
) -> None:
    work = load_for(tx, context, proposal.subject)
    run = work.run(proposal.subject)
    if run.status is not RunStatus.PENDING:
        if reached is RunStatus.ABORTED:
            return
        raise PreconditionFailedError(
            f"The run is {run.status}; it does not wait any more.", run_status=str(run.status)
        )
    if reached is RunStatus.ACTIVE:
        path = work.path(proposal.subject)
        assert path is not None, "the whole path is locked"
        require_still_allowed(path, proposal)
    save_transition(tx, work, context, replace(run, status=reached))
    context.record(tx, AuditEvent(action, run.account_id, {"status": str(run.status)}, {"status": str(reached)}))
