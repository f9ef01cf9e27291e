"""Every cell of a ledger, changed by hand: other values for a column, and the rows that are changed."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, Float, Integer, LargeBinary, Table

from app.persistence.engine import Database
from app.persistence.tables import metadata
from app.persistence.tables.base import UtcDateTime

BIG: Final = 2**62
_QUOTED: Final = re.compile(r"'(\w+)'")


@dataclass(frozen=True)
class Change:
    """One cell, or one row, that somebody changes.

    Args:
        table: where.
        column: of the table; None: the row is deleted.
        rowid: which row.
        value: what is written there.
    """

    table: str
    column: str | None
    rowid: int
    value: object = None

    def __str__(self) -> str:
        """Name the change."""
        what = "deleted" if self.column is None else f"{self.column} = {str(self.value)[:40]!r}"
        return f"{self.table}[{self.rowid}] {what}"

    def make(self, file: sqlite3.Connection) -> None:
        """Write it, whatever the constraints say."""
        where = f"WHERE rowid = {self.rowid}"
        if self.column is None:
            file.execute(f"DELETE FROM {self.table} {where}")
        else:
            file.execute(f'UPDATE {self.table} SET "{self.column}" = ? {where}', (self.value,))


def changes(file: sqlite3.Connection) -> Iterator[Change]:
    """Every change of some rows of every table: each column to several wrong values, and the row deleted."""
    for table in metadata.sorted_tables:
        for rowid in _chosen(file, table):
            for column in table.columns:
                yield from _of_cell(file, table, column, rowid)
            yield Change(table.name, None, rowid)


def _chosen(file: sqlite3.Connection, table: Table) -> list[int]:
    """The rows that say most; of accounts one of each kind."""
    said = " + ".join(f'("{column.name}" IS NOT NULL)' for column in table.columns)
    kinds = "kind" if table.name == "accounts" else "outcome" if table.name == "decisions" else "''"
    found = file.execute(f"SELECT rowid, {kinds}, max({said}) FROM {table.name} GROUP BY {kinds} ORDER BY rowid")
    return [row[0] for row in found]


def _of_cell(file: sqlite3.Connection, table: Table, column: Column[Any], rowid: int) -> Iterator[Change]:
    [before] = file.execute(f'SELECT "{column.name}" FROM {table.name} WHERE rowid = {rowid}').fetchone()
    seen = {repr(before)}
    for value in _values(file, table, column, before):
        if repr(value) not in seen:
            seen.add(repr(value))
            yield Change(table.name, column.name, rowid, value)


def _values(file: sqlite3.Connection, table: Table, column: Column[Any], before: Any) -> Iterator[object]:  # noqa: ANN401 - a cell
    other = file.execute(
        f'SELECT "{column.name}" FROM {table.name} WHERE "{column.name}" IS NOT ? ORDER BY rowid DESC', (before,)
    ).fetchone()
    if other is not None and other[0] is not None:
        yield other[0]
    if column.nullable:
        yield None
    if isinstance(column.type, UtcDateTime):
        yield "2026-01-01 00:00:00.000000"
        yield 1
    elif isinstance(column.type, LargeBinary):
        yield bytes([(before or b"\0")[0] ^ 1]) + (before or b"")[1:]
        yield "x"
    elif isinstance(column.type, Integer):
        yield (before or 0) + 1
        yield -1
        yield BIG
        yield "x"
    elif isinstance(column.type, Float):
        yield (before or 1.0) * 1.5
        yield -1.0
        yield "x"
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
    """A SQLite file that is put back as it was after each change.

    Args:
        source: what it is a copy of.
        path: the file.
    """

    source: sqlite3.Connection
    path: Path

    def changed(self, *made: Change) -> None:
        """Put the file back, and make changes."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as file:
            self.source.backup(file)
            file.execute("PRAGMA foreign_keys = OFF")
            file.execute("PRAGMA ignore_check_constraints = ON")
            for change in made:
                change.make(file)

    def database(self) -> Database:
        """The file as the service opens it."""
        return Database(f"sqlite:///{self.path}")
