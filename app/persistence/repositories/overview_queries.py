"""Frequent queries over many accounts, with few statements and bytes."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, and_, bindparam, func, select

from app.ledger.accounts.account import AccountKind
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.deviations import Deviation
from app.ledger.runs.run import RunStatus
from app.ledger.scheduling.account_status import AccountStatus
from app.persistence.repositories.account_metadata import not_archived
from app.persistence.repositories.expressions import NO_RUN, columns_of, join_on, owned_by
from app.persistence.repositories.keysets import read_page
from app.persistence.repositories.locks import within
from app.persistence.repositories.runs import read_deviations
from app.persistence.tables import (
    account_ancestors,
    account_metadata,
    accounts,
    attempts,
    audit_entries,
    decisions,
    populations,
    runs,
)

_COLUMNS: Final = (
    *(accounts.c.organisation_id, accounts.c.id, accounts.c.kind, accounts.c.parent_id, accounts.c.population_id),
    *(accounts.c.path, accounts.c.depth, accounts.c.updated_at, accounts.c.version),
    *(accounts.c.quarantine_reason, accounts.c.max_partitions_per_unit, accounts.c.allocation),
)
"""The first fields of a status, which every readable row has."""

_STATUSES = select(*_COLUMNS).where(NO_RUN).order_by(accounts.c.depth, accounts.c.id)


def list_statuses(tx: Connection, organisation_id: str | None, account_id: str | None = None) -> list[AccountStatus]:
    """List populations and budgets of an organisation or all, or those at or under one, ancestors first.

    No status has numbers: accounts whose rows are damaged are listed, too.
    """
    under = within(accounts.c.id, organisation_id, account_id)
    return _read(tx, _STATUSES.where(owned_by(accounts, organisation_id), under))


def list_statuses_along(tx: Connection, organisation_id: str, account_ids: Collection[str]) -> list[AccountStatus]:
    """List some populations and budgets with all accounts above them, ancestors first, without numbers."""
    along = select(account_ancestors.c.ancestor_id).where(
        account_ancestors.c.organisation_id == organisation_id, account_ancestors.c.account_id.in_(list(account_ids))
    )
    return _read(tx, _STATUSES.where(owned_by(accounts, organisation_id), accounts.c.id.in_(along)))


def list_part_statuses(tx: Connection, organisation_id: str, parent_ids: Collection[str]) -> list[AccountStatus]:
    """List the children of parallel accounts, without numbers."""
    here = owned_by(accounts, organisation_id)
    return _read(tx, _STATUSES.where(here, accounts.c.parent_id.in_(list(parent_ids))))


def statuses_of(tx: Connection, organisation_id: str, account_ids: Collection[str]) -> dict[str, AccountStatus]:
    """Get accounts, also of runs, by id, without numbers; ids of other objects are ignored."""
    found = (
        select(*_COLUMNS, account_metadata.c.number)
        .join(account_metadata, join_on(account_metadata, accounts, account_id="id"))
        .where(accounts.c.organisation_id == organisation_id, accounts.c.id.in_(list(account_ids)))
    )
    return {each.id: each for each in _read(tx, found)}


def _read(tx: Connection, found: Select[Any]) -> list[AccountStatus]:
    return [
        AccountStatus(organisation, account, AccountKind(kind), *others)
        for organisation, account, kind, *others in tx.execute(found)
    ]


# Executed every few seconds for every open page: built once, and one statement for all.
_STAMP = select(
    select(func.sum(accounts.c.version))
    .select_from(populations)
    .join(accounts, join_on(accounts, populations, id="account_id"))
    .where(populations.c.organisation_id == bindparam("of_organisation"))
    .scalar_subquery(),
    select(func.max(audit_entries.c.position))
    .where(audit_entries.c.organisation_id == bindparam("of_organisation"))
    .scalar_subquery(),
)
_NEWEST = (
    select(decisions.c.created_at, decisions.c.run_id, decisions.c.position)
    .where(decisions.c.organisation_id == bindparam("of_organisation"))
    .order_by(decisions.c.created_at.desc(), decisions.c.run_id.desc(), decisions.c.position.desc())
    .limit(1)
)


def change_token(tx: Connection, organisation_id: str) -> tuple[object, ...]:
    """Get a token that changes with everything that an organisation's pages show, except time.

    Every charge changes its population's version, other changes of accounts are audit events, refusals are decisions.
    """
    asked = {"of_organisation": organisation_id}
    versions, acts = tx.execute(_STAMP, asked).one()
    return int(versions or 0), acts, *(tx.execute(_NEWEST, asked).one_or_none() or ())


def path_change_token(tx: Connection, organisation_id: str, account_id: str) -> tuple[object, ...]:
    """Get a token that changes with an account, its ancestors or its run.

    Charges change versions, refusals the number of decisions; the other changes are in the selected columns.
    """
    above = (
        select(
            func.count(),
            func.sum(accounts.c.version),
            func.max(accounts.c.updated_at),
            func.sum(accounts.c.limit_revision + accounts.c.policy_revision),
            func.count(accounts.c.quarantine_reason),
        )
        .select_from(account_ancestors)
        .join(accounts, join_on(accounts, account_ancestors, id="ancestor_id"))
        .where(owned_by(account_ancestors, organisation_id, account_id=account_id))
    )
    own = select(runs.c.status, runs.c.decision_count, runs.c.attempt, runs.c.reservation_id).where(
        owned_by(runs, organisation_id, account_id=account_id)
    )
    row, run = tx.execute(above).one(), tx.execute(own).one_or_none()
    return row[0], int(row[1] or 0), row[2], int(row[3] or 0), row[4], *(run or ())


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run: its number, first step and time."""

    attempt: int
    first_step: int
    created_at: datetime


