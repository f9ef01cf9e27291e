"""Expressions, and the reading and writing of records, that several repositories share."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    ScalarSelect,
    Select,
    String,
    Table,
    Update,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from app.ledger import ids
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories.keysets import read_page
from app.persistence.tables import accounts, decisions, deliveries, proposals, reservations, runs
from app.persistence.tables.base import UtcDateTime

T = TypeVar("T")

# The conditions of the partial indexes, exactly as declared. The values are literals: with parameters, SQLite would
# plan the statement for each value before using such an index, and PostgreSQL would not use it in a generic plan.
NO_RUN: Final = accounts.c.kind != literal_column("'run'")
RUN: Final = accounts.c.kind == literal_column("'run'")
ADVANCED: Final = decisions.c.outcome.in_([literal_column("'admitted'"), literal_column("'reported'")])
NOT_ADMITTED: Final = decisions.c.outcome != literal_column("'admitted'")
PENDING: Final = deliveries.c.status == literal_column("'pending'")
ACTIVE: Final = reservations.c.status == literal_column("'active'")
WAITING: Final = reservations.c.status == literal_column("'waiting'")
OPEN: Final = proposals.c.status == literal_column("'open'")


def join_on(table: FromClause, other: FromClause, **columns: str) -> ColumnElement[bool]:
    """Build a join within an organisation; `columns` maps columns of `table` to equal ones of `other`."""
    equal = [table.c[name] == other.c[same] for name, same in columns.items()]
    return and_(table.c.organisation_id == other.c.organisation_id, *equal)


def of_last_decision(column: Column[Any], *owned: ColumnElement[bool]) -> ScalarSelect[Any]:
    """Select a column of the last decision of a row of `runs`; None: it has none.

    PostgreSQL's row-level security allows no arithmetic in a search of an index. To ask for the position
    `decision_count - 1` would read all decisions of the run.

    Args:
        column: of `decisions`.
        owned: conditions on the organisation of decisions; without those of the statement, Citus asks all workers.
    """
    before = join_on(decisions, runs, run_id="account_id") & (decisions.c.position < runs.c.decision_count)
    return newest_of(column, before, *owned).correlate(runs)


def newest_of(column: Column[Any], *conditions: ColumnElement[bool]) -> ScalarSelect[Any]:
    """Select a column of the entry of a chain with the highest position; None: there is none."""
    newest = select(column).where(*conditions).order_by(column.table.c.position.desc())
    return newest.limit(literal_column("1")).scalar_subquery()


def owned_by(table: FromClause, organisation_id: str | None, **values: object) -> ColumnElement[bool]:
    """Build the condition that rows belong to an organisation, None: any, and have these values."""
    owner = true() if organisation_id is None else table.c.organisation_id == organisation_id
    return and_(owner, *(table.c[name] == value for name, value in values.items()))


def owned_by_any(table: FromClause, among: Collection[str] | None) -> ColumnElement[bool]:
    """Build the condition that rows belong to one of some organisations, None: any."""
    return true() if among is None else table.c.organisation_id.in_(among)


def matches(table: FromClause, **values: object) -> list[ColumnElement[bool]]:
    """Build the conditions that columns have these values, None: any."""
    given = {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}
    return [table.c[name] == value for name, value in given.items() if value is not None]


def in_period(column: ColumnElement[Any], since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    """Build the conditions that a time is in a half-open period; None: it has no such end."""
    start = [] if since is None else [column >= since]
    return start if until is None else [*start, column < until]


class as_text(FunctionElement[str]):  # noqa: N801 - a function of SQL
    """The text of a column of ids that are stored as integers (`app.ledger.ids`)."""

    type = String()
    inherit_cache = True


@compiles(as_text)
def _as_text(element: as_text, compiler: SQLCompiler, **how: Any) -> str:  # noqa: ANN401 - as in SQLAlchemy
    [column] = element.clauses
    number = compiler.process(column, **how)
    digits = f"{number} & {ids.MASK}"
    if compiler.dialect.name == "postgresql":
        digits = f"lpad(to_hex({digits}), {ids.DIGITS}, '0')"
    else:
        digits = f"printf('%0{ids.DIGITS}x', {digits})"
    prefixes = " ".join(f"WHEN {place} THEN '{prefix}_'" for place, prefix in enumerate(ids.PREFIXES))
    return f"(CASE {number} >> {ids.BITS} {prefixes} END || {digits})"


def seconds(tx: Connection, start: Any, end: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a column or a moment
    """Build the difference in seconds of two columns or aware times; inexact on SQLite."""
    first, last = (
        bindparam(None, each, type_=UtcDateTime()) if isinstance(each, datetime) else each for each in (start, end)
    )
    if tx.dialect.name == "postgresql":
        return func.extract("epoch", last - first)
    return (func.julianday(last) - func.julianday(first)) * 86_400.0


def upsert(tx: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Build an INSERT in the database's dialect, which has ON CONFLICT."""
    return postgresql.insert(table) if tx.dialect.name == "postgresql" else sqlite.insert(table)


