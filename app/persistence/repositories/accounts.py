"""Read accounts: populations, budgets and the accounts of runs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from app.accounting.curves import RdpCurve, orders
from app.accounting.events import NeighboringRelation
from app.ledger import ids
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord, Population
from app.ledger.admission.composition import REMOVAL_IS_BOUNDED
from app.ledger.errors import LedgerError, LedgerUnavailableError
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.list_filters import AccountFilter
from app.ledger.settings.windows import ALWAYS, Window
from app.persistence.repositories import balances
from app.persistence.repositories.account_metadata import matching
from app.persistence.repositories.account_values import (
    SAME_NAMES,
    read_alert_settings,
    read_allocation,
    read_limit,
    read_planned,
    read_policy,
    read_weights,
)
from app.persistence.repositories.dp_events import CostCache
from app.persistence.repositories.expressions import NO_RUN, RUN, join_on, matches, owned_by
from app.persistence.repositories.keysets import read_page
from app.persistence.repositories.locks import ancestor_ids, lock, within, writes
from app.persistence.tables import account_ancestors, account_metadata, accounts, partition_attestations, populations
from app.persistence.tables import balances as kept_balances
from app.persistence.tolerant_rows import DAMAGED, Contents, Report, TolerantQuery, refuse

_FACTS = (
    *balances.COLUMNS,
    *(populations.c.privacy_unit, populations.c.neighboring_relation, populations.c.size),
    partition_attestations.c.replacement_assumption,
)
_IN_POPULATION = join_on(populations, accounts, account_id="population_id")
_ACCOUNTS = (
    select(accounts, *_FACTS)
    .outerjoin(kept_balances, join_on(kept_balances, accounts, account_id="id"))
    .outerjoin(partition_attestations, join_on(partition_attestations, accounts, account_id="id"))
)
_RECORDS = _ACCOUNTS.join(populations, _IN_POPULATION)

_PATH = (
    _RECORDS.join(account_ancestors, join_on(account_ancestors, accounts, ancestor_id="id"))
    .where(
        accounts.c.organisation_id == bindparam("of_organisation"),
        account_ancestors.c.account_id == bindparam("of_account"),
    )
    .order_by(account_ancestors.c.depth, account_ancestors.c.ancestor_id)
)
_MANY = _RECORDS.where(
    accounts.c.organisation_id == bindparam("of_organisation"),
    accounts.c.id.in_(bindparam("of_accounts", expanding=True)),
)


def find(tx: Connection, organisation_id: str, account_id: str) -> AccountRecord | None:
    """Find an account by id."""
    row = tx.execute(_of(organisation_id).where(accounts.c.id == account_id)).one_or_none()
    return None if row is None else _record(tx, CostCache(), row)


def newest_id(tx: Connection, organisation_id: str, prefix: str) -> str | None:
    """Get the greatest id with a prefix."""
    least, greatest = ids.bounds(prefix)
    found = select(func.max(accounts.c.id)).where(
        accounts.c.organisation_id == organisation_id, accounts.c.id.between(least, greatest)
    )
    return tx.execute(found).scalar()


def find_by_path(tx: Connection, organisation_id: str, path: str) -> AccountRecord | None:
    """Find a population or budget by its path of names."""
    found = _of(organisation_id).where(accounts.c.path == path, NO_RUN)
    row = tx.execute(found).one_or_none()
    return None if row is None else _record(tx, CostCache(), row)


def runs_at(tx: Connection, organisation_id: str, path: str) -> list[str]:
    """List the ids of the runs at a path, oldest first."""
    found = select(accounts.c.id).where(owned_by(accounts, organisation_id, path=path), RUN)
    return list(tx.execute(found.order_by(accounts.c.id)).scalars())


def lock_above(tx: Connection, organisation_id: str, account_ids: Iterable[str]) -> None:
    """Lock several accounts and all their ancestors in the global order."""
    lock(tx, organisation_id, {above for each in account_ids for above in ancestor_ids(tx, organisation_id, each)})


def path_of(tx: Connection, organisation_id: str, account_id: str) -> list[AccountRecord]:
    """Get an account and its ancestors, ancestors first, locked in a write transaction.

    They are in the global lock order, by depth and id, so that concurrent charges meet at the same account first (ADR
    0003). Empty if there is no such account.
    """
    if writes(tx):
        lock(tx, organisation_id, ancestor_ids(tx, organisation_id, account_id))  # before they are read
    book = CostCache()
    asked = {"of_organisation": organisation_id, "of_account": account_id}
    return [_record(tx, book, row) for row in tx.execute(_PATH, asked).all()]


def page(
    tx: Connection, organisation_id: str, wanted: AccountFilter, request: PageRequest, scope: str | None
) -> Page[AccountRecord]:
    """List accounts within a scope, None: all, newest first; `wanted.parent` is an id."""
    about = join_on(account_metadata, accounts, account_id="id")
    found = (
        _of(organisation_id)
        .join(account_metadata, about)
        .where(
            accounts.c.kind == str(wanted.kind),
            within(accounts.c.id, organisation_id, scope),
            *matches(accounts, parent_id=wanted.parent, path=wanted.path, name=wanted.name),
            *matching(accounts.c.id, organisation_id, wanted),
        )
    )
    book = CostCache()
    return read_page(tx, found, accounts.c.id, request, lambda row: _record(tx, book, row))


def list_all(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> Iterator[tuple[str, AccountRecord, str | None]]:
    """List all accounts of one or every organisation, ancestors first, reporting damage.

    An account comes behind the id of its organisation, and before the stored skeleton of its name.
    """
    book = CostCache()

    def read(row: Row[Any]) -> tuple[str, AccountRecord, str | None]:
        return row.organisation_id, _decoded(tx, book, row), row.name_skeleton

    return _STORED.objects(tx, organisation_id, read, report)


def find_many(tx: Connection, book: CostCache, organisation_id: str, account_ids: Sequence[str]) -> list[AccountRecord]:
    """List the existing ones of some accounts, with known prices from the cache."""
    asked = {"of_organisation": organisation_id, "of_accounts": account_ids}
    return [_record(tx, book, row) for row in tx.execute(_MANY, asked).all()]


def read_many(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> list[AccountRecord]:
    """List the existing ones of some accounts in a constant number of statements."""
    rows = tx.execute(_MANY, {"of_organisation": organisation_id, "of_accounts": account_ids}).all()
    book = balances.book_for(tx, rows)
    return [_record(tx, book, row) for row in rows]


def names_beside(
    tx: Connection, organisation_id: str, parent_id: str | None, but: str | None = None
) -> list[tuple[str, str | None]]:
    """List the names and display names of an organisation's populations, or of an account's child budgets.

    `but` is the id of one that is left out.
    """
    place = accounts.c.parent_id.is_(None) if parent_id is None else accounts.c.parent_id == parent_id
    found = (
        select(accounts.c.name, account_metadata.c.display_name)
        .join(account_metadata, join_on(account_metadata, accounts, account_id="id"))
        .where(accounts.c.organisation_id == organisation_id, place, accounts.c.kind != str(AccountKind.RUN))
    )
    if but is not None:
        found = found.where(accounts.c.id != but)
    return [(row.name, row.display_name) for row in tx.execute(found.order_by(accounts.c.id))]


def children(tx: Connection, organisation_id: str, parent_ids: Sequence[str]) -> list[AccountRecord]:
    """List the children of some accounts."""
    book = CostCache()
    found = _of(organisation_id).where(accounts.c.parent_id.in_(parent_ids))
    return [_record(tx, book, row) for row in tx.execute(found.order_by(accounts.c.id)).all()]


def _of(organisation_id: str) -> Select[Any]:
    return _RECORDS.where(accounts.c.organisation_id == organisation_id)


def _record(tx: Connection, book: CostCache, row: Row[Any]) -> AccountRecord:
    """Read a row, raising LedgerUnavailableError if it is damaged or incomplete."""
    try:
        return _decoded(tx, book, row)
    except LedgerError:
        raise
    except DAMAGED as fault:
        raise LedgerUnavailableError(
            f"The row of {row.path} is damaged and cannot be read; run `epsilon-ledger verify`."
        ) from fault


def _decoded(tx: Connection, book: CostCache, row: Row[Any]) -> AccountRecord:
    spent, held, uncompacted = balances.read(tx, book, row)
    relation = NeighboringRelation(row.neighboring_relation)
    account = Account(
        **{name: getattr(row, name) for name in SAME_NAMES},
        kind=AccountKind(row.kind),
        relation=relation,
        limit=read_limit(row),
        planned=read_planned(row.planned_events),
        weights=read_weights(row.filter_weights),
        spent=spent,
        held=held,
        partitions_per_unit=row.max_partitions_per_unit,
        parts_lose_units=row.replacement_assumption == REMOVAL_IS_BOUNDED,
        window=Window(row.opens_at, row.closes_at) if row.opens_at or row.closes_at else ALWAYS,
        policy=read_policy(row.policy),
        organisation_policy=read_policy(row.organisation_policy),
        allocation=read_allocation(row.allocation),
    )
    population = Population(row.privacy_unit, relation, row.size)
    settings = read_alert_settings(row.alert_thresholds, row.forecast_days)
    return AccountRecord(
        account,
        population,
        row.created_at,
        row.updated_at,
        row.quarantine_reason,
        uncompacted,
        balances.read_counts(row.charges),
        alert_settings=settings,
    )


_CONTENTS: Final[Contents] = {
    accounts.c.kind: AccountKind,
    accounts.c.planned_events: read_planned,
    accounts.c.filter_weights: read_weights,
    accounts.c.grid_version: orders,
    accounts.c.policy: read_policy,
    accounts.c.organisation_policy: read_policy,
    accounts.c.allocation: read_allocation,
    accounts.c.uncompacted_charges: balances.read_uncompacted,
    accounts.c.plan_usage: balances.read_usage,
    accounts.c.alert_thresholds: lambda thresholds: read_alert_settings(thresholds, 0),
    kept_balances.c.charges: balances.read_counts,
    kept_balances.c.spent_curve: RdpCurve.from_bytes,
    kept_balances.c.held_curve: RdpCurve.from_bytes,
    kept_balances.c.spent_delta: lambda delta: RdpCurve.from_bytes(b"", delta),
    kept_balances.c.held_delta: lambda delta: RdpCurve.from_bytes(b"", delta),
    populations.c.neighboring_relation: NeighboringRelation,
}
"""Validators of column contents beyond their types."""

_SPARE: Final = (accounts.c.policy, accounts.c.organisation_policy, accounts.c.allocation)
"""Columns that no balance depends on."""

_STORED: Final = TolerantQuery(
    _ACCOUNTS.outerjoin(populations, _IN_POPULATION).order_by(
        accounts.c.organisation_id, accounts.c.depth, accounts.c.id
    ),
    _CONTENTS,
    [kept_balances, populations],
    _SPARE,
)
