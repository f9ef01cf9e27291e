"""Accounts of every kind: populations, budgets and the accounts of runs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, true, update

from app.accounting.curves import RdpCurve
from app.accounting.errors import AccountingError
from app.accounting.events import NeighboringRelation, event_from_dict, event_to_dict
from app.accounting.orders import orders
from app.ledger.accounts import Account, AccountKind, StepEvent, zero_curve
from app.ledger.errors import LedgerError
from app.ledger.filters import FilterKind, FilterWeights, Limit
from app.persistence.engine import writes
from app.persistence.tables import account_paths, accounts, populations


@dataclass(frozen=True, slots=True)
class Population:
    """What a population has besides its account."""

    privacy_unit: str
    relation: NeighboringRelation
    size: int | None


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account with its population's facts and its times, and why writes to it are stopped, if they are."""

    account: Account
    population: Population
    created_at: datetime
    updated_at: datetime
    quarantine: str | None = None

    def changed_to(self, account: Account, now: datetime) -> "AccountRecord":
        """The record after a change of the account."""
        return AccountRecord(account, self.population, self.created_at, now, self.quarantine)


_RECORDS = select(accounts, populations.c.privacy_unit, populations.c.neighboring_relation, populations.c.size).join(
    populations,
    (populations.c.organisation_id == accounts.c.organisation_id)
    & (populations.c.account_id == accounts.c.population_id),
)


# Statements of the hot path are built once: building one costs as much as executing it.
_PATH = (
    _RECORDS.join(
        account_paths,
        (account_paths.c.organisation_id == accounts.c.organisation_id)
        & (account_paths.c.ancestor_id == accounts.c.id),
    )
    .where(
        accounts.c.organisation_id == bindparam("of_organisation"),
        account_paths.c.account_id == bindparam("of_account"),
    )
    .order_by(account_paths.c.depth)
)
# Rows are locked against writers and not against the foreign keys that point to them (FOR NO KEY UPDATE).
_LOCKED_PATH = _PATH.with_for_update(of=accounts, key_share=True)

_PATHS = (
    select(account_paths.c.account_id, account_paths.c.ancestor_id)
    .join(
        accounts,
        (accounts.c.organisation_id == account_paths.c.organisation_id) & (accounts.c.id == account_paths.c.account_id),
    )
    .where(
        account_paths.c.organisation_id == bindparam("of_organisation"),
        account_paths.c.account_id.in_(bindparam("of_runs", expanding=True)),
        accounts.c.kind == str(AccountKind.RUN),
    )
    .order_by(account_paths.c.account_id, account_paths.c.depth)
)

# Ordered by depth and id: the one global lock order (ADR 0003).
_SEEN = (
    select(accounts.c.id, accounts.c.version, accounts.c.updated_at, accounts.c.quarantine)
    .where(
        accounts.c.organisation_id == bindparam("of_organisation"),
        accounts.c.id.in_(bindparam("of_accounts", expanding=True)),
    )
    .order_by(accounts.c.depth, accounts.c.id)
)
_LOCKED = _SEEN.with_for_update(key_share=True)

_MANY = _RECORDS.where(
    accounts.c.organisation_id == bindparam("of_organisation"),
    accounts.c.id.in_(bindparam("of_accounts", expanding=True)),
)

_CHARGED = (
    update(accounts)
    .where(accounts.c.organisation_id == bindparam("of_organisation"), accounts.c.id == bindparam("of_account"))
    .values(
        spent=bindparam("spent"),
        spent_delta=bindparam("spent_delta"),
        held=bindparam("held"),
        held_delta=bindparam("held_delta"),
        weights=bindparam("weights"),
        version=bindparam("version"),
        updated_at=bindparam("updated_at"),
    )
)


