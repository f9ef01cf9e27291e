"""Every cell of a ledger, changed by hand: other values for a column, and rows that are deleted."""
# ruff: noqa: S608 - the names are those of the tables

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, Float, Integer, LargeBinary, Table

from app.ledger.ids import id_of
from app.persistence.database import Database
from app.persistence.tables import metadata
from app.persistence.tables.base import UtcDateTime

BIG: Final = 2**62
KINDS: Final = {"accounts": "kind", "decisions": "outcome"}
"""Tables of which one row of each kind is changed; of the others one row."""

_QUOTED: Final = re.compile(r"'(\w+)'")


@dataclass(frozen=True)
class Change:
    """One cell, or one row, that somebody changes.

    Args:
        table: where.
        key: values of the row's key, by column.
        column: of the table; None: the row is deleted.
        value: what is written there.
    """

    table: str
    key: tuple[tuple[str, Any], ...]
    column: str | None
    value: object = None

    def __str__(self) -> str:
        """Name the change."""
        what = "deleted" if self.column is None else f"{self.column} = {str(self.value)[:40]!r}"
        return f"{self.table} {[value for _, value in self.key]}: {what}"

    def statement(self, mark: str) -> tuple[str, tuple[object, ...]]:
        """SQL and its parameters, for a driver that marks them so."""
        where = " AND ".join(f'"{name}" = {mark}' for name, _ in self.key)
        values = tuple(value for _, value in self.key)
        if self.column is None:
            return f"DELETE FROM {self.table} WHERE {where}", values
        return f'UPDATE {self.table} SET "{self.column}" = {mark} WHERE {where}', (self.value, *values)


def changes(file: sqlite3.Connection, table: Table, spread: int = 1) -> Iterator[Change]:
    """Change each column of a row to several wrong values, and delete the row; of each further kind one value.

    The first value for a column is that of another row, if there is one, which is the hardest to find.

    Args:
        file: whose rows are looked at.
        table: one of its tables.
        spread: of a row of a further kind, each so many-th column is changed; of the next kind, the next ones.
    """
    key = [column.name for column in table.primary_key]
    for number, values in enumerate(_chosen(file, table, key)):
        row = tuple(zip(key, values, strict=True))
        for place, column in enumerate(table.columns):
            if number > 0 and (place - number) % spread:
                continue
            yield from list(_of_cell(file, table, column, row))[: None if number == 0 else 1]
        yield Change(table.name, row, None)


def _chosen(file: sqlite3.Connection, table: Table, key: list[str]) -> list[tuple[Any, ...]]:
    """The keys of the rows that say most, of each kind."""
    said = " + ".join(f'("{column.name}" IS NOT NULL)' for column in table.columns)
    kind = KINDS.get(table.name, "''")
    # Not that of the zeroed population, nor one that is exhausted: no change of that one is a change.
    team = "WHERE account_id IN (SELECT id FROM accounts WHERE path = 'mimic/icu-team')"
    other = team if table.name == "balances" else ""
    names = ", ".join(f'"{name}"' for name in key)
    found = file.execute(f"SELECT {names}, max({said}) FROM {table.name} {other} GROUP BY {kind} ORDER BY {names}")
    return [row[: len(key)] for row in found]


def _of_cell(
    file: sqlite3.Connection, table: Table, column: Column[Any], row: tuple[tuple[str, Any], ...]
) -> Iterator[Change]:
    where = " AND ".join(f'"{name}" = ?' for name, _ in row)
    asked = f'SELECT "{column.name}" FROM {table.name} WHERE {where}'
    [before] = file.execute(asked, [value for _, value in row]).fetchone()
    seen = {repr(before)}
    for value in _values(file, table, column, before):
        if repr(value) not in seen:
            seen.add(repr(value))
            yield Change(table.name, row, column.name, value)


def _values(file: sqlite3.Connection, table: Table, column: Column[Any], before: Any) -> Iterator[object]:  # noqa: ANN401 - a cell
    other = file.execute(
        f'SELECT "{column.name}" FROM {table.name} WHERE "{column.name}" IS NOT ? ORDER BY rowid DESC', (before,)
    ).fetchone()
    if other is not None and other[0] is not None:
        yield other[0]
    if column.nullable:
        yield None
    kind = getattr(column.type, "impl_instance", column.type)  # what a column of ids or hashes is stored as
    if isinstance(column.type, UtcDateTime):
        yield "2026-01-01 00:00:00.000000"
        yield "infinity"
        yield 1
    elif isinstance(kind, LargeBinary):
        yield bytes([(before or b"\0")[0] ^ 1]) + (before or b"")[1:]
        yield "x"
    elif isinstance(kind, Integer):
        yield (before or 0) + 1
        yield (before or 0) - 1
        yield BIG
        yield "x"
    elif isinstance(kind, Float):
        yield (before or 1.0) * 1.5
        yield -1.0
        yield "NaN"
    else:
        yield from _texts(table, column, before)


def _texts(table: Table, column: Column[Any], before: str | None) -> Iterator[object]:
    for rule in table.constraints:
        if isinstance(rule, CheckConstraint) and f"{column.name} IN" in str(rule.sqltext):
            yield from _QUOTED.findall(str(rule.sqltext))[:3]
    yield f"{before or ''}x"
    yield "{"
    yield "1"
    yield b"\xff\x00"


@dataclass
class Copies:
    """A SQLite file that is put back as it was before each change.

    Args:
        source: what it is a copy of.
        path: the file.
    """

    source: sqlite3.Connection
    path: Path

    def __post_init__(self) -> None:
        """Make the file."""
        self.changed()
        self.database = Database(f"sqlite:///{self.path}")

    def changed(self, *made: Change) -> bool:
        """Put the file back, and make changes, whatever the constraints say; whether the database took them."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as file:
            self.source.backup(file)
            file.execute("PRAGMA foreign_keys = OFF")
            file.execute("PRAGMA ignore_check_constraints = ON")
            try:
                for change in made:
                    file.execute(*change.statement("?"))
            except sqlite3.IntegrityError:
                return False
            return True


def zeroed(file: sqlite3.Connection, path: str) -> tuple[tuple[str, str], list[Change]]:
    """An account, and what makes it look as if nothing had been charged to it."""
    asked = "SELECT organisation_id, id FROM accounts WHERE path = ?"
    owner, account = file.execute(asked, (path,)).fetchone()
    balance = (("organisation_id", owner), ("account_id", account))
    row = (("organisation_id", owner), ("id", account))
    made = [Change("balances", balance, "spent_curve", b""), Change("accounts", row, "uncompacted_charges", "{}")]
    return (id_of(owner), id_of(account)), made


TABLES: Final = {table.name: table for table in metadata.sorted_tables}
