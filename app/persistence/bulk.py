"""Bulk writes by precompiled statements: compiling one takes longer than executing it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    Connection,
    Dialect,
    Float,
    Insert,
    Integer,
    LargeBinary,
    String,
    Table,
    Update,
    bindparam,
    column,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from app.ledger.errors import LedgerUnavailableError
from app.persistence import pipeline, sqlite
from app.persistence.tables.base import NumberedId, Sha256Hex, UtcDateTime, stored_number

Rows = Sequence[tuple[object, ...]]

_CHANGED: Final = (
    "A row is not in the state that was read before the decision; nothing was changed. Repeat the request."
)


class BulkStatement:
    """A statement that writes many rows, given as tuples.

    Args:
        table: to write.
        written: columns to insert, or to update.
        keys: of an update: columns with the values that rows must have to be updated. A tuple has the values of `keys`,
            then of `written`.
    """

    def __init__(self, table: Table, written: Sequence[str], keys: Sequence[str] = ()) -> None:
        self._table = table
        self._written = written
        self._keys = keys
        self._parameters = {f"of_{name}": table.c[name] for name in keys} | {name: table.c[name] for name in written}
        self._forms: dict[str, _RowByRow | _FromArrays] = {}

    def execute(self, tx: Connection, rows: Rows) -> None:
        """Write at least one row.

        Raises:
            LedgerUnavailableError: on SQLite, a row to update does not have the values of the keys.
            DBAPIError: on PostgreSQL, the same, as a lost race (`pipeline.required`).
        """
        form = self._forms.get(tx.dialect.name)
        if form is None:
            form = self._row_by_row(tx.dialect) if tx.dialect.name == "sqlite" else self._from_arrays(tx.dialect)
            self._forms[tx.dialect.name] = form
        form.execute(tx, rows)

    def _row_by_row(self, dialect: Dialect) -> "_RowByRow":
        table, names = self._table, list(self._parameters)
        statement: Insert | Update = insert(table)
        if self._keys:
            these = [table.c[name] == bindparam(f"of_{name}") for name in self._keys]
            statement = update(table).where(*these).values({name: bindparam(name) for name in self._written})
        compiled = statement.compile(dialect=dialect, column_keys=None if self._keys else names)
        converters = {
            place: convert
            for place, each in enumerate(self._parameters.values())
            if (convert := each.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        return _RowByRow(str(compiled), [names.index(name) for name in compiled.positiontup or ()], converters)

    def _from_arrays(self, dialect: Dialect) -> "_FromArrays":
        table, names = self._table, list(self._parameters)
        arrays = [bindparam(name, type_=ARRAY(_unbounded(each.type))) for name, each in self._parameters.items()]
        given = func.unnest(*arrays).table_valued(*[column(name) for name in names], name="given").render_derived()
        statement: Insert | Update = insert(table).from_select(names, select(*[given.c[name] for name in names]))
        if self._keys:
            these = [table.c[name] == given.c[f"of_{name}"] for name in self._keys]
            statement = update(table).where(*these).values({name: given.c[name] for name in self._written})
        sql = str(statement.compile(dialect=dialect))
        if self._keys:
            sql = pipeline.required(f"{sql} RETURNING 1", f"cardinality(%({names[0]})s::bigint[])")
        return _FromArrays(sql, {name: _writer(each.type) for name, each in self._parameters.items()})


@dataclass(frozen=True, slots=True)
class _RowByRow:
    """A statement for SQLite, which executes it for each row.

    Args:
        sql: its text.
        places: of the values in a tuple, in the order of the placeholders.
        converters: of values, by their places in a tuple.
    """

    sql: str
    places: Sequence[int]
    converters: Mapping[int, Callable[[Any], Any]]

    def execute(self, tx: Connection, rows: Rows) -> None:
        """Write all rows on the driver's cursor."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for place, convert in self.converters.items():
            columns[place] = list(map(convert, columns[place]))
        placed = zip(*[columns[place] for place in self.places], strict=True)
        if sqlite.execute_many(tx, self.sql, placed) != len(rows):
            raise LedgerUnavailableError(_CHANGED)


@dataclass(frozen=True, slots=True)
class _FromArrays:
    """A statement for PostgreSQL, which gets an array per column and executes it once, in a third of the time.

    Args:
        sql: its text.
        writers: of the arrays, by parameter.
    """

    sql: str
    writers: Mapping[str, Callable[[Sequence[Any]], str]]

    def execute(self, tx: Connection, rows: Rows) -> None:
        """Write all rows at once."""
        columns = zip(self.writers.items(), zip(*rows, strict=True), strict=True)
        pipeline.execute(tx, self.sql, {name: write(values) for (name, write), values in columns})


def _unbounded(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Drop a type's length: a cast would truncate longer values that the column rejects."""
    return String() if isinstance(kind, String) else kind


def _numbers_of(ids: Sequence[str | None]) -> str:
    return pipeline.numbers(map(stored_number, ids))


_WRITERS: Final[dict[type[TypeEngine[Any]], Callable[[Sequence[Any]], str]]] = {
    NumberedId: _numbers_of,
    Sha256Hex: pipeline.hashes,
    LargeBinary: pipeline.hashes,
    Integer: pipeline.numbers,
    Float: pipeline.numbers,
    String: pipeline.texts,
    UtcDateTime: pipeline.texts,
}


def _writer(kind: TypeEngine[Any]) -> Callable[[Sequence[Any]], str]:
    return next(write for known, write in _WRITERS.items() if isinstance(kind, known))
