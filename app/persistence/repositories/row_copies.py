"""Read and write all rows of a database, in batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, bindparam, insert, null, select, update

from app.persistence.tables import accounts, metadata, runs

BATCH: Final = 200
"""Rows in memory at once; an account has some 20 KB."""

Values = Mapping[str, Any]


def batches(tx: Connection) -> Iterator[tuple[Table, list[Values]]]:
    """Read all rows, referenced rows before those that refer to them.

    `reservation_ties` reads the reservations of runs, which these rows do not have: each refers to the other.
    """
    for table in metadata.sorted_tables:
        for batch in _batches(tx, _in_order(table)):
            yield table, batch


def add(tx: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Add a batch of rows."""
    tx.execute(insert(table), rows)


def reservation_ties(tx: Connection) -> Iterator[list[Values]]:
    """Read which reservations runs have, in batches."""
    found = select(
        runs.c.organisation_id.label("of_organisation"), runs.c.account_id.label("of_run"), runs.c.reservation_id
    ).where(runs.c.reservation_id.is_not(None))
    return _batches(tx, found.order_by(*runs.primary_key))


def tie_reservations(tx: Connection, ties: Sequence[Values]) -> None:
    """Write which reservations runs have, after both were added."""
    tied = (
        update(runs)
        .where(runs.c.organisation_id == bindparam("of_organisation"), runs.c.account_id == bindparam("of_run"))
        .values(reservation_id=bindparam("reservation_id"))
    )
    tx.execute(tied, ties)


def _in_order(table: Table) -> Select[Any]:
    """Select a table's rows, referenced rows first."""
    if table is accounts:  # parents before children
        return select(table).order_by(accounts.c.depth, accounts.c.organisation_id, accounts.c.id)
    if table is runs:  # runs and reservations refer to each other: `tie_reservations` writes the link later
        others = [column for column in runs.c if column is not runs.c.reservation_id]
        return select(*others, null().label("reservation_id")).order_by(*runs.primary_key)
    return select(table).order_by(*table.primary_key)  # decisions in chain order


def _batches(tx: Connection, rows: Select[Any]) -> Iterator[list[Values]]:
    # Without streaming, PostgreSQL's driver fetches the whole table first.
    for batch in tx.execute(rows.execution_options(yield_per=BATCH)).partitions():
        yield [_values(row) for row in batch]


def _values(row: Row[Any]) -> Values:
    return dict(row._mapping)  # noqa: SLF001 - a public name of SQLAlchemy's
