"""The audit chain of an organisation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Row, Select, insert, select, union_all

from app.ledger.audit import AuditFilter
from app.ledger.hash_chain import AuditEntry, audit_entry_hash, audit_genesis
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories.expressions import columns_of, owned_by, read_page, values_of
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import api_keys, audit_entries, experiments, proposals
from app.persistence.tolerant import Report, TolerantQuery, refuse

_COLUMNS = columns_of(audit_entries, AuditEntry)


def head(tx: Connection, organisation_id: str) -> tuple[int, bytes]:
    """Get the length of the chain and its last hash."""
    last = (
        select(audit_entries.c.position, audit_entries.c.entry_hash)
        .where(audit_entries.c.organisation_id == organisation_id)
        .order_by(audit_entries.c.position.desc())
        .limit(1)
    )
    row = tx.execute(last).one_or_none()
    return (0, audit_genesis(organisation_id)) if row is None else (row.position + 1, row.entry_hash)


def add(tx: Connection, entry: AuditEntry, previous: bytes) -> None:
    """Append an entry after the hash `previous`; the caller holds the organisation's lock."""
    tx.execute(insert(audit_entries).values(values_of(replace(entry, entry_hash=audit_entry_hash(previous, entry)))))


def page(
    tx: Connection, organisation_id: str, wanted: AuditFilter, request: PageRequest, *, oldest_first: bool = False
) -> Page[AuditEntry]:
    """List entries, from the end of the chain unless `oldest_first`."""
    found = _filtered(organisation_id, wanted)
    return read_page(tx, found, audit_entries.c.position, request, _entry, oldest_first=oldest_first)


def _filtered(organisation_id: str, wanted: AuditFilter) -> Select[Any]:
    found = select(*_COLUMNS).where(audit_entries.c.organisation_id == organisation_id)
    if wanted.action is not None:
        kind = wanted.action.removesuffix("*")
        alike = audit_entries.c.action.startswith(kind, autoescape=True)
        found = found.where(alike if kind != wanted.action else audit_entries.c.action == wanted.action)
    if wanted.actor is not None:
        found = found.where(audit_entries.c.actor == wanted.actor)
    if wanted.subject is not None:
        found = found.where(audit_entries.c.subject == wanted.subject)
    if wanted.since is not None:
        found = found.where(audit_entries.c.created_at >= wanted.since)
    if wanted.until is not None:
        found = found.where(audit_entries.c.created_at < wanted.until)
    if wanted.within is not None:
        found = found.where(audit_entries.c.subject.in_(_subjects_within(organisation_id, wanted.within)))
    return found


def _subjects_within(organisation_id: str, account_id: str) -> CompoundSelect[tuple[str]]:
    """Build a subquery for the ids of subjects under an account."""
    within = descendant_ids(organisation_id, account_id)
    of_these = [
        select(table.c.id).where(table.c.organisation_id == organisation_id, column.in_(within))
        for table, column in (
            (api_keys, api_keys.c.scope_id),
            (proposals, proposals.c.account_id),
            (experiments, experiments.c.account_id),
        )
    ]
    return union_all(within, *of_these)


def list_all(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> Iterator[AuditEntry]:
    """List the entries of one or every organisation in chain order, reporting damage."""
    found = select(*_COLUMNS).where(owned_by(audit_entries, organisation_id)).order_by(*audit_entries.primary_key)
    return TolerantQuery(found).objects(tx, _entry, report)


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(**row._asdict())
