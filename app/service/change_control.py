"""Proposals of changes, in the transaction that would apply them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.audit import AuditAction, canonical
from app.ledger.errors import InvalidInputError
from app.ledger.governance.policy_checks import sources_of
from app.ledger.governance.proposals import EXCLUSIVE, Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.ledger.pages import PageRequest
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.settings.policies import ORGANISATION, effective
from app.persistence.repositories import alerts, proposals
from app.service.auth.request_context import RequestContext
from app.service.ids import new_id
from app.service.proposal_alerts import proposal_decided_alert, proposal_opened_alert


def one_person_suffices(context: RequestContext, path: Sequence[Account]) -> bool:
    """Check whether the caller may loosen the last account of a path alone.

    The policy must accept a single person where limits are raised, and the caller must be allowed to approve.
    """
    alone = effective(sources_of(path)).approvers_to_raise_limit == 1
    return alone and Permission.PROPOSAL_APPROVE in PERMISSIONS[context.principal.role]


def propose(
    tx: Connection,
    context: RequestContext,
    kind: ProposalKind,
    account_id: str | None,
    facts: Mapping[str, Any],
    reason: str,
    *,
    before: Mapping[str, Any] | None = None,
) -> Proposal:
    """Insert a proposal, its audit event and its alert, or return the caller's open one with the same facts.

    The organisation must be locked. `before` is the state that the proposal would replace.

    Raises:
        InvalidInputError: another proposal is open that excludes it.
    """
    exclusive = EXCLUSIVE.get(kind)
    for waiting in open_proposals(tx, context, account_id, exclusive, limit=1) if exclusive else ():
        same = (kind, canonical(facts), context.principal.actor)
        if (waiting.kind, waiting.payload, waiting.proposed_by) == same:
            return waiting
        raise open_error(waiting)
    proposal = Proposal(
        id=new_id("prp", context.now),
        kind=kind,
        account_id=account_id,
        payload=canonical(facts),
        status=ProposalStatus.OPEN,
        reason=reason,
        proposed_by=context.principal.actor,
        proposed_at=context.now,
    )
    proposals.add(tx, context.organisation_id, proposal)
    after = dict(facts) | {"account": account_id}
    context.record(tx, AuditAction(f"{kind}.proposed"), proposal.id, before, after, reason)
    alerts.add(tx, context.organisation_id, [proposal_opened_alert(tx, context, proposal, before)])
    return proposal


def open_error(waiting: Proposal) -> InvalidInputError:
    """Build the error that an open proposal excludes another one."""
    return InvalidInputError(f"{waiting.id} waits for an approval here already; decide it first.", proposal=waiting.id)


def close_proposal(
    tx: Connection, context: RequestContext, proposal: Proposal, reached: ProposalStatus, reason: str | None = None
) -> Proposal:
    """Close an open proposal, record it in the audit log, and alert."""
    decided = replace(
        proposal, status=reached, decided_by=context.principal.actor, decided_at=context.now, decision_reason=reason
    )
    proposals.decide(tx, context.organisation_id, decided)
    before, after = ({"status": str(each.status)} for each in (proposal, decided))
    context.record(tx, AuditAction(f"{proposal.kind}.{reached}"), proposal.id, before, after, reason)
    alerts.add(tx, context.organisation_id, [proposal_decided_alert(tx, context, decided)])
    return decided


def open_proposals(
    tx: Connection, context: RequestContext, account_id: str | None, kinds: Collection[ProposalKind], *, limit: int
) -> list[Proposal]:
    """List open proposals on an account or, for None, the organisation."""
    wanted = ProposalFilter(account_id=account_id or ORGANISATION, kinds=frozenset(kinds), status=ProposalStatus.OPEN)
    return list(proposals.page(tx, context.organisation_id, wanted, PageRequest(limit)).items)
