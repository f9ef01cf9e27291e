"""Append events to the audit log of an organisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.audit import Actor, AuditAction, AuditEntry, canonical
from app.persistence.repositories import audit, organisations


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An event of the audit log, with the states of the subject before and after; None: it did not exist."""

    action: AuditAction
    subject: str
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    reason: str | None = None


def record_event(tx: Connection, organisation_id: str, actor: Actor, act: AuditEvent, now: datetime) -> None:
    """Append an event to an organisation's audit log, in the transaction of the change.

    Organisations are locked first: `tx` must not have locked an account before, unless it holds the organisation's
    lock.
    """
    organisations.lock(tx, organisation_id)
    position, head = audit.head(tx, organisation_id)
    entry = AuditEntry(
        organisation_id=organisation_id,
        position=position,
        actor=actor.id,
        action=str(act.action),
        subject=act.subject,
        before=None if act.before is None else canonical(act.before),
        after=None if act.after is None else canonical(act.after),
        reason=act.reason,
        request_id=actor.request_id,
        created_at=now,
    )
    audit.add_entry(tx, entry, head)