def add(
    tx: Connection,
    organisation_id: str,
    account: Account,
    ancestors: Sequence[Account],
    population: Population | None,
    now: datetime,
) -> None:
    """Append an account beneath its ancestors.

    Args:
        tx: the caller's transaction.
        organisation_id: whose account it is.
        account: new, nothing spent.
        ancestors: root first; empty for a population.
        population: given for a population only.
        now: in UTC.
    """
    tx.execute(
        insert(accounts).values(
            organisation_id=organisation_id,
            id=account.id,
            kind=str(account.kind),
            parent_id=account.parent_id,
            population_id=account.population_id,
            name=account.name,
            path=account.path,
            depth=account.depth,
            epsilon_limit=account.limit and account.limit.epsilon,
            delta_limit=account.limit and account.limit.delta,
            filter=str(account.filter),
            planned=_planned_text(account.planned),
            weights=_weights_text(account.weights),
            grid_version=account.grid_version,
            spent=account.spent.to_bytes(),
            held=_held_bytes(account.held),
            spent_delta=account.spent.delta,
            held_delta=account.held.delta,
            version=account.version,
            created_at=now,
            updated_at=now,
        )
    )
    if population is not None:
        tx.execute(
            insert(populations).values(
                organisation_id=organisation_id,
                account_id=account.id,
                privacy_unit=population.privacy_unit,
                neighboring_relation=str(population.relation),
                size=population.size,
            )
        )
    tx.execute(
        insert(account_paths),
        [
            {
                "organisation_id": organisation_id,
                "account_id": account.id,
                "ancestor_id": ancestor.id,
                "depth": ancestor.depth,
            }
            for ancestor in (*ancestors, account)
        ],
    )


def find(tx: Connection, organisation_id: str, account_id: str) -> AccountRecord | None:
    """The account with this id."""
    row = tx.execute(_of(organisation_id).where(accounts.c.id == account_id)).one_or_none()
    return None if row is None else _record(row)


def newest_id(tx: Connection, organisation_id: str, prefix: str) -> str | None:
    """The greatest id with a prefix; the key's index finds it at once."""
    found = select(func.max(accounts.c.id)).where(
        accounts.c.organisation_id == organisation_id,
        accounts.c.id >= f"{prefix}_",
        accounts.c.id < f"{prefix}`",  # the character behind the underscore
    )
    return tx.execute(found).scalar()


def find_by_path(tx: Connection, organisation_id: str, path: str) -> AccountRecord | None:
    """The population or budget at this path of names."""
    found = _of(organisation_id).where(accounts.c.path == path, accounts.c.kind != str(AccountKind.RUN))
    row = tx.execute(found).one_or_none()
    return None if row is None else _record(row)


def path_of(tx: Connection, organisation_id: str, account_id: str) -> list[AccountRecord]:
    """The account and its ancestors, root first; a writer's transaction locks them until it ends.

    The order is the one global lock order: by depth, so that two charges that share accounts always
    meet at the higher one first (ADR 0003).

    Returns:
        Empty if the organisation has no such account.
    """
    asked = {"of_organisation": organisation_id, "of_account": account_id}
    statement = _LOCKED_PATH if writes(tx) else _PATH
    return [_record(row) for row in tx.execute(statement, asked)]


def page(
    tx: Connection,
    organisation_id: str,
    kind: AccountKind,
    *,
    parent_id: str | None = None,
    path: str | None = None,
    after: str | None,
    limit: int,
) -> list[AccountRecord]:
    """Accounts of one kind in the order of their creation, those after an id only."""
    found = _of(organisation_id).where(accounts.c.kind == str(kind))
    if parent_id is not None:
        found = found.where(accounts.c.parent_id == parent_id)
    if path is not None:
        found = found.where(accounts.c.path == path)
    if after is not None:
        found = found.where(accounts.c.id > after)
    return [_record(row) for row in tx.execute(found.order_by(accounts.c.id).limit(limit))]


@dataclass(frozen=True, slots=True)
class KeptAccount:
    """An account's row as an audit finds it: readable, or not.

    Args:
        organisation_id: whose.
        id: of the account.
        path: its path of names.
        account: None if the row cannot be read.
        fault: why not.
    """

    organisation_id: str
    id: str
    path: str
    account: Account | None
    fault: str = ""


