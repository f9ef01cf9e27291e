"""Read rows cell by cell, reporting damaged cells and skipping their rows."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan
from typing import Any, Final, NoReturn, TypeVar

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Row,
    Select,
    String,
    Table,
    Text,
    bindparam,
    cast,
    select,
    type_coerce,
)
from sqlalchemy.engine import result_tuple
from sqlalchemy.types import NullType, TypeEngine

from app.accounting.errors import AccountingError
from app.ledger.errors import LedgerError, LedgerUnavailableError
from app.ledger.ids import id_of
from app.ledger.runs.origins import Origins, read_origins
from app.persistence.tables.base import NumberedId, Sha256Hex, StartsFrom, UtcDateTime

DAMAGED: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(AccountingError, LedgerError),
)
"""Exceptions that reading or using damaged rows may raise."""

T = TypeVar("T")

LONGEST: Final = 60
"""Maximum characters of a damaged value in a message."""

_OWNERS: Final = ("id", "run_id", "account_id", "path")
"""Columns that identify, besides a table's key, the owner of a row."""


@dataclass(frozen=True, slots=True)
class DamagedCell:
    """An unreadable cell, its row's key and owner if known, and the reason.

    The column is "*" if cells are readable, but invalid together.
    """

    table: str
    column: str
    row: Mapping[str, object]
    why: str

    def __str__(self) -> str:
        """Name table, row and column, and the error."""
        key = ", ".join(f"{name} {_shown(value)}" for name, value in self.row.items())
        return f"{self.table}.{self.column} of the row with {key} cannot be read: {self.why}"


Report = Callable[[DamagedCell], object]
"""Receives each damaged cell."""

Contents = Mapping[Column[Any], Callable[[Any], object]]
"""Validators for the contents of some columns; their results are ignored."""


def refuse(cell: DamagedCell) -> NoReturn:
    """Raise LedgerUnavailableError for a damaged cell, for callers that need every row."""
    raise LedgerUnavailableError(f"{cell}. Run `epsilon-ledger verify`.")


class TolerantQuery:
    """A SELECT of table columns that is read cell by cell.

    Neither the driver nor SQLAlchemy types convert values: one failure would abort the whole result. It is built once,
    for one organisation and for all: building takes longer than reading a few rows.

    Args:
        statement: selects columns; those of its first table have the key that identifies a row.
        contents: validators of columns, beyond their types.
        optional: outer-joined tables, whose columns may be empty.
        spare: unimportant columns: a damaged one is reported and replaced by None, and its row is kept.
    """

    def __init__(
        self,
        statement: Select[Any],
        contents: Contents | None = None,
        optional: Collection[Table] = (),
        spare: Collection[Column[Any]] = (),
    ) -> None:
        selected = [(each.key, each, _column(each)) for each in statement.selected_columns]
        self._statement = statement.with_only_columns(
            *(_raw(element, column).label(name) for name, element, column in selected), maintain_column_froms=True
        )
        self._columns = [column for _, _, column in selected]
        self._cells = [
            _cell_reader(column, (contents or {}).get(column), optional=column.table in optional)
            for column in self._columns
        ]
        self._spare = frozenset(spare)
        self._row: Callable[[list[Any]], Row[Any]] = result_tuple([str(name) for name, _, _ in selected])
        driving = self._columns[0].table
        owner = driving.c["organisation_id" if "organisation_id" in driving.c else "id"]
        self._of_one = self._statement.where(owner == bindparam("of_organisation"))
        known = {*driving.primary_key.columns.keys(), *_OWNERS}
        self._named = [
            (place, column.name)
            for place, column in enumerate(self._columns)
            if column.table is driving and column.name in known
        ]

    def rows(
        self, tx: Connection, organisation_id: str | None, report: Report = refuse, **parameters: object
    ) -> Iterator[Row[Any]]:
        """Yield the readable rows of one or every organisation, with columns as attributes; report the other cells."""
        cells = self._cells
        if organisation_id is None:
            result = tx.execute(self._statement, parameters)
        else:
            result = tx.execute(self._of_one, parameters | {"of_organisation": organisation_id})
        for row in result:
            try:
                read = [cell(value) for cell, value in zip(cells, row, strict=True)]
            except DAMAGED:
                undamaged = self._without_damage(row, report)
                if undamaged is None:
                    continue
                read = undamaged
            yield self._row(read)

    def objects(
        self, tx: Connection, organisation_id: str | None, make: Callable[[Row[Any]], T], report: Report = refuse
    ) -> Iterator[T]:
        """Yield `make` of the readable rows; report rows for which it fails."""
        for row in self.rows(tx, organisation_id, report):
            try:
                made = make(row)
            except DAMAGED as fault:
                report(self._damaged(row, self._columns[0].table.name, "*", fault))
            else:
                yield made

    def _without_damage(self, row: Row[Any], report: Report) -> list[Any] | None:
        """Report damaged cells; return the others if all damaged ones are spare."""
        read: list[Any] = []
        whole = True
        for column, cell, value in zip(self._columns, self._cells, row, strict=True):
            try:
                read.append(cell(value))
            except DAMAGED as fault:
                report(self._damaged(row, column.table.name, column.name, fault))
                read.append(None)
                whole = whole and column in self._spare
        return read if whole else None

    def _damaged(self, row: Row[Any], table: str, column: str, fault: Exception) -> DamagedCell:
        named = {name: _readable(self._cells[place], row[place]) for place, name in self._named}
        why = str(fault) if str(fault) and not isinstance(fault, LookupError) else f"{type(fault).__name__} {fault}"
        return DamagedCell(table, column, named, _printable(why))


