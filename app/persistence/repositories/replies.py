"""First answers to requests that carried an idempotency key and created something."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

from app.persistence.tables import replies


@dataclass(frozen=True, slots=True)
class Reply:
    """The body that a key has pinned, and what it answered."""

    request_fingerprint: str
    body: str


def find(tx: Connection, organisation_id: str, idempotency_key: str) -> Reply | None:
    """The reply that this key has pinned."""
    found = select(replies).where(
        replies.c.organisation_id == organisation_id, replies.c.idempotency_key == idempotency_key
    )
    row = tx.execute(found).one_or_none()
    return None if row is None else Reply(row.request_fingerprint, row.body)


def add(tx: Connection, organisation_id: str, idempotency_key: str, reply: Reply, now: datetime) -> None:
    """Pin a reply to a key, for ever."""
    tx.execute(
        insert(replies).values(
            organisation_id=organisation_id,
            idempotency_key=idempotency_key,
            request_fingerprint=reply.request_fingerprint,
            body=reply.body,
            created_at=now,
        )
    )
