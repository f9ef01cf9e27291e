"""A whole ledger copied from one database to another: the move from SQLite to PostgreSQL, or back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, bindparam, func, insert, null, select, update

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import organisations
from app.persistence.schema import has_ledger
from app.persistence.tables import accounts, metadata, runs
from app.service.verification import VerificationReport, verify

BATCH: Final = 500
"""Rows that are in memory at once; one of an account has some 20 KB."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What was copied, and what a verification of the copy found.

    Args:
        rows: how many of each table.
        found: by the verification of the target.
    """

    rows: Mapping[str, int]
    found: VerificationReport


def copy_database(source: Database, target: Database) -> CopyResult:
    """Copy every row, from one state of the source, in one transaction of the target; then verify the target.

    Args:
        source: of the newest schema; nobody may write to it meanwhile.
        target: of the newest schema, and without a row.

    Returns:
        What was copied.

    Raises:
        NotFoundError: one of them has no ledger of this version.
        InvalidInputError: the target has rows, or they are one database.
        LedgerUnavailableError: the source was written to meanwhile, or the counts do not agree; nothing was copied.
    """
    if source.engine.url == target.engine.url:
        raise InvalidInputError("--from and --to name one database; a copy needs two.")
    for option, db in (("--from", source), ("--to", target)):
        if not has_ledger(db):
            raise NotFoundError(
                f"{option} names no ledger of this version; make one, or bring one to it, by "
                "EPSILON_LEDGER_DATABASE_URL=… epsilon-ledger migrate."
            )
    # As patient as a migration: a count of a large table takes longer than a request may.
    with source.read(ALL_TENANTS, patient=True) as old, target.migration() as new:
        organisations.lock_names(new)
        _require_empty(new)
        before = _state(old)
        rows = {table.name: _copy_table(old, new, table) for table in metadata.sorted_tables}
        _tie_reservations(old, new)
        if _counts(new) != rows:
            raise LedgerUnavailableError("The copy does not have as many rows as were read; nothing was copied.")
        with source.read(ALL_TENANTS, patient=True) as later:
            if _state(later) != before:
                raise LedgerUnavailableError(
                    "The source was written to while it was copied; nothing was copied. Stop the service first."
                )
    return CopyResult(rows, verify(target))


def _copy_table(old: Connection, new: Connection, table: Table) -> int:
    """Copy one table batch by batch; whatever refers to rows of its own table comes after them."""
    copied = 0
    for batch in _batches(old, _in_order(table)):
        new.execute(insert(table), [dict(row._mapping) for row in batch])  # noqa: SLF001 - a public name of SQLAlchemy's
        copied += len(batch)
    return copied


def _in_order(table: Table) -> Select[Any]:
    """The rows of a table; those that others of it refer to come first."""
    if table is accounts:  # a child lies deeper than its parent
        return select(table).order_by(accounts.c.depth, accounts.c.organisation_id, accounts.c.id)
    if table is runs:  # a run and its reservation refer to each other: the run is there first
        others = [column for column in runs.c if column is not runs.c.reservation_id]
        return select(*others, null().label("reservation_id")).order_by(*runs.primary_key)
    return select(table).order_by(*table.primary_key)  # a decision comes after the ones before it


def _tie_reservations(old: Connection, new: Connection) -> None:
    active = select(
        runs.c.organisation_id.label("of_organisation"), runs.c.account_id.label("of_run"), runs.c.reservation_id
    ).where(runs.c.reservation_id.is_not(None))
    tied = (
        update(runs)
        .where(runs.c.organisation_id == bindparam("of_organisation"), runs.c.account_id == bindparam("of_run"))
        .values(reservation_id=bindparam("reservation_id"))
    )
    for batch in _batches(old, active):
        new.execute(tied, [dict(row._mapping) for row in batch])  # noqa: SLF001 - a public name of SQLAlchemy's


def _batches(old: Connection, rows: Select[Any]) -> Iterator[list[Row[Any]]]:
    # Streamed: without it PostgreSQL's driver fetches a whole table before it gives the first row.
    yield from map(list, old.execute(rows.execution_options(yield_per=BATCH)).partitions())


def _require_empty(new: Connection) -> None:
    filled = [name for name, rows in _counts(new).items() if rows]
    if filled:
        raise InvalidInputError(
            f"--to names a ledger that has rows already, the first of them in {filled[0]}; a copy needs an empty one."
        )


def _counts(tx: Connection) -> dict[str, int]:
    return {table.name: tx.scalar(select(func.count()).select_from(table)) or 0 for table in metadata.sorted_tables}


def _state(tx: Connection) -> tuple[object, ...]:
    """What every charge and every creation changes: how many rows there are, or the version of an account."""
    moved = tx.execute(select(func.sum(accounts.c.version), func.max(accounts.c.updated_at))).one()
    return (_counts(tx), *moved)
