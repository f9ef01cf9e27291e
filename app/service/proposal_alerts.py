"""Alerts about proposals: opened, waiting for an approval, and decided.

Apart from `alerts`, whose use cases need the accounts that proposals change.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.alerts import Alert, AlertType
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.persistence.repositories import accounts, overview_queries
from app.service.actors import name_actor
from app.service.auth.request_context import RequestContext
from app.service.ids import new_id
from app.service.json_values import json_finite

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
        payload |= {"limit_before": before["limit"], **json_finite(epsilon=record.account.epsilon())}
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
    name = overview_queries.names_of(tx, context.organisation_id, [account_id])[account_id]
    return {"account_path": name.path, "account_kind": str(name.kind)}
