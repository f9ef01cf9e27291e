"""Proposals of changes, in the transaction that would apply them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.accounts.alerts import Alert, AlertType
from app.ledger.audit import AuditAction, canonical
from app.ledger.errors import InvalidInputError
from app.ledger.governance.policy_checks import sources_of
from app.ledger.governance.proposals import EXCLUSIVE, Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.ledger.pages import PageRequest
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.settings.policies import ORGANISATION, effective
from app.persistence.repositories import accounts, alerts, overview_queries, proposals
from app.service.actors import name_actor
from app.service.auth.request_context import RequestContext
from app.service.ids import new_id


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


_LEFT_OUT: Final = frozenset({"planned", "quarantined", "revision"})
"""Members of a proposal that may be long, or mean nothing to a reader."""


def proposal_opened_alert(
    tx: Connection, context: RequestContext, proposal: Proposal, before: Mapping[str, Any] | None
) -> Alert:
    """Build the alert that a proposal waits for another person; `before` is the state that it would replace."""
    kind = AlertType.RUN_PENDING if proposal.kind is ProposalKind.RUN else AlertType.PROPOSAL_OPENED
    payload = _payload(tx, context, proposal)
    if proposal.kind is ProposalKind.LIMIT:
        record = accounts.find(tx, context.organisation_id, proposal.subject)
        assert record is not None
        assert before is not None, "a limit is proposed for an account that has one"
        payload |= {"limit_before": before["limit"], "used": record.account.used()}
    return Alert(new_id("evt", context.now), kind, proposal.account_id, proposal.id, payload, context.now)


def proposal_decided_alert(tx: Connection, context: RequestContext, decided: Proposal) -> Alert:
    """Build the alert that a proposal was approved, rejected, withdrawn or superseded."""
    assert decided.decided_by is not None
    payload = _payload(tx, context, decided) | {
        "decided_by": decided.decided_by,
        "decided_by_name": name_actor(tx, context.organisation_id, decided.decided_by),
        "decision_reason": decided.decision_reason,
    }
    kind = AlertType.PROPOSAL_DECIDED
    return Alert(new_id("evt", context.now), kind, decided.account_id, decided.id, payload, context.now)


def _payload(tx: Connection, context: RequestContext, proposal: Proposal) -> dict[str, Any]:
    """Build what all alerts about a proposal contain; only paths are read, for the account's rows may be damaged."""
    proposed = proposal.proposed
    about = {} if proposal.account_id is None else _account(tx, context, proposal.account_id)
    payload: dict[str, Any] = {
        "proposal": proposal.id,
        "kind": str(proposal.kind),
        "status": str(proposal.status),
        "account": proposal.account_id,
        **about,
        "proposed": {name: value for name, value in proposed.items() if name not in _LEFT_OUT},
        "reason": proposal.reason,
        "proposed_by": proposal.proposed_by,
        "proposed_by_name": name_actor(tx, context.organisation_id, proposal.proposed_by),
    }
    if proposal.kind is ProposalKind.QUARANTINE:
        payload["proposed"] = {"quarantined_accounts": len(proposed["quarantined"])}
    return payload


def _account(tx: Connection, context: RequestContext, account_id: str) -> dict[str, str]:
    found = overview_queries.statuses_of(tx, context.organisation_id, [account_id])[account_id]
    return {"account_path": found.path, "account_kind": str(found.kind)}
