"""Metadata and labels of accounts, apart from the rows that charges lock, and filters by them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.metadata import METADATA_TEXTS, AccountMetadata, Link, Metadata, search_text
from app.ledger.ids import is_id
from app.ledger.runs.list_filters import MetadataFilter, read_label
from app.persistence.repositories.expressions import RUN, join_on, owned_by
from app.persistence.tables import account_ancestors, account_labels, account_metadata, accounts


def add(tx: Connection, organisation_id: str, account: Account, metadata: Metadata) -> int:
    """Add the metadata of a new account; return its number among the runs at its path."""
    number = _next_number(tx, organisation_id, account)
    key = {"organisation_id": organisation_id, "account_id": account.id}
    tx.execute(insert(account_metadata).values(**key, number=number, **_values(account.path, metadata)))
    _add_labels(tx, organisation_id, account.id, metadata)
    return number


def _next_number(tx: Connection, organisation_id: str, account: Account) -> int:
    if account.kind is not AccountKind.RUN:
        return 1
    here = owned_by(accounts, organisation_id, path=account.path)
    found = select(func.max(account_metadata.c.number)).join(
        accounts, join_on(accounts, account_metadata, id="account_id")
    )
    return int(tx.execute(found.where(here, RUN)).scalar() or 0) + 1


def save(tx: Connection, organisation_id: str, account: Account, metadata: Metadata) -> None:
    """Write the changed metadata of an account."""
    here = owned_by(account_metadata, organisation_id, account_id=account.id)
    tx.execute(update(account_metadata).where(here).values(_values(account.path, metadata)))
    tx.execute(delete(account_labels).where(owned_by(account_labels, organisation_id, account_id=account.id)))
    _add_labels(tx, organisation_id, account.id, metadata)


def set_archived(tx: Connection, organisation_id: str, account_id: str, archived_at: datetime | None) -> None:
    """Archive an account; None: no longer."""
    here = owned_by(account_metadata, organisation_id, account_id=account_id)
    tx.execute(update(account_metadata).where(here).values(archived_at=archived_at))


def find_many(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> dict[str, AccountMetadata]:
    """Get the metadata of accounts by id, in two statements."""
    ids = list(account_ids)
    mine = and_(owned_by(account_labels, organisation_id), account_labels.c.account_id.in_(ids))
    labels: dict[str, dict[str, str]] = {}
    columns = (account_labels.c.account_id, account_labels.c.key, account_labels.c.value)
    for account_id, key, value in tx.execute(select(*columns).where(mine).order_by(account_labels.c.key)):
        labels.setdefault(account_id, {})[key] = value
    rows = tx.execute(
        select(account_metadata).where(
            owned_by(account_metadata, organisation_id), account_metadata.c.account_id.in_(ids)
        )
    )
    found = {}
    for row in rows:
        links = tuple(Link(**link) for link in json.loads(row.links))
        own = {name: getattr(row, name) for name in METADATA_TEXTS}
        deployment = json.loads(row.deployment)
        metadata = Metadata(**own, labels=labels.get(row.account_id, {}), links=links, deployment=deployment)
        found[row.account_id] = AccountMetadata(row.number, metadata, row.archived_at)
    return found


def numbers_of(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> dict[str, int]:
    """Get the numbers of runs that are not the first at their paths, by id."""
    here = and_(owned_by(account_metadata, organisation_id), account_metadata.c.account_id.in_(list(account_ids)))
    found = select(account_metadata.c.account_id, account_metadata.c.number).where(here, account_metadata.c.number > 1)
    return {row.account_id: row.number for row in tx.execute(found)}


def archived_above(tx: Connection, organisation_id: str, account_id: str) -> list[str]:
    """List the paths of archived accounts among an account and its ancestors, root first."""
    found = (
        select(accounts.c.path)
        .join(account_metadata, join_on(account_metadata, accounts, account_id="id"))
        .join(account_ancestors, join_on(account_ancestors, accounts, ancestor_id="id"))
        .where(
            owned_by(account_ancestors, organisation_id, account_id=account_id),
            account_metadata.c.archived_at.is_not(None),
        )
    )
    return list(tx.execute(found.order_by(account_ancestors.c.depth)).scalars())


def _archived(organisation_id: str, beside: str | None = None) -> Select[Any]:
    """Select the ids of archived accounts and of those under them.

    What is archived above the account `beside`, or is itself, does not count.
    """
    archive = account_metadata.alias("archive")
    found = (
        select(account_ancestors.c.account_id)
        .join(archive, join_on(archive, account_ancestors, account_id="ancestor_id"))
        .where(owned_by(archive, organisation_id), archive.c.archived_at.is_not(None))
    )
    if beside is None:
        return found
    above = account_ancestors.alias("above")
    path = select(above.c.ancestor_id).where(owned_by(above, organisation_id, account_id=beside))
    return found.where(archive.c.account_id.not_in(path))


def not_archived(column: Column[Any], organisation_id: str, *, beside: str | None) -> ColumnElement[bool]:
    """Build the condition that a column has no id of an account archived under `beside`, None: archived anywhere."""
    return column.not_in(_archived(organisation_id, beside))


def archived_ids(tx: Connection, organisation_id: str, beside: str | None = None) -> set[str]:
    """List the archived accounts and those under them, as `not_archived`."""
    return set(tx.execute(_archived(organisation_id, beside)).scalars())


def matching(column: Column[Any], organisation_id: str, wanted: MetadataFilter) -> list[ColumnElement[bool]]:
    """Build the conditions that a column has the ids of accounts that match a filter.

    The statement joins `account_metadata`.
    """
    archived = _archived(organisation_id)
    conditions: list[ColumnElement[bool]] = [column.in_(archived) if wanted.archived else column.not_in(archived)]
    if wanted.owner is not None:
        conditions.append(account_metadata.c.owner == wanted.owner)
    for key, value in map(read_label, wanted.labels):
        labelled = select(account_labels.c.account_id).where(owned_by(account_labels, organisation_id, key=key))
        conditions.append(column.in_(labelled if value is None else labelled.where(account_labels.c.value == value)))
    if wanted.text is not None:
        part = account_metadata.c.search_text.contains(wanted.text.casefold(), autoescape=True)
        conditions.append(or_(part, column == literal(wanted.text, column.type)) if is_id(wanted.text) else part)
    return conditions


def _values(path: str, metadata: Metadata) -> dict[str, Any]:
    own = {name: getattr(metadata, name) for name in METADATA_TEXTS}
    links = json.dumps([asdict(link) for link in metadata.links])
    deployment = json.dumps(dict(metadata.deployment))
    return {**own, "links": links, "deployment": deployment, "search_text": search_text(path, metadata)}


def _add_labels(tx: Connection, organisation_id: str, account_id: str, metadata: Metadata) -> None:
    rows = [
        {"organisation_id": organisation_id, "account_id": account_id, "key": key, "value": value}
        for key, value in metadata.labels.items()
    ]
    if rows:
        tx.execute(insert(account_labels), rows)
