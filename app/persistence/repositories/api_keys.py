"""API keys, without their secrets."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from app.ledger.api_keys import KeyRecord
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import api_keys


def add(tx: Connection, key: KeyRecord) -> None:
    """Add a key."""
    tx.execute(
        insert(api_keys).values(
            organisation_id=key.organisation_id,
            id=key.id,
            name=key.name,
            role=key.role,
            scope_id=key.scope,
            secret_hash=key.secret_hash,
            created_by=key.created_by,
            created_at=key.created_at,
            expires_at=key.expires_at,
        )
    )


def find(tx: Connection, key_id: str) -> KeyRecord | None:
    """Find a key of any organisation by id."""
    row = tx.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
    return None if row is None else _record(row)


_MANY = select(api_keys).where(api_keys.c.id.in_(bindparam("of_keys", expanding=True)))


def find_many(tx: Connection, key_ids: Iterable[str]) -> dict[str, KeyRecord]:
    """Find keys of any organisation by id."""
    return {row.id: _record(row) for row in tx.execute(_MANY, {"of_keys": list(key_ids)})}


def page(tx: Connection, organisation_id: str, *, scope: str | None, after: str | None, limit: int) -> list[KeyRecord]:
    """List keys after an id, optionally those within a scope."""
    found = select(api_keys).where(api_keys.c.organisation_id == organisation_id)
    if scope is not None:
        found = found.where(api_keys.c.scope_id.in_(descendant_ids(organisation_id, scope)))
    if after is not None:
        found = found.where(api_keys.c.id > after)
    return [_record(row) for row in tx.execute(found.order_by(api_keys.c.id).limit(limit))]


def change(tx: Connection, key: KeyRecord, **values: datetime) -> None:
    """Write when a key expires or was revoked."""
    tx.execute(
        update(api_keys)
        .where(api_keys.c.organisation_id == key.organisation_id, api_keys.c.id == key.id)
        .values(**values)
    )


def save_last_used(tx: Connection, when: Mapping[tuple[str, str], datetime]) -> None:
    """Write when keys were last used, by organisation and id."""
    tx.execute(
        update(api_keys)
        .where(api_keys.c.organisation_id == bindparam("of_organisation"), api_keys.c.id == bindparam("of_key"))
        .values(last_used_at=bindparam("at")),
        [{"of_organisation": owner, "of_key": key_id, "at": at} for (owner, key_id), at in sorted(when.items())],
    )


def _record(row: Row[Any]) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        organisation_id=row.organisation_id,
        name=row.name,
        role=row.role,
        scope=row.scope_id,
        secret_hash=row.secret_hash,
        created_by=row.created_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