def by_key(table: Table, contents: Contents | None = None) -> TolerantQuery:
    """Build the query for all rows of a table, by primary key."""
    return TolerantQuery(select(table).order_by(*table.primary_key), contents)


def _readable(read: Callable[[Any], Any], value: object) -> object:
    """Read a cell of a damaged row's key, or return it as it is stored."""
    try:
        return read(value)
    except DAMAGED:
        return value


def _column(element: Any) -> Column[Any]:  # noqa: ANN401 - a column, or its label
    found = getattr(element, "element", element)
    assert isinstance(found, Column), "columns of tables are selected, and nothing else"
    return found


def _raw(element: Any, column: Column[Any]) -> Any:  # noqa: ANN401 - elements of a SELECT
    """Select a column unconverted, times as text because PostgreSQL has infinite ones."""
    found = getattr(element, "element", element)
    return type_coerce(cast(found, Text) if isinstance(column.type, UtcDateTime) else found, NullType())


def _cell_reader(
    column: Column[Any], content: Callable[[Any], object] | None, *, optional: bool
) -> Callable[[Any], Any]:
    kind = _kind(column.type)
    may_be_empty = optional or column.nullable

    def read(value: Any) -> Any:  # noqa: ANN401 - whatever lies there
        if value is None:
            if may_be_empty:
                return None
            raise ValueError("it is empty")
        found = kind(value)
        if content is not None:
            content(found)
        return found

    return read


def _kind(kind: TypeEngine[Any]) -> Callable[[Any], Any]:
    return next(reads for type_, reads in _KINDS.items() if isinstance(kind, type_))


def _text(value: object) -> str:
    return value if type(value) is str else _wrong(value, "text")


def _whole(value: object) -> int:
    return value if type(value) is int else _wrong(value, "a whole number")


def _truth(value: object) -> bool:
    """Read a truth value, which SQLite stores as 0 or 1."""
    return bool(value) if type(value) in {bool, int} and value in {0, 1} else _wrong(value, "a truth value")


def _bytes(value: object) -> bytes:
    return value if type(value) is bytes else _wrong(value, "bytes")


def _number(value: object) -> float:
    return value if type(value) is float and not isnan(value) else _wrong(value, "a number")


_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)(?:\+00)?")
"""The format of both databases in UTC."""


def _moment(value: object) -> datetime:
    found = _MOMENT.fullmatch(value) if type(value) is str else None
    return _wrong(value, "a moment") if found is None else datetime.fromisoformat(found[1]).replace(tzinfo=UTC)


def _public_id(value: object) -> str:
    return id_of(_whole(value))


def _sha256(value: object) -> str:
    return _bytes(value).hex()


def _origins(value: object) -> Origins:
    return read_origins(_text(value))


_KINDS: Final = {
    StartsFrom: _origins,
    UtcDateTime: _moment,
    NumberedId: _public_id,
    Sha256Hex: _sha256,
    String: _text,
    Boolean: _truth,
    Integer: _whole,
    Float: _number,
    LargeBinary: _bytes,
}


def _wrong(value: object, due: str) -> NoReturn:
    raise TypeError(f"it holds {_shown(value)} where {due} is kept")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value.isidentifier() else ascii(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _printable(text: str) -> str:
    return text if text.isprintable() and text.isascii() else ascii(text)


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; raise ValueError for anything else."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{_shown(text)} is no object of JSON")  # noqa: TRY004 - a cell's value, not a type
    return found