def columns_of(table: Table, record: Any, **others: str) -> list[Column[Any]]:  # noqa: ANN401 - a dataclass
    """List the columns that have the names of a dataclass's fields; `others` maps fields to other names."""
    return [table.c[others.get(name, name)] for name in _field_names(record)]


def values_of(record: Any, names: Iterable[str] | None = None) -> dict[str, Any]:  # noqa: ANN401 - of a dataclass
    """Get a dataclass's fields, or those named, as values of the columns of the same names; collections as JSON."""
    values = {name: getattr(record, name) for name in names or _field_names(record)}
    for name, value in values.items():
        if isinstance(value, StrEnum):
            values[name] = str(value)
        elif isinstance(value, tuple | dict):
            values[name] = json.dumps(value)
    return values


def _field_names(record: Any) -> list[str]:  # noqa: ANN401 - a dataclass or an instance
    """List the fields except collections, which other tables have."""
    return [field.name for field in fields(record) if field.default_factory is MISSING]


def newest_id(tx: Connection, table: Table, organisation_id: str, prefix: str) -> str | None:
    """Get the greatest id with a prefix by the primary key's index."""
    found = select(func.max(table.c.id)).where(
        table.c.organisation_id == organisation_id,
        table.c.id >= f"{prefix}_",
        table.c.id < f"{prefix}`",  # the character after the underscore
    )
    return tx.execute(found).scalar()


class RecordTable(Generic[T]):
    """A table of organisations' rows that are read into a dataclass, and written from it.

    Args:
        table: has columns of the names of the dataclass's fields.
        record: the dataclass.
        others: maps fields to columns of other names.
        convert: maps fields to functions that read them from their columns.
    """

    def __init__(
        self,
        table: Table,
        record: Callable[..., T],
        others: Mapping[str, str] | None = None,
        **convert: Callable[[Any], object],
    ) -> None:
        self.columns = columns_of(table, record, **others or {})
        self._table = table
        self._record = record
        columns = zip(_field_names(record), self.columns, strict=True)
        self._readers = {column.name: convert.get(name) for name, column in columns}

    def read(self, row: Row[Any]) -> T:
        """Read a record from a row that has `columns`."""
        cells = ((getattr(row, name), reader) for name, reader in self._readers.items())
        return self._record(*(cell if reader is None else reader(cell) for cell, reader in cells))

    def select(self, organisation_id: str | None, **values: object) -> Select[Any]:
        """Select the rows of an organisation, None: any, that have these values."""
        return select(*self.columns).where(owned_by(self._table, organisation_id, **values))

    def find(self, tx: Connection, organisation_id: str | None, record_id: str) -> T | None:
        """Find a record of an organisation, None: any, by id."""
        row = tx.execute(self.select(organisation_id, id=record_id)).one_or_none()
        return None if row is None else self.read(row)

    def page(
        self,
        tx: Connection,
        organisation_id: str,
        request: PageRequest,
        *conditions: ColumnElement[bool],
        oldest_first: bool = False,
    ) -> Page[T]:
        """List the records of an organisation that satisfy the conditions, newest first."""
        found, place = self.select(organisation_id).where(*conditions), list(self._table.primary_key)[-1]
        return read_page(tx, found, place, request, self.read, oldest_first=oldest_first)

    def newest_id(self, tx: Connection, organisation_id: str, prefix: str) -> str | None:
        """Get the greatest id with a prefix."""
        return newest_id(tx, self._table, organisation_id, prefix)

    def add(self, tx: Connection, organisation_id: str, record: T, **values: object) -> None:
        """Add a record, with values for other columns."""
        own = dict(zip(self._readers, values_of(record).values(), strict=True))
        tx.execute(insert(self._table).values({"organisation_id": organisation_id, **own, **values}))

    def update(self, organisation_id: str, record_id: str) -> Update:
        """Build an update of a record."""
        return update(self._table).where(owned_by(self._table, organisation_id, id=record_id))
