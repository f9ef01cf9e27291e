"""The limits of an account since it was created, and who set and approved them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.audit import AuditAction, AuditEntry, AuditFilter, AuditOrder
from app.ledger.filter.limits import Limit
from app.ledger.governance.limit_changes import is_lowered
from app.ledger.governance.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.ledger.pages import PageRequest
from app.ledger.settings.policies import ORGANISATION
from app.persistence.repositories import audit, proposals
from app.service.actors import find_actors

MOST_LIMITS: Final = 50
"""The newest limits of an account that a statement has."""


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """A limit that was in force from a time on.

    Args:
        set_by: its author, or the proposer of one that was approved.
        approved_by: another person; None: it needed no approval.
        is_lower: whether its value or its delta is smaller than before, or it is in another unit.
    """

    limit: Limit
    since: datetime
    set_by: str
    approved_by: str | None
    reason: str | None
    is_lower: bool


def limits_in_force(tx: Connection, organisation_id: str, account: Account) -> list[LimitInForce]:
    """List the limits of an account by the audit log, oldest first: the newest `MOST_LIMITS` of them.

    Entries without a limit are left out: a damaged log is for verification to report.
    """
    changes = _approved(tx, organisation_id, account.id, ProposalKind.LIMIT)
    found: list[LimitInForce] = []
    for entry in _entries(tx, organisation_id, account):
        limit = _limit(entry.after)
        if limit is None:
            continue
        if entry.action.endswith(".created"):
            approval = _approval_of_creation(tx, organisation_id, account, entry)
        else:
            approval = changes.get(entry.created_at)
        by = (entry.actor, None) if approval is None else (approval.proposed_by, approval.decided_by)
        lower = bool(found) and is_lowered(found[-1].limit, limit)
        found.append(LimitInForce(limit, entry.created_at, *by, entry.reason, lower))
    return found[-MOST_LIMITS:]


def limit_facts(
    tx: Connection, organisation_id: str, account: Account, history: Sequence[LimitInForce]
) -> dict[str, Any]:
    """Describe the limits of an account, with the names of the people who set and approved them."""
    people = {each.set_by for each in history} | {each.approved_by for each in history if each.approved_by}
    names = find_actors(tx, organisation_id, people)
    return {
        "account": account.id,
        "kind": str(account.kind),
        "path": account.path,
        "limits": [_named(each, {actor: str(label) for actor, label in names.items()}) for each in history],
    }


def _named(each: LimitInForce, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "limit": each.limit.facts(),
        "since": each.since.isoformat(),
        "set_by": names[each.set_by],
        "approved_by": None if each.approved_by is None else names[each.approved_by],
        "reason": each.reason,
    }


def _entries(tx: Connection, organisation_id: str, account: Account) -> Iterator[AuditEntry]:
    """List the audit events that set an account's limit, oldest first."""
    for action, most in ((f"{account.kind}.created", 1), (f"{account.kind}.limit_changed", MOST_LIMITS)):
        wanted = AuditFilter(action=AuditAction(action), subject=account.id, order=AuditOrder.NEWEST)
        yield from reversed(audit.list_entries(tx, organisation_id, wanted, PageRequest(most)).items)


def _approval_of_creation(
    tx: Connection, organisation_id: str, account: Account, created: AuditEntry
) -> Proposal | None:
    """Find the approved proposal of a new account: of a population before it is there, of a run afterwards."""
    if account.kind is AccountKind.POPULATION:
        found = _approved(tx, organisation_id, ORGANISATION, ProposalKind.POPULATION).get(created.created_at)
        return found if found is not None and found.proposed["name"] == account.name else None
    return next(iter(_approved(tx, organisation_id, account.id, ProposalKind.RUN).values()), None)


def _approved(
    tx: Connection, organisation_id: str, account_id: str, kind: ProposalKind
) -> Mapping[datetime | None, Proposal]:
    """Find the newest approved proposals of a kind about an account or the organisation, by their times."""
    wanted = ProposalFilter(status=ProposalStatus.APPROVED, account_id=account_id, kinds=frozenset({kind}))
    found = proposals.page(tx, organisation_id, wanted, PageRequest(2 * MOST_LIMITS)).items
    return {each.decided_at: each for each in found}


def _limit(facts: str | None) -> Limit | None:
    limit = json.loads(facts or "{}").get("limit")
    return None if limit is None else Limit.of(limit)
