"""What was proposed, and the word of another person on it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import InsufficientScopeError, NotFoundError, ProposalClosedError
from app.ledger.permissions import Permission
from app.persistence.repositories import api_keys, organisations, proposals
from app.persistence.repositories.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.service.accounts.lookup import find_account, require_every_budget, require_reach
from app.service.audit_log import AuditEvent
from app.service.auth.authentication import CLI_ACTOR
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts, run_with_costs
from app.service.governance.api_keys import rotation_lineage
from app.service.governance.limit_changes import approve_limit
from app.service.governance.openings import approve_population
from app.service.governance.policies import approve_policy
from app.service.governance.quarantines import approve_lift, verified
from app.service.governance.run_approvals import approve_run, reject_run


@dataclass(frozen=True, slots=True)
class Effects:
    """What a decision about a proposal of one kind does besides being written.

    Args:
        approve: makes what was proposed come true.
        reject: ends what waited for it; None: nothing did.
        around: does what takes long before the transaction that approves, and ends after it; None: nothing does.
    """

    approve: Callable[[Connection, RequestContext, Proposal, PrecomputedCosts], None]
    reject: Callable[[Connection, RequestContext, Proposal], None] | None = None
    around: Callable[[RequestContext, Proposal], AbstractContextManager[None]] | None = None


_EFFECTS: Final[Mapping[ProposalKind, Effects]] = {
    ProposalKind.LIMIT: Effects(approve_limit),
    ProposalKind.RUN: Effects(approve_run, reject_run),
    ProposalKind.POLICY: Effects(approve_policy),
    ProposalKind.POPULATION: Effects(approve_population),
    ProposalKind.QUARANTINE: Effects(approve_lift, around=verified),
}


def get_proposal(call: RequestContext, proposal_id: str) -> Proposal:
    """Read a proposal.

    Args:
        call: needs LEDGER_READ.
        proposal_id: its id.

    Returns:
        The proposal.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: its account is out of the caller's reach.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        return _found(tx, call, proposal_id)


def list_proposals(
    call: RequestContext, account: str | None, status: ProposalStatus | None, *, after: str | None, limit: int
) -> list[Proposal]:
    """Read proposals within the caller's reach, in the order of their making.

    Args:
        call: needs LEDGER_READ.
        account: only those about this account (id, or path of names), or beneath it.
        status: only those in this state.
        after: only those after this id.
        limit: how many at the most.

    Returns:
        The proposals.

    Raises:
        NotFoundError: there is no such account.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        beneath = call.principal.scope if account is None else find_account(tx, call, account).account.id
        wanted = ProposalFilter(beneath=beneath, status=status)
        return proposals.page(tx, call.organisation_id, wanted, after=after, limit=limit)


def approve(call: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    """Let what was proposed come true.

    Args:
        call: needs PROPOSAL_APPROVE, and is another person than the proposer.
        proposal_id: what is approved.
        reason: why.

    Returns:
        The proposal afterwards.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: its account, or a budget that its run charges, is out of the caller's reach; or the
            caller may be the proposer, by its key, by that of an issuer, or by one that was rotated.
        ProposalClosedError: it is not open any more.
        PreconditionFailedError: what it is about was changed since.
        PolicyViolationError: a policy that holds now does not allow it.
        AccountQuarantinedError: verification still finds a fault for which an account is quarantined.
    """
    call.require_permission(Permission.PROPOSAL_APPROVE)

    def require_allowed(tx: Connection, proposal: Proposal) -> None:
        _require_decidable(tx, call, proposal)

    def work(tx: Connection, proposal: Proposal, ready: PrecomputedCosts) -> None:
        _EFFECTS[proposal.kind].approve(tx, call, proposal, ready)

    with call.db.read(call.organisation_id) as tx:
        proposal = _found(tx, call, proposal_id)
        around = _EFFECTS[proposal.kind].around if proposal.status is ProposalStatus.OPEN else None
        if around is not None:
            _require_decidable(tx, call, proposal)
    with nullcontext() if around is None else around(call, proposal):
        return _decide(call, proposal_id, _Change(ProposalStatus.APPROVED, require_allowed, work), reason)


def reject(call: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    """Let what was proposed come to nothing.

    Args:
        call: needs PROPOSAL_APPROVE, or is the proposer, who so withdraws it.
        proposal_id: what is rejected.
        reason: why.

    Returns:
        The proposal afterwards.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: the caller may not, or its account is out of the caller's reach.
        ProposalClosedError: it is not open any more.
    """
    call.require_permission(Permission.LEDGER_READ)

    def require_allowed(_: Connection, proposal: Proposal) -> None:
        if proposal.proposed_by != call.principal.actor:
            call.require_permission(Permission.PROPOSAL_APPROVE)

    def work(tx: Connection, proposal: Proposal, _: PrecomputedCosts) -> None:
        end = _EFFECTS[proposal.kind].reject
        if end is not None:
            end(tx, call, proposal)

    return _decide(call, proposal_id, _Change(ProposalStatus.REJECTED, require_allowed, work), reason)


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of a proposal.

    Args:
        status: that it reaches.
        require_allowed: refuses a caller who may not decide; it is called before anything is written.
        work: what the decision does besides being written.
    """

    status: ProposalStatus
    require_allowed: Callable[[Connection, Proposal], None]
    work: Callable[[Connection, Proposal, PrecomputedCosts], None]


