"""Proposals: lookup, approval and rejection."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection

from app.ledger.errors import PermissionDeniedError, ProposalClosedError, require_found
from app.ledger.governance.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import PERMISSIONS, Permission
from app.persistence.repositories import api_keys, proposals
from app.service.accounts.create import approve_population
from app.service.accounts.lookup import find_scope, require_every_budget, require_reach
from app.service.accounts.metadata import approve_unarchival
from app.service.auth.authentication import CLI_ACTOR, WORKLOAD_PREFIX
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.change_control import close_proposal
from app.service.governance.allocations import ALLOCATIONS
from app.service.governance.limit_changes import LIMITS
from app.service.governance.policies import POLICIES
from app.service.governance.quarantines import approve_lift, verify_before_lift
from app.service.governance.run_approvals import approve_run, reject_run
from app.service.keys.api_keys import rotation_lineage

MOST_COUNTED: Final = 100
"""Number of open proposals that are looked at to count those that a person may decide."""

_APPLY: Final[Mapping[ProposalKind, Callable[[Connection, RequestContext, Proposal], None]]] = {
    ProposalKind.LIMIT: LIMITS.approve,
    ProposalKind.RUN: approve_run,
    ProposalKind.POLICY: POLICIES.approve,
    ProposalKind.POPULATION: approve_population,
    ProposalKind.QUARANTINE: approve_lift,
    ProposalKind.ALLOCATION: ALLOCATIONS.approve,
    ProposalKind.UNARCHIVAL: approve_unarchival,
}


def get_proposal(context: RequestContext, proposal_id: str) -> Proposal:
    """Get a proposal in the caller's scope, or the caller's own."""
    with context.read() as tx:
        return _found(tx, context, proposal_id, or_own=True)


def list_proposals(context: RequestContext, wanted: ProposalFilter, page: PageRequest) -> Page[Proposal]:
    """List proposals in the caller's scope; `wanted.within` is an id or a path."""
    with context.read() as tx:
        reachable = replace(wanted, within=find_scope(tx, context, wanted.within))
        return proposals.page(tx, context.organisation_id, reachable, page)


def approve(context: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    """Approve and apply another person's proposal.

    Raises:
        PermissionDeniedError: an account that it affects is outside the caller's scope, or the caller counts as the
            proposer: see `_require_decidable`.
        ProposalClosedError: it is not open.
        PreconditionFailedError: its subject has changed since.
        PolicyViolationError: a policy forbids it by now.
        AccountQuarantinedError: verification still finds discrepancies in a quarantined account.
    """
    with context.read(Permission.PROPOSAL_APPROVE) as tx:
        proposal = _found(tx, context, proposal_id)
        lifts = proposal.kind is ProposalKind.QUARANTINE and proposal.status is ProposalStatus.OPEN
        if lifts:
            _require_decidable(tx, context, proposal)
    with verify_before_lift(context, proposal) if lifts else nullcontext():
        return _approve(context, proposal_id, reason)


@use_case(Permission.PROPOSAL_APPROVE)
def _approve(tx: Connection, context: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    proposal = _open(tx, context, proposal_id)
    _require_decidable(tx, context, proposal)
    decided = close_proposal(tx, context, proposal, ProposalStatus.APPROVED, reason)
    _APPLY[proposal.kind](tx, context, proposal)
    return decided


@use_case(Permission.LEDGER_READ)
def reject(tx: Connection, context: RequestContext, proposal_id: str, reason: str | None) -> Proposal:
    """Reject a proposal; needs PROPOSAL_APPROVE, or is the proposer.

    Raises:
        ProposalClosedError: it is not open.
    """
    proposal = _open(tx, context, proposal_id, or_own=True)
    own = proposal.proposed_by == context.principal.actor
    if not own:
        context.require_permission(Permission.PROPOSAL_APPROVE)
    reached = ProposalStatus.WITHDRAWN if own else ProposalStatus.REJECTED
    decided = close_proposal(tx, context, proposal, reached, reason)
    if proposal.kind is ProposalKind.RUN:
        reject_run(tx, context, proposal)
    return decided


def _open(tx: Connection, context: RequestContext, proposal_id: str, *, or_own: bool = False) -> Proposal:
    found = _found(tx, context, proposal_id, or_own=or_own)
    if found.status is not ProposalStatus.OPEN:
        raise ProposalClosedError(
            f"The proposal is {found.status} since {found.decided_at:%Y-%m-%d %H:%M} UTC, and stays so.",
            proposal_status=str(found.status),
        )
    return found


def _found(tx: Connection, context: RequestContext, proposal_id: str, *, or_own: bool = False) -> Proposal:
    """Find a proposal about an account, or the organisation, in the caller's scope.

    `or_own`: or the caller's own, as a trainer may request a limit of an account above its scope.
    """
    found = require_found(proposals.find(tx, context.organisation_id, proposal_id), "proposal", proposal_id)
    if or_own and found.proposed_by == context.principal.actor:
        return found
    if found.account_id is None:
        context.require_scope([])
    else:
        require_reach(tx, context, found.account_id)
    return found


def approval_blocker(tx: Connection, context: RequestContext, proposal: Proposal) -> str | None:
    """Explain why the caller cannot approve, apart from their role."""
    try:
        _require_decidable(tx, context, proposal)
    except PermissionDeniedError as error:
        return error.detail
    return None


def count_decidable(context: RequestContext) -> int:
    """Count the open proposals that the caller may approve, MOST_COUNTED at most."""
    if Permission.PROPOSAL_APPROVE not in PERMISSIONS[context.principal.role]:
        return 0
    with context.read() as tx:
        found = proposals.open_subjects(
            tx,
            context.organisation_id,
            context.principal.scope,
            not_by=context.principal.actor,
            limit=MOST_COUNTED,
        )
        proposers = {proposer for _, proposer in found}
        others = {each for each in proposers if _allows(_require_other_person, tx, context, each)}
        return sum(
            proposer in others and (account is None or _allows(require_every_budget, tx, context, account))
            for account, proposer in found
        )


def _allows(
    require: Callable[[Connection, RequestContext, str], None], tx: Connection, context: RequestContext, about: str
) -> bool:
    try:
        require(tx, context, about)
    except PermissionDeniedError:
        return False
    return True


def _require_decidable(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Refuse an approver outside the scope, or one that may be the proposer.

    An issuer knows the secrets of the keys that it issues. So keys count as one person if one is the other's issuer or
    rotated successor, or if both have the same issuer.
    """
    if proposal.account_id is not None:
        require_every_budget(tx, context, proposal.account_id)
    _require_other_person(tx, context, proposal.proposed_by)


def _require_other_person(tx: Connection, context: RequestContext, proposer: str) -> None:
    """Refuse an approver that may be the proposer, or that is a machine."""
    approver = context.principal.actor
    ours, theirs = _issuers(tx, approver), _issuers(tx, proposer)
    if any(each.startswith(WORKLOAD_PREFIX) for each in ours):
        raise PermissionDeniedError(
            "This key belongs to a workload, or was issued by one; it proposes, and persons approve.",
            required_permission=str(Permission.PROPOSAL_APPROVE),
        )
    # The command line has no issuer, but cannot approve its own proposal either.
    alike = approver == proposer or rotation_lineage(tx, context.organisation_id, ours) & theirs
    if alike or rotation_lineage(tx, context.organisation_id, theirs) & ours:
        raise PermissionDeniedError(
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
