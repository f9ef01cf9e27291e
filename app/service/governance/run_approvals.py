"""Another person's word on a run that waits for it."""

from dataclasses import replace

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import PreconditionFailedError
from app.ledger.runs import RunStatus
from app.persistence.repositories.proposals import Proposal
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_for
from app.service.charging.saving import save_transition
from app.service.costing import PrecomputedCosts
from app.service.governance.run_policy_checks import require_still_allowed


def approve_run(tx: Connection, call: RequestContext, proposal: Proposal, ready: PrecomputedCosts) -> None:
    """Let a run that waited take steps.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who approves.
        proposal: open, of another person.
        ready: not needed.

    Raises:
        PreconditionFailedError: the run does not wait any more, or may spend more than was proposed.
        PolicyViolationError: the policies that hold now do not allow it.
    """
    del ready
    _end_waiting(tx, call, proposal, RunStatus.ACTIVE, AuditAction.RUN_ACTIVATED)


def reject_run(tx: Connection, call: RequestContext, proposal: Proposal) -> None:
    """End a run that waited in vain; one that reported too much meanwhile is overdrawn, and stays so.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who rejects, or withdraws.
        proposal: open.
    """
    _end_waiting(tx, call, proposal, RunStatus.ABORTED, AuditAction.RUN_ABORTED)


def _end_waiting(
    tx: Connection, call: RequestContext, proposal: Proposal, reached: RunStatus, action: AuditAction
) -> None:
    work = load_for(tx, call, proposal.subject)
    run = work.run(call.organisation_id, proposal.subject)
    if run.status is not RunStatus.PENDING:
        if reached is RunStatus.ABORTED:
            return
        raise PreconditionFailedError(
            f"The run is {run.status}; it does not wait any more.", run_status=str(run.status)
        )
    if reached is RunStatus.ACTIVE:
        path = work.path(call.organisation_id, proposal.subject)
        assert path is not None, "the whole path is locked"
        require_still_allowed(path, proposal)
    save_transition(work, call, replace(run, status=reached))
    call.record(tx, AuditEvent(action, run.account_id, {"status": str(run.status)}, {"status": str(reached)}))
