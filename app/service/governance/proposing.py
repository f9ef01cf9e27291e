"""Proposals: made in the transaction that would have done what they propose."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import InvalidInputError
from app.ledger.hash_chain import canonical
from app.ledger.policies import ORGANISATION
from app.persistence.repositories import proposals
from app.persistence.repositories.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.service.audit_log import AuditEvent
from app.service.auth.request_context import RequestContext
from app.service.ids import new_id


def propose(
    tx: Connection,
    call: RequestContext,
    kind: ProposalKind,
    account_id: str | None,
    facts: Mapping[str, Any],
    reason: str,
    *,
    before: Mapping[str, Any] | None = None,
) -> Proposal:
    """Write a proposal, and the act that made it.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who proposes.
        kind: what is proposed.
        account_id: of what; None: of the organisation.
        facts: the proposal itself.
        reason: why.
        before: what it would replace; None: nothing.

    Returns:
        The proposal, open.
    """
    proposal = Proposal(
        id=new_id("prp", call.now),
        kind=kind,
        account_id=account_id,
        payload=canonical(facts),
        status=ProposalStatus.OPEN,
        reason=reason,
        proposed_by=call.principal.actor,
        proposed_at=call.now,
    )
    proposals.add(tx, call.organisation_id, proposal)
    after = dict(facts) | {"account": account_id}
    call.record(tx, AuditEvent(AuditAction(f"{kind}.proposed"), proposal.id, before, after, reason))
    return proposal


def require_none_open(
    tx: Connection, call: RequestContext, account_id: str | None, kinds: Collection[ProposalKind]
) -> None:
    """Let something be proposed of which no other proposal is open.

    Args:
        tx: the transaction that proposes it.
        call: who proposes.
        account_id: of what; None: of the organisation.
        kinds: of proposals that stand in the way.

    Raises:
        InvalidInputError: there is one.
    """
    for found in open_proposals(tx, call, account_id, kinds, limit=1):
        raise InvalidInputError(
            f"{found.id} waits for an approval here already; approve, reject or withdraw it first.",
            proposal=found.id,
        )


def open_proposals(
    tx: Connection, call: RequestContext, account_id: str | None, kinds: Collection[ProposalKind], *, limit: int
) -> list[Proposal]:
    """Get the open proposals of some kinds about one account, or about the organisation itself.

    Args:
        tx: the caller's transaction.
        call: whose organisation.
        account_id: of what; None: of the organisation.
        kinds: which.
        limit: how many at the most.
    """
    wanted = ProposalFilter(account_id=account_id or ORGANISATION, kinds=frozenset(kinds), status=ProposalStatus.OPEN)
    return proposals.page(tx, call.organisation_id, wanted, after=None, limit=limit)
