"""Proposals: lookup, approval and rejection."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.errors import InsufficientScopeError, ProposalClosedError, require_found
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.ledger.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.persistence.repositories import api_keys, proposals
from app.service.accounts.lookup import find_account, require_every_budget, require_reach
from app.service.audit_log import AuditEvent
from app.service.auth.authentication import CLI_ACTOR
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.governance.api_keys import rotation_lineage
from app.service.governance.limit_changes import approve_limit
from app.service.governance.openings import approve_population
from app.service.governance.policies import approve_policy
from app.service.governance.quarantines import approve_lift, verify_before_lift
from app.service.governance.run_approvals import approve_run, reject_run
from app.service.idempotency import run_effect


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of a decision on proposals of one kind.

    Args:
        approve: applies the proposal.
        reject: closes the subject that waited for it; None if there is none.
        around: context for slow work that starts before the approving transaction; None if there is none.
    """

    approve: Callable[[Connection, RequestContext, Proposal, PrecomputedCosts], None]
    reject: Callable[[Connection, RequestContext, Proposal], None] | None = None
    around: Callable[[RequestContext, Proposal], AbstractContextManager[None]] | None = None


_EFFECTS: Final[Mapping[ProposalKind, Effects]] = {
    ProposalKind.LIMIT: Effects(approve_limit),
    ProposalKind.RUN: Effects(approve_run, reject_run),
    ProposalKind.POLICY: Effects(approve_policy),
    ProposalKind.POPULATION: Effects(approve_population),
    ProposalKind.QUARANTINE: Effects(approve_lift, around=verify_before_lift),
}


def get_proposal(context: RequestContext, proposal_id: str) -> Proposal:
    """Get a proposal."""
    with context.read() as tx:
        return _found(tx, context, proposal_id)


def list_proposals(
    context: RequestContext, page: PageRequest, *, account: str | None, status: ProposalStatus | None
) -> Page[Proposal]:
    """List proposals in the caller's scope."""
    with context.read() as tx:
        within = context.principal.scope if account is None else find_account(tx, context, account).account.id
        return proposals.page(tx, context.organisation_id, ProposalFilter(within=within, status=status), page)


def approve(context: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    """Approve and apply another person's proposal.

    Raises:
        InsufficientScopeError: an account that it affects is outside the caller's scope, or the caller counts as the
            proposer: see `_require_decidable`.
        ProposalClosedError: it is not open.
        PreconditionFailedError: its subject has changed since.
        PolicyViolationError: a policy forbids it by now.
        AccountQuarantinedError: verification still finds discrepancies in a quarantined account.
    """
    context.require_permission(Permission.PROPOSAL_APPROVE)

    def require_allowed(tx: Connection, proposal: Proposal) -> None:
        _require_decidable(tx, context, proposal)

    def work(tx: Connection, proposal: Proposal, ready: PrecomputedCosts) -> None:
        _EFFECTS[proposal.kind].approve(tx, context, proposal, ready)

    with context.db.read(context.organisation_id) as tx:
        proposal = _found(tx, context, proposal_id)
        around = _EFFECTS[proposal.kind].around if proposal.status is ProposalStatus.OPEN else None
        if around is not None:
            _require_decidable(tx, context, proposal)
    with nullcontext() if around is None else around(context, proposal):
        return _decide(context, proposal_id, _Change(ProposalStatus.APPROVED, require_allowed, work), reason)


def reject(context: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    """Reject a proposal; needs PROPOSAL_APPROVE, or is the proposer.

    Raises:
        ProposalClosedError: it is not open.
    """
    context.require_permission(Permission.LEDGER_READ)

    def require_allowed(_: Connection, proposal: Proposal) -> None:
        if proposal.proposed_by != context.principal.actor:
            context.require_permission(Permission.PROPOSAL_APPROVE)

    def work(tx: Connection, proposal: Proposal, _: PrecomputedCosts) -> None:
        end = _EFFECTS[proposal.kind].reject
        if end is not None:
            end(tx, context, proposal)

    return _decide(context, proposal_id, _Change(ProposalStatus.REJECTED, require_allowed, work), reason)


@dataclass(frozen=True, slots=True)
class _Change:
    """A decision on a proposal: `require_allowed` runs before all writes, `work` after them."""

    status: ProposalStatus
    require_allowed: Callable[[Connection, Proposal], None]
    work: Callable[[Connection, Proposal, PrecomputedCosts], None]


def _decide(context: RequestContext, proposal_id: str, change: _Change, reason: str | None) -> Proposal:
    def decide(tx: Connection, ready: PrecomputedCosts) -> Proposal:
        proposal = _found(tx, context, proposal_id)
        if proposal.status is not ProposalStatus.OPEN:
            raise ProposalClosedError(
                f"The proposal is {proposal.status} since {proposal.decided_at:%Y-%m-%d %H:%M} UTC, and stays so.",
                proposal_status=str(proposal.status),
            )
        change.require_allowed(tx, proposal)
        own = change.status is ProposalStatus.REJECTED and proposal.proposed_by == context.principal.actor
        reached = ProposalStatus.WITHDRAWN if own else change.status
        decided = replace(
            proposal, status=reached, decided_by=context.principal.actor, decided_at=context.now, decision_reason=reason
        )
        proposals.decide(tx, context.organisation_id, decided)
        before, after = ({"status": str(each.status)} for each in (proposal, decided))
        context.record(tx, AuditEvent(AuditAction(f"{proposal.kind}.{reached}"), proposal.id, before, after, reason))
        change.work(tx, proposal, ready)
        return decided

    return run_effect(context, decide)


def _found(tx: Connection, context: RequestContext, proposal_id: str) -> Proposal:
    found = require_found(proposals.find(tx, context.organisation_id, proposal_id), "proposal", proposal_id)
    _require_reach(tx, context, found)
    return found


def _require_reach(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Require that a proposal's account, or the organisation, is in the caller's scope."""
    if proposal.account_id is None:
        context.require_scope([])
    else:
        require_reach(tx, context, proposal.account_id)


def approval_blocker(tx: Connection, context: RequestContext, proposal: Proposal) -> str | None:
    """Explain why the caller cannot approve, apart from their role."""
    try:
        _require_decidable(tx, context, proposal)
    except InsufficientScopeError as error:
        return error.detail
    return None


def _require_decidable(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Refuse an approver outside the scope, or one that may be the proposer.

    An issuer knows the secrets of the keys that it issues. So keys count as one person if one is the other's issuer or
    rotated successor, or if both have the same issuer.
    """
    if proposal.account_id is not None:
        require_every_budget(tx, context, proposal.account_id)
    approver, proposer = context.principal.actor, proposal.proposed_by
    ours, theirs = _issuers(tx, approver), _issuers(tx, proposer)
    # The command line has no issuer, but cannot approve its own proposal either.
    alike = approver == proposer or rotation_lineage(tx, context.organisation_id, ours) & theirs
    if alike or rotation_lineage(tx, context.organisation_id, theirs) & ours:
        raise InsufficientScopeError(
            "The proposer cannot approve their own proposal; another person must."
            if approver == proposer
            else "One of the two keys was issued with the other, or both by one: they count as one person's. Ask "
            "somebody who signs in, or whose key comes from the command line.",
            required_permission=str(Permission.PROPOSAL_APPROVE),
        )


def _issuers(tx: Connection, actor: str) -> set[str]:
    """Get an actor and its issuers, except the command line."""
    found: set[str] = set()
    at: str | None = actor
    while at is not None and at not in found and at != CLI_ACTOR.id:
        found.add(at)
        record = api_keys.find(tx, at)
        at = record.created_by if record is not None else None
    return found
