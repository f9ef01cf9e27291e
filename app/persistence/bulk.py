"""Bulk writes by precompiled statements: compiling one takes longer than executing it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    Dialect,
    Insert,
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

from app.persistence import sqlite


@dataclass(frozen=True, slots=True)
class _Form:
    """A statement compiled for one dialect.

    Args:
        sql: its text.
        places: of the values in a row, in the order of SQLite's placeholders.
        converters: of values, by their places in a row.
    """

    sql: str
    places: Sequence[int]
    converters: Mapping[int, Callable[[Any], Any]]


class BulkStatement:
    """A statement that writes many rows, given as tuples.

    SQLite executes it per row, on the driver's cursor. PostgreSQL gets an array per column and executes it once, in a
    third of the time.

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
        self._parameters = [*(f"of_{name}" for name in keys), *written]
        self._forms: dict[str, _Form] = {}

    def execute(self, tx: Connection, rows: Sequence[tuple[object, ...]]) -> int:
        """Write at least one row; return the number of rows that were written."""
        form = self._forms.get(tx.dialect.name)
        if form is None:
            form = self._forms[tx.dialect.name] = self._form(tx.dialect)
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for place, convert in form.converters.items():
            columns[place] = list(map(convert, columns[place]))
        if tx.dialect.name == "sqlite":
            placed = zip(*[columns[place] for place in form.places], strict=True)
            return sqlite.execute_many(tx, form.sql, placed)
        named = dict(zip(self._parameters, map(list, columns), strict=True))
        return tx.exec_driver_sql(form.sql, named).rowcount

    def _form(self, dialect: Dialect) -> _Form:
        converters = {
            place: convert
            for place, name in enumerate([*self._keys, *self._written])
            if (convert := self._table.c[name].type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        if dialect.name == "sqlite":
            keys = None if self._keys else self._written
            compiled = self._row_by_row().compile(dialect=dialect, column_keys=keys)
            places = [self._parameters.index(name) for name in compiled.positiontup or ()]
            return _Form(str(compiled), places, converters)
        return _Form(str(self._from_arrays().compile(dialect=dialect)), (), converters)

    def _row_by_row(self) -> Insert | Update:
        table = self._table
        if not self._keys:
            return insert(table)
        these = [table.c[name] == bindparam(f"of_{name}") for name in self._keys]
        return update(table).where(*these).values({name: bindparam(name) for name in self._written})

    def _from_arrays(self) -> Insert | Update:
        table, names = self._table, self._parameters
        kinds = [_unbounded(table.c[name].type) for name in (*self._keys, *self._written)]
        arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in zip(names, kinds, strict=True)]
        given = func.unnest(*arrays).table_valued(*[column(name) for name in names], name="given").render_derived()
        if not self._keys:
            return insert(table).from_select(names, select(*[given.c[name] for name in names]))
        these = [table.c[name] == given.c[f"of_{name}"] for name in self._keys]
        return update(table).where(*these).values({name: given.c[name] for name in self._written})


def _unbounded(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Drop a type's length: a cast would truncate longer values that the column rejects."""
    return String() if isinstance(kind, String) else kind