def newest_attempts(tx: Connection, organisation_id: str, run_id: str, limit: int) -> list[Attempt]:
    """List a run's attempts, newest first."""
    mine = owned_by(attempts, organisation_id, run_id=run_id)
    found = select(*columns_of(attempts, Attempt)).where(mine)
    return [Attempt(*row) for row in tx.execute(found.order_by(attempts.c.attempt.desc()).limit(limit))]


@dataclass(frozen=True, slots=True)
class RunOutline:
    """A run in a list; it is `quarantined` if it or an account above is."""

    id: str
    path: str
    number: int
    status: RunStatus
    next_step: int
    deviations: tuple[Deviation, ...]
    quarantined: bool
    updated_at: datetime


UNFINISHED = (RunStatus.ACTIVE, RunStatus.PENDING, RunStatus.WAITING, RunStatus.PAUSED, RunStatus.OVERDRAWN)


def unfinished_runs(
    tx: Connection, organisation_id: str, account_id: str | None, limit: int
) -> tuple[list[RunOutline], dict[str, int]]:
    """List unfinished runs under an account, None: any, by latest activity, and count all of them by status."""
    unfinished = runs.c.status.in_([str(each) for each in UNFINISHED])
    here = within(runs.c.account_id, organisation_id, account_id)
    mine = and_(runs.c.organisation_id == organisation_id, unfinished, here)
    counts = tx.execute(select(runs.c.status, func.count()).where(mine).group_by(runs.c.status))
    numbers = {row.status: int(row[1]) for row in counts}
    rows = tx.execute(
        _OUTLINES.where(mine).order_by(accounts.c.updated_at.desc(), runs.c.account_id.desc()).limit(limit)
    )
    return [_outline(row) for row in rows], numbers


def quarantined_runs(tx: Connection, organisation_id: str, account_id: str | None, limit: int) -> list[RunOutline]:
    """List runs that are quarantined themselves under an account, None: any, newest first, ended or not."""
    here = within(runs.c.account_id, organisation_id, account_id)
    found = _OUTLINES.where(runs.c.organisation_id == organisation_id, here, accounts.c.quarantine_reason.is_not(None))
    return [_outline(row) for row in tx.execute(found.order_by(runs.c.account_id.desc()).limit(limit))]


def count_runs(tx: Connection, organisation_id: str, *, most: int) -> int:
    """Count an organisation's runs, `most` of them."""
    some = select(runs.c.account_id).where(runs.c.organisation_id == organisation_id).limit(most).subquery()
    return tx.execute(select(func.count()).select_from(some)).scalar_one()


def newest_runs(tx: Connection, organisation_id: str, account_id: str | None, request: PageRequest) -> Page[RunOutline]:
    """List runs under an account, None: any, newest first, without those archived under it."""
    here = within(runs.c.account_id, organisation_id, account_id)
    shown = not_archived(runs.c.account_id, organisation_id, beside=account_id)
    found = _OUTLINES.where(runs.c.organisation_id == organisation_id, here, shown)
    return read_page(tx, found, runs.c.account_id, request, _outline)


_ABOVE = accounts.alias()
_QUARANTINED = (
    select(account_ancestors.c.ancestor_id)
    .join(_ABOVE, join_on(_ABOVE, account_ancestors, id="ancestor_id"))
    .where(
        account_ancestors.c.organisation_id == runs.c.organisation_id,
        account_ancestors.c.account_id == runs.c.account_id,
        _ABOVE.c.quarantine_reason.is_not(None),
    )
    .correlate(runs)
    .exists()
)
_OUTLINES = select(
    *(runs.c.account_id, accounts.c.path, account_metadata.c.number, runs.c.status, runs.c.next_step),
    *(runs.c.deviations, _QUARANTINED, accounts.c.updated_at),
)
_OUTLINES = _OUTLINES.join(accounts, join_on(accounts, runs, id="account_id")).join(
    account_metadata, join_on(account_metadata, runs, account_id="account_id")
)


def _outline(row: Row[Any]) -> RunOutline:
    run_id, path, number, status, next_step, deviations, *others = tuple(row)
    return RunOutline(run_id, path, number, RunStatus(status), next_step, read_deviations(deviations), *others)
