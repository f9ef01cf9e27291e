"""What was done with an organisation's budgets, by whom and why: entries of the organisation's own chain."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.audit_actions import AuditAction
from app.ledger.hash_chain import Actor, AuditEntry, canonical
from app.persistence.repositories import audit_entries, organisations


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that was done.

    Args:
        action: the kind of the subject, and what was done to it.
        subject: the id of what it was done to.
        before: what was there; None: nothing.
        after: what is there now; None: nothing.
        reason: why, in the actor's words.
    """

    action: AuditAction
    subject: str
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    reason: str | None = None


def record_event(tx: Connection, organisation_id: str, asker: Actor, act: AuditEvent, now: datetime) -> None:
    """Append an act to an organisation's chain, in the transaction that does it.

    Args:
        tx: a writer's; it has locked no account yet, or the organisation before: organisations are locked first.
        organisation_id: whose chain.
        asker: who does it.
        act: what is done.
        now: in UTC.
    """
    organisations.lock(tx, organisation_id)
    position, head = audit_entries.head(tx, organisation_id)
    entry = AuditEntry(
        organisation_id=organisation_id,
        position=position,
        actor=asker.actor,
        action=str(act.action),
        subject=act.subject,
        before=None if act.before is None else canonical(act.before),
        after=None if act.after is None else canonical(act.after),
        reason=act.reason,
        request_id=asker.request_id,
        created_at=now,
    )
    audit_entries.add(tx, entry, head)
