"""Generation of API keys and their audit payload."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from app.ledger.api_keys import KeyRecord
from app.ledger.audit import AuditAction
from app.ledger.hash_chain import Actor, digest
from app.ledger.permissions import Role
from app.persistence.repositories import api_keys
from app.service.audit_log import AuditEvent, record_event
from app.service.auth.authentication import secret_hash
from app.service.ids import new_id

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key and its plain text, which is never stored."""

    record: KeyRecord
    key: str

    @property
    def id(self) -> str:
        """Public id of the key."""
        return self.record.id

    @property
    def role(self) -> Role:
        """Role of the key."""
        return Role(self.record.role)


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The terms of a new key.

    It applies at or under the account `scope`, an id or path; None: in the whole organisation.
    """

    role: Role
    name: str | None = None
    scope: str | None = None
    expires_at: datetime | None = None


def generate_key(organisation_id: str, terms: KeyTerms, issuer: str, now: datetime) -> IssuedKey:
    """Generate a key with a random secret; nothing is stored."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    record = KeyRecord(
        id=new_id("key", now),
        organisation_id=organisation_id,
        name=terms.name,
        role=str(terms.role),
        scope=terms.scope,
        secret_hash=secret_hash(secret),
        created_by=issuer,
        created_at=now,
        expires_at=terms.expires_at,
    )
    return IssuedKey(record, f"{record.id}.{secret}")


def add_key(tx: Connection, issued: IssuedKey, asker: Actor, now: datetime) -> None:
    """Store a new key and record it in the audit log."""
    api_keys.add(tx, issued.record)
    act = AuditEvent(AuditAction.API_KEY_CREATED, issued.id, after=key_audit_payload(issued.record))
    record_event(tx, issued.record.organisation_id, asker, act, now)


def key_audit_payload(key: KeyRecord) -> dict[str, object]:
    """Build the audit payload of a key, without its secret."""
    ends = {"expires_at": key.expires_at, "revoked_at": key.revoked_at}
    return {
        "name": key.name,
        "role": key.role,
        "scope": key.scope,
        "secret_sha256": digest(key.secret_hash),
        **{name: moment and moment.isoformat() for name, moment in ends.items()},
    }
