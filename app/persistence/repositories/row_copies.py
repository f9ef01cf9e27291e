"""Read, write and delete all rows of a database, or of an organisation, in batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    null,
    select,
    update,
)

from app.persistence.repositories.expressions import owned_by
from app.persistence.tables import accounts, metadata, organisations, runs

BATCH: Final = 200
"""Rows in memory at once, and of one short transaction, which takes some 20 ms; an account has some 20 KB."""

DELETED: Final = 100
"""Rows that one short transaction deletes, in some 10 ms: on the database that is left, others take steps meanwhile."""

Values = Mapping[str, Any]


def batches(tx: Connection, organisation_id: str | None = None) -> Iterator[tuple[Table, list[Values]]]:
    """Read all rows, None: of all organisations, referenced rows before those that refer to them.

    `reservation_ties` reads the reservations of runs, which these rows do not have: each refers to the other.
    """
    for table in metadata.sorted_tables:
        for batch in _batches(tx, _in_order(table, organisation_id)):
            yield table, batch


def add(tx: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Add a batch of rows."""
    tx.execute(insert(table), rows)


def reservation_ties(tx: Connection, organisation_id: str | None = None) -> Iterator[list[Values]]:
    """Read which reservations runs have, in batches."""
    found = select(
        runs.c.organisation_id.label("of_organisation"), runs.c.account_id.label("of_run"), runs.c.reservation_id
    ).where(runs.c.reservation_id.is_not(None), _owned(runs, organisation_id))
    return _batches(tx, found.order_by(*runs.primary_key))


def tie_reservations(tx: Connection, ties: Sequence[Values]) -> None:
    """Write which reservations runs have, after both were added."""
    tied = (
        update(runs)
        .where(runs.c.organisation_id == bindparam("of_organisation"), runs.c.account_id == bindparam("of_run"))
        .values(reservation_id=bindparam("reservation_id"))
    )
    tx.execute(tied, ties)


def untie_reservations(tx: Connection, organisation_id: str) -> bool:
    """Take the reservations from a batch of an organisation's runs; return whether there were some."""
    tied = select(runs.c.account_id).where(owned_by(runs, organisation_id), runs.c.reservation_id.is_not(None))
    found = tx.execute(tied.limit(DELETED)).scalars().all()
    here = owned_by(runs, organisation_id) & runs.c.account_id.in_(found)
    tx.execute(update(runs).where(here).values(reservation_id=None))
    return bool(found)


def delete_batch(tx: Connection, organisation_id: str) -> bool:
    """Delete a batch of an organisation's rows, but not its own; return whether there were some.

    Rows that refer to others go first, and runs have no reservations any more.
    """
    left = DELETED
    for table in reversed(metadata.sorted_tables):
        if table is organisations or not left:
            continue
        key = list(table.primary_key)
        order = [table.c.depth.desc(), *key] if table is accounts else key
        found = tx.execute(select(*key).where(owned_by(table, organisation_id)).order_by(*order).limit(left)).all()
        if found:
            # Each row by its own statement: for a list of keys SQLite takes twice as long.
            same = and_(*(column == bindparam(f"of_{column.name}") for column in key))
            names = [f"of_{column.name}" for column in key]
            tx.execute(delete(table).where(same), [dict(zip(names, row, strict=True)) for row in found])
            left -= len(found)
    return left < DELETED


def delete_organisation(tx: Connection, organisation_id: str) -> None:
    """Delete the row of an organisation that has no others."""
    tx.execute(delete(organisations).where(organisations.c.id == organisation_id))


def _in_order(table: Table, organisation_id: str | None) -> Select[Any]:
    """Select a table's rows, referenced rows first."""
    owned = _owned(table, organisation_id)
    if table is accounts:  # parents before children
        return select(table).where(owned).order_by(accounts.c.depth, accounts.c.organisation_id, accounts.c.id)
    if table is runs:  # runs and reservations refer to each other: `tie_reservations` writes the link later
        others = [column for column in runs.c if column is not runs.c.reservation_id]
        return select(*others, null().label("reservation_id")).where(owned).order_by(*runs.primary_key)
    return select(table).where(owned).order_by(*table.primary_key)  # decisions in chain order


def _owned(table: Table, organisation_id: str | None) -> ColumnElement[bool]:
    """Build the condition that a row is of an organisation, None: of any."""
    if table is organisations and organisation_id is not None:
        return organisations.c.id == organisation_id
    return owned_by(table, organisation_id)


def _batches(tx: Connection, rows: Select[Any]) -> Iterator[list[Values]]:
    # Without streaming, PostgreSQL's driver fetches the whole table first.
    for batch in tx.execute(rows.execution_options(yield_per=BATCH)).partitions():
        yield [_values(row) for row in batch]


def _values(row: Row[Any]) -> Values:
    return dict(row._mapping)  # noqa: SLF001 - a public name of SQLAlchemy's
