"""Organisations and their API keys."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

from app.persistence.tables import api_keys, organisations


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key: the hash of its secret, never the secret."""

    id: str
    organisation_id: str
    role: str
    secret_hash: bytes


def add_organisation(tx: Connection, organisation_id: str, name: str, now: datetime) -> None:
    """Append an organisation."""
    tx.execute(insert(organisations).values(id=organisation_id, name=name, created_at=now))


def find_organisation(tx: Connection, id_or_name: str) -> str | None:
    """The id of the organisation with this id or name."""
    found = select(organisations.c.id).where((organisations.c.id == id_or_name) | (organisations.c.name == id_or_name))
    return tx.execute(found).scalar()


def add_key(tx: Connection, key: KeyRecord, now: datetime) -> None:
    """Append an API key."""
    tx.execute(
        insert(api_keys).values(
            organisation_id=key.organisation_id,
            id=key.id,
            role=key.role,
            secret_hash=key.secret_hash,
            created_at=now,
        )
    )


def find_key(tx: Connection, key_id: str) -> KeyRecord | None:
    """The key with this id, of whichever organisation."""
    row = tx.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
    return None if row is None else KeyRecord(row.id, row.organisation_id, row.role, row.secret_hash)