def everything(tx: Connection, organisation_id: str | None = None) -> Iterable[KeptAccount]:
    """Every account of an organisation, or of all, also those whose rows were damaged."""
    rows = tx.execute(
        select(accounts, populations.c.privacy_unit, populations.c.neighboring_relation, populations.c.size)
        .outerjoin(
            populations,
            (populations.c.organisation_id == accounts.c.organisation_id)
            & (populations.c.account_id == accounts.c.population_id),
        )
        .where(true() if organisation_id is None else accounts.c.organisation_id == organisation_id)
        .order_by(accounts.c.organisation_id, accounts.c.depth, accounts.c.id)
    )
    for row in rows:
        try:
            account = _record(row).account
            orders(account.grid_version)
        except (AssertionError, KeyError, TypeError, ValueError, AccountingError, LedgerError) as fault:
            yield KeptAccount(row.organisation_id, row.id, row.path, None, str(fault) or type(fault).__name__)
        else:
            yield KeptAccount(row.organisation_id, row.id, row.path, account)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a lock tells of an account: enough to know whether a remembered one is still what is stored."""

    id: str
    version: int
    updated_at: datetime
    quarantine: str | None

    def is_of(self, record: AccountRecord) -> bool:
        """Whether the record is what is stored now; a version alone may come twice if a backup is restored."""
        return (self.version, self.updated_at, self.quarantine) == (
            record.account.version,
            record.updated_at,
            record.quarantine,
        )


def paths(tx: Connection, organisation_id: str, run_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The ids of each run's account and its ancestors, root first; a run that does not exist has none."""
    found: dict[str, tuple[str, ...]] = {}
    for row in tx.execute(_PATHS, {"of_organisation": organisation_id, "of_runs": run_ids}):
        found[row.account_id] = (*found.get(row.account_id, ()), row.ancestor_id)
    return found


def lock(tx: Connection, organisation_id: str, account_ids: Iterable[str]) -> list[Seen]:
    """Lock accounts until a writer's transaction ends, in the one global order; a reader only looks at them."""
    asked = {"of_organisation": organisation_id, "of_accounts": list(account_ids)}
    return [
        Seen(row.id, row.version, row.updated_at, row.quarantine)
        for row in tx.execute(_LOCKED if writes(tx) else _SEEN, asked)
    ]


def find_many(tx: Connection, organisation_id: str, account_ids: Sequence[str]) -> list[AccountRecord]:
    """Those of the accounts that exist."""
    asked = {"of_organisation": organisation_id, "of_accounts": account_ids}
    return [_record(row) for row in tx.execute(_MANY, asked)]


def save_charged(tx: Connection, charged: Iterable[tuple[str, Account, datetime]]) -> None:
    """Write what charges changed: spent, held, frozen weights, version; each account with its organisation's id."""
    tx.execute(
        _CHARGED,
        [
            {
                "of_organisation": organisation_id,
                "of_account": account.id,
                "spent": account.spent.to_bytes(),
                "spent_delta": account.spent.delta,
                "held": _held_bytes(account.held),
                "held_delta": account.held.delta,
                "weights": _weights_text(account.weights),
                "version": account.version,
                "updated_at": now,
            }
            for organisation_id, account, now in charged
        ],
    )


def _of(organisation_id: str) -> Select[Any]:
    return _RECORDS.where(accounts.c.organisation_id == organisation_id)


def _record(row: Row[Any]) -> AccountRecord:
    relation = NeighboringRelation(row.neighboring_relation)
    account = Account(
        id=row.id,
        kind=AccountKind(row.kind),
        parent_id=row.parent_id,
        population_id=row.population_id,
        name=row.name,
        path=row.path,
        depth=row.depth,
        relation=relation,
        limit=None if row.epsilon_limit is None else Limit(row.epsilon_limit, row.delta_limit),
        filter=FilterKind(row.filter),
        planned=_planned(row.planned),
        weights=_weights(row.weights),
        spent=RdpCurve.from_bytes(row.spent, row.spent_delta),
        held=_held(row.held, row.held_delta, row.grid_version),
        grid_version=row.grid_version,
        version=row.version,
    )
    population = Population(row.privacy_unit, relation, row.size)
    return AccountRecord(account, population, row.created_at, row.updated_at, row.quarantine)


def _held_bytes(held: RdpCurve) -> bytes:
    """Nothing held is no bytes: most accounts hold nothing, and every charge writes their rows."""
    return b"" if held.is_zero else held.to_bytes()


def _held(data: bytes, delta: int, grid_version: int) -> RdpCurve:
    return RdpCurve.from_bytes(data, delta) if data or delta else zero_curve(grid_version)


def _planned_text(planned: tuple[StepEvent, ...]) -> str:
    return json.dumps([{"event": event_to_dict(step.event), "count": step.count} for step in planned])


def _planned(text: str) -> tuple[StepEvent, ...]:
    return tuple(StepEvent(event_from_dict(item["event"]), item["count"]) for item in json.loads(text))


def _weights_text(weights: FilterWeights | None) -> str | None:
    if weights is None:
        return None
    return json.dumps({"indices": weights.indices, "deltas": weights.deltas})


def _weights(text: str | None) -> FilterWeights | None:
    if text is None:
        return None
    stored = json.loads(text)
    return FilterWeights(tuple(stored["indices"]), tuple(stored["deltas"]))
