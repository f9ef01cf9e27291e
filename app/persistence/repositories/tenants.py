"""Organisations and their API keys."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select, text

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


def organisation_ids(tx: Connection) -> set[str]:
    """The ids of all organisations."""
    return set(tx.execute(select(organisations.c.id)).scalars())


def lock_names(tx: Connection) -> None:
    """Let nobody else found an organisation until the transaction ends; everything else goes on meanwhile.

    SQLite has one writer at a time anyhow.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(text("LOCK TABLE organisations IN SHARE ROW EXCLUSIVE MODE"))


def lock(tx: Connection, organisation_id: str) -> None:
    """Let nobody else open accounts of this organisation until the transaction ends; charges go on meanwhile.

    Ids must be committed in their order, or a cursor would miss one.
    """
    locked = select(organisations.c.id).where(organisations.c.id == organisation_id)
    tx.execute(locked.with_for_update(key_share=True))


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