def _decide(call: RequestContext, proposal_id: str, change: _Change, reason: str | None) -> Proposal:
    def decide(ready: PrecomputedCosts) -> Proposal:
        with call.db.write(call.organisation_id) as tx:
            organisations.lock(tx, call.organisation_id)
            proposal = _found(tx, call, proposal_id)
            if proposal.status is not ProposalStatus.OPEN:
                raise ProposalClosedError(
                    f"The proposal is {proposal.status} since {proposal.decided_at:%Y-%m-%d %H:%M} UTC, and stays so.",
                    proposal_status=str(proposal.status),
                )
            change.require_allowed(tx, proposal)
            own = change.status is ProposalStatus.REJECTED and proposal.proposed_by == call.principal.actor
            reached = ProposalStatus.WITHDRAWN if own else change.status
            decided = replace(
                proposal, status=reached, decided_by=call.principal.actor, decided_at=call.now, decision_reason=reason
            )
            proposals.decide(tx, call.organisation_id, decided)
            before, after = ({"status": str(each.status)} for each in (proposal, decided))
            call.record(tx, AuditEvent(AuditAction(f"{proposal.kind}.{reached}"), proposal.id, before, after, reason))
            change.work(tx, proposal, ready)
            return decided

    return run_with_costs(call.organisation_id, lambda ready: call.db.retried(lambda: decide(ready)))


def _found(tx: Connection, call: RequestContext, proposal_id: str) -> Proposal:
    found = proposals.find(tx, call.organisation_id, proposal_id)
    if found is None:
        raise NotFoundError(f"There is no proposal {proposal_id!r} in your organisation.")
    _require_reach(tx, call, found)
    return found


def _require_reach(tx: Connection, call: RequestContext, proposal: Proposal) -> None:
    """Let the caller pass to a proposal about an account in its scope; to one about the organisation, without a scope.

    Raises:
        InsufficientScopeError: it is out of the caller's reach.
    """
    if proposal.account_id is None:
        call.require_scope([])
    else:
        require_reach(tx, call, proposal.account_id)


def approval_blocker(tx: Connection, call: RequestContext, proposal: Proposal) -> str | None:
    """Why the caller cannot approve a proposal, besides by their role; None: nothing stands in the way.

    Args:
        tx: the caller's transaction.
        call: who would approve.
        proposal: in their reach.
    """
    try:
        _require_decidable(tx, call, proposal)
    except InsufficientScopeError as error:
        return error.detail
    return None


def _require_decidable(tx: Connection, call: RequestContext, proposal: Proposal) -> None:
    """Refuse whom a proposal is out of reach, and whoever may be the proposer.

    That is by the same key, by one that it became by rotation, or by one of the same issuer: whoever issues a key knows
    its secret. So a key counts as its issuer's, too, and two keys of one issuer as one's.

    Raises:
        InsufficientScopeError: it is so.
    """
    if proposal.account_id is not None:
        require_every_budget(tx, call, proposal.account_id)
    approver, proposer = call.principal.actor, proposal.proposed_by
    ours, theirs = _issuers(tx, approver), _issuers(tx, proposer)
    # The command line has no issuer, and yet whoever proposed by it does not approve by it.
    alike = approver == proposer or rotation_lineage(tx, call.organisation_id, ours) & theirs
    if alike or rotation_lineage(tx, call.organisation_id, theirs) & ours:
        raise InsufficientScopeError(
            "Whoever proposed this cannot approve it; it needs another person's word."
            if approver == proposer
            else "One of the two keys was issued with the other, or both by one: they count as one person's. Ask "
            "somebody who signs in, or whose key comes from the command line.",
            required_permission=str(Permission.PROPOSAL_APPROVE),
        )


def _issuers(tx: Connection, actor: str) -> set[str]:
    """An actor, and whoever issued its key, and so on; the command line is nobody in particular."""
    found: set[str] = set()
    at: str | None = actor
    while at is not None and at not in found and at != CLI_ACTOR.actor:
        found.add(at)
        record = api_keys.find(tx, at)
        at = record.created_by if record is not None else None
    return found
