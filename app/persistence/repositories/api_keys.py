"""API keys, without their secrets."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select, update

from app.ledger.api_keys import KeyRecord
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories.expressions import columns_of, owned_by, read_page, values_of
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import api_keys

_COLUMNS = columns_of(api_keys, KeyRecord, scope="scope_id")
_MANY = select(*_COLUMNS).where(api_keys.c.id.in_(bindparam("of_keys", expanding=True)))


def add(tx: Connection, key: KeyRecord) -> None:
    """Add a key."""
    values = values_of(key)
    tx.execute(insert(api_keys).values(scope_id=values.pop("scope"), **values))


def find(tx: Connection, key_id: str) -> KeyRecord | None:
    """Find a key of any organisation by id."""
    row = tx.execute(select(*_COLUMNS).where(api_keys.c.id == key_id)).one_or_none()
    return None if row is None else KeyRecord(*row)


def find_many(tx: Connection, key_ids: Iterable[str]) -> dict[str, KeyRecord]:
    """Find keys of any organisation by id."""
    return {row.id: KeyRecord(*row) for row in tx.execute(_MANY, {"of_keys": list(key_ids)})}


def page(tx: Connection, organisation_id: str, scope: str | None, request: PageRequest) -> Page[KeyRecord]:
    """List keys, newest first; those within a scope, unless it is None."""
    found = select(*_COLUMNS).where(api_keys.c.organisation_id == organisation_id)
    if scope is not None:
        found = found.where(api_keys.c.scope_id.in_(descendant_ids(organisation_id, scope)))
    return read_page(tx, found, api_keys.c.id, request, lambda row: KeyRecord(*tuple(row)))


def change(tx: Connection, key: KeyRecord, **values: datetime) -> None:
    """Write when a key expires or was revoked."""
    tx.execute(update(api_keys).where(owned_by(api_keys, key.organisation_id, id=key.id)).values(**values))


def save_last_used(tx: Connection, when: Mapping[tuple[str, str], datetime]) -> None:
    """Write when keys were last used, by organisation and id."""
    tx.execute(
        update(api_keys)
        .where(api_keys.c.organisation_id == bindparam("of_organisation"), api_keys.c.id == bindparam("of_key"))
        .values(last_used_at=bindparam("at")),
        [{"of_organisation": owner, "of_key": key_id, "at": at} for (owner, key_id), at in sorted(when.items())],
    )
