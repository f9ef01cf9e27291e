"""Bulk writes by precompiled statements: compiling one takes longer than executing it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnClause,
    Connection,
    Dialect,
    Float,
    Insert,
    Integer,
    LargeBinary,
    String,
    Table,
    TableValuedAlias,
    Update,
    bindparam,
    column,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy.types import TypeEngine

from app.ledger.errors import LedgerUnavailableError
from app.persistence import pipeline, sqlite
from app.persistence.postgresql import CITUS, has_citus
from app.persistence.tables import organisations
from app.persistence.tables.base import NumberedId, Sha256Hex, UtcDateTime, stored_number

Rows = Sequence[tuple[object, ...]]

_OWNER: Final = "owner_number"
"""The parameter with the integer of the organisation, for Citus."""

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
        name = CITUS if tx.dialect.name == "postgresql" and has_citus(tx) else tx.dialect.name
        form = self._forms.get(name)
        if form is None:
            form = self._forms[name] = self._form(name, tx.dialect)
        form.execute(tx, rows)

    def _form(self, name: str, dialect: Dialect) -> "_RowByRow | _FromArrays":
        if name == "sqlite":
            return self._row_by_row(dialect)
        return self._from_arrays_of_one_owner(dialect) if name == CITUS else self._from_arrays(dialect)

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
        given = self._given
        statement: Insert | Update = insert(table).from_select(names, select(*[given.c[name] for name in names]))
        if self._keys:
            statement = self._update
        sql = str(statement.compile(dialect=dialect))
        return _FromArrays(_required(sql, names[0]) if self._keys else sql, self._writers)

    def _from_arrays_of_one_owner(self, dialect: Dialect) -> "_FromArrays":
        """Build the form for Citus, which finds the worker by an organisation that is a parameter of its own."""
        table, names = self._table, list(self._parameters)
        given, owner = self._given, bindparam(_OWNER, type_=BigInteger)
        # From the organisation's row: rows of no table would be copied, which row-level security refuses.
        rows = [organisations.c.id if name == "organisation_id" else given.c[name] for name in names]
        found = select(*rows).select_from(organisations.join(given, true())).where(organisations.c.id == owner)
        statement: Insert | Update = insert(table).from_select(names, found)
        if self._keys:
            statement = self._update.where(table.c.organisation_id == owner)
        place = names.index("of_organisation_id" if self._keys else "organisation_id")
        return _FromArrays(_required(str(statement.compile(dialect=dialect)), names[place]), self._writers, place)

    @property
    def _given(self) -> TableValuedAlias:
        """The rows, from an array per column."""
        arrays = [bindparam(name, type_=ARRAY(_unbounded(each.type))) for name, each in self._parameters.items()]
        columns: list[ColumnClause[Any]] = [column(name) for name in self._parameters]
        return func.unnest(*arrays).table_valued(*columns, name="given").render_derived()

    @property
    def _update(self) -> Update:
        table, given = self._table, self._given
        these = [table.c[name] == given.c[f"of_{name}"] for name in self._keys]
        return update(table).where(*these).values({name: given.c[name] for name in self._written})

    @property
    def _writers(self) -> "dict[str, Callable[[Sequence[Any]], str]]":
        return {name: _writer(each.type) for name, each in self._parameters.items()}


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
        owner: the place of the organisation in a row, if it is a parameter of its own, by which Citus finds the worker.
    """

    sql: str
    writers: Mapping[str, Callable[[Sequence[Any]], str]]
    owner: int | None = None

    def execute(self, tx: Connection, rows: Rows) -> None:
        """Write all rows at once."""
        columns = zip(self.writers.items(), zip(*rows, strict=True), strict=True)
        values: dict[str, object] = {name: write(column) for (name, write), column in columns}
        if self.owner is not None:
            values[_OWNER] = stored_number(str(rows[0][self.owner]))
        pipeline.execute(tx, self.sql, values)


def _required(sql: str, numbers: str) -> str:
    """Let a statement fail unless it writes each row, of which a parameter has an array of numbers."""
    return pipeline.required(f"{sql} RETURNING 1", f"cardinality(%({numbers})s::bigint[])")


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
