"""Statements that write many rows at once, put into SQL once: building them anew takes longer than executing them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Update


@dataclass(frozen=True, slots=True)
class _Form:
    """A statement as one kind of database takes it.

    Args:
        sql: with the driver's placeholders.
        names: of the parameters, in order, where the driver takes them by their place; None: by name.
        converters: of values that the driver does not take as they are.
    """

    sql: str
    names: Sequence[str] | None
    converters: Mapping[str, Callable[[Any], Any]]


class Bulk:
    """A statement that is executed once for each of many rows.

    Args:
        statement: an insert of whole rows, or an update.
    """

    def __init__(self, statement: Insert | Update) -> None:
        self._statement = statement
        self._forms: dict[str, _Form] = {}

    def execute(self, tx: Connection, rows: Sequence[Mapping[str, object]]) -> None:
        """Execute the statement.

        Args:
            tx: the caller's transaction.
            rows: values by the names of the parameters, as in Python; at least one row.
        """
        form = self._forms.get(tx.dialect.name)
        if form is None:
            form = self._forms[tx.dialect.name] = self._compiled(tx.dialect)
        converted = [{**row, **{name: convert(row[name]) for name, convert in form.converters.items()}} for row in rows]
        if form.names is None:
            tx.exec_driver_sql(form.sql, converted)
        else:
            tx.exec_driver_sql(form.sql, [tuple([row[name] for name in form.names]) for row in converted])

    def _compiled(self, dialect: Dialect) -> _Form:
        columns = [column.name for column in self._statement.table.c] if isinstance(self._statement, Insert) else None
        compiled = self._statement.compile(dialect=dialect, column_keys=columns)
        parameters = compiled.binds
        converters = {
            name: convert
            for name, parameter in parameters.items()
            if (convert := parameter.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        return _Form(str(compiled), compiled.positiontup if dialect.positional else None, converters)
