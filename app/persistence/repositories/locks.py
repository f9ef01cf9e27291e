"""Lock accounts in the global order (ADR 0003)."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, bindparam, select, true

from app.ledger.accounts.account import AccountKind
from app.persistence import pipeline
from app.persistence.repositories.expressions import join_on, owned_by
from app.persistence.tables import account_ancestors, accounts
from app.persistence.tables.base import stored_number

# Hot-path statements are built once: building one costs as much as executing it.
_PATHS = (
    select(account_ancestors.c.account_id, account_ancestors.c.ancestor_id)
    .join(accounts, join_on(accounts, account_ancestors, id="account_id"))
    .where(
        account_ancestors.c.organisation_id == bindparam("of_organisation"),
        account_ancestors.c.account_id.in_(bindparam("of_runs", expanding=True)),
        accounts.c.kind == str(AccountKind.RUN),
    )
    .order_by(account_ancestors.c.account_id, account_ancestors.c.depth, account_ancestors.c.ancestor_id)
)

_OWN = accounts.c.organisation_id == bindparam("of_organisation")
_NAMED = accounts.c.id.in_(bindparam("of_accounts", expanding=True))
_VERSIONS: Select[Any] = select(
    accounts.c.id,
    accounts.c.version,
    accounts.c.updated_at,
    accounts.c.quarantine_reason.label("quarantine"),
)
"""The columns of an account that show whether a cached copy is current."""

# Ordered by depth and id: the global lock order (ADR 0003).
_READ = _VERSIONS.where(_OWN, _NAMED).order_by(accounts.c.depth, accounts.c.id)
# Excludes writers, but not foreign keys that reference the rows (FOR NO KEY UPDATE).
_LOCKED = _READ.with_for_update(key_share=True)
_REQUIRED = pipeline.required(
    "SELECT 1 FROM (SELECT id, version, updated_at FROM accounts"
    " WHERE organisation_id = %(organisation)s AND id = ANY(%(ids)s::bigint[])"
    " ORDER BY depth, id FOR NO KEY UPDATE) AS locked"
    " JOIN unnest(%(ids)s::bigint[], %(versions)s::bigint[], %(times)s::timestamptz[])"
    " AS seen (id, version, updated_at) USING (id, version, updated_at)",
    "cardinality(%(ids)s::bigint[])",
)
# Of accounts that are not charged: their limits are read, and none may be in quarantine.
_ABOVE = pipeline.required(
    "SELECT 1 FROM accounts JOIN unnest(%(ids)s::bigint[], %(revisions)s::bigint[]) AS seen (id, limit_revision)"
    " USING (id, limit_revision) WHERE organisation_id = %(organisation)s AND quarantine_reason IS NULL",
    "cardinality(%(ids)s::bigint[])",
)
_CHILDREN = _VERSIONS.where(_OWN, accounts.c.parent_id.in_(bindparam("of_accounts", expanding=True)))


def writes(connection: Connection) -> bool:
    """Check whether a connection's transaction may write."""
    return bool(connection.get_execution_options().get("writes", False))


def paths(tx: Connection, organisation_id: str, run_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Get the ids of each existing run's account and ancestors, by depth and id."""
    found: dict[str, tuple[str, ...]] = {}
    for row in tx.execute(_PATHS, {"of_organisation": organisation_id, "of_runs": run_ids}):
        found[row.account_id] = (*found.get(row.account_id, ()), row.ancestor_id)
    return found


def lock(tx: Connection, organisation_id: str, account_ids: Iterable[str]) -> Sequence[Row[Any]]:
    """Lock accounts in the global order in a write transaction; otherwise just read them."""
    asked = {"of_organisation": organisation_id, "of_accounts": list(account_ids)}
    return tx.execute(_LOCKED if writes(tx) else _READ, asked).all()


def read_versions(tx: Connection, organisation_id: str, account_ids: Iterable[str]) -> Sequence[Row[Any]]:
    """Read which versions accounts have, without locks."""
    asked = {"of_organisation": organisation_id, "of_accounts": list(account_ids)}
    return tx.execute(_READ, asked).all()


def require(tx: Connection, organisation_id: str, seen: Sequence[tuple[str, int, datetime]]) -> None:
    """Lock accounts in the global order in a pipeline on PostgreSQL, which fails unless they have these versions.

    An account is given by its id, version and time of change: after a restore a version alone may repeat.
    """
    names, versions, times = zip(*seen, strict=True)
    parameters = {
        "organisation": stored_number(organisation_id),
        "ids": pipeline.numbers(map(stored_number, names)),
        "versions": pipeline.numbers(versions),
        "times": pipeline.texts(times),
    }
    pipeline.execute(tx, _REQUIRED, parameters)


def require_above(tx: Connection, organisation_id: str, seen: Sequence[tuple[str, int]]) -> None:
    """Read accounts in a pipeline on PostgreSQL, which fails unless they have these limits and no quarantine.

    An account is given by its id and the revision of its limit.
    """
    names, revisions = zip(*seen, strict=True)
    parameters = {
        "organisation": stored_number(organisation_id),
        "ids": pipeline.numbers(map(stored_number, names)),
        "revisions": pipeline.numbers(revisions),
    }
    pipeline.execute(tx, _ABOVE, parameters)


def read_children(tx: Connection, organisation_id: str, account_ids: Iterable[str]) -> Sequence[Row[Any]]:
    """Read the children of locked accounts; charges lock the parents first."""
    asked = {"of_organisation": organisation_id, "of_accounts": list(account_ids)}
    return tx.execute(_CHILDREN, asked).all()


def ancestor_ids(tx: Connection, organisation_id: str, account_id: str) -> list[str]:
    """List the ids of an account and its ancestors, by depth and id."""
    found = select(account_ancestors.c.ancestor_id).where(
        owned_by(account_ancestors, organisation_id, account_id=account_id)
    )
    return list(tx.execute(found.order_by(account_ancestors.c.depth, account_ancestors.c.ancestor_id)).scalars())


def descendant_ids(organisation_id: str | None, account_id: str) -> Select[tuple[str]]:
    """Build a subquery for the ids of an account and its descendants."""
    return select(account_ancestors.c.account_id).where(
        owned_by(account_ancestors, organisation_id, ancestor_id=account_id)
    )


def within(column: Column[Any], organisation_id: str | None, account_id: str | None) -> ColumnElement[bool]:
    """Build the condition that a column has the id of an account or of a descendant; None: any."""
    return true() if account_id is None else column.in_(descendant_ids(organisation_id, account_id))
