"""Every change made by hand is found by `verify`, or docs/explanation/verification.md gives the reason why not."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Column, Connection, String, create_engine, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import metadata
from app.persistence.tolerant import DamagedCell
from app.service.auth.authentication import CLI_ACTOR
from app.service.verification import VerificationReport, verify
from app.service.verification.report import VerificationContext
from app.service.verification.requests import apply_quarantines
from tests import postgres
from tests.conftest import furnished, need_postgresql
from tests.service.cell_changes import TABLES, Change, Copies, changes, zeroed
from tests.service.full_ledger import fill
from tests.service.tampering import EVERY_CHECK

DOCUMENT = Path(__file__).parents[2] / "docs/explanation/verification.md"
DELETED = "a deleted row"
THOROUGH = "RELIABILITY_ROUNDS" in os.environ
"""Whether each cell gets every value, each change is made by itself, too, and all of them on PostgreSQL."""


def _documented() -> set[tuple[str, str]]:
    """The columns that the document calls unproven, by table."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    return {
        (table, column or deleted)
        for table, names in rows
        for column, deleted in re.findall(rf"`(\w+)`|({DELETED})", names)
    }


@cache
def _source() -> sqlite3.Connection:
    _, file = furnished("sqlite", fill)
    source = sqlite3.connect(":memory:", check_same_thread=False)
    with closing(sqlite3.connect(file)) as kept:
        kept.backup(source)
    return source


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    made = Copies(_source(), tmp_path_factory.mktemp("copies") / "ledger.db")
    yield made
    made.database.dispose()


@pytest.mark.parametrize("table", TABLES)
def test_changed_cell_is_found_or_documented(copies: Copies, table: str) -> None:
    """One value for a cell, unless all are asked for, beside a balance that was zeroed: neither hides the other.

    Of rows of further kinds in a table, each sixth column.
    """
    account, damage = zeroed(_source(), "mimic")
    assert copies.changed(*damage)
    before = set(verify(copies.database).problems)
    assert len(before) == 1
    missed, taken = set(), set()
    for change in changes(_source(), TABLES[table], spread=1 if THOROUGH else 6):
        cell = (change.key, change.column)
        if (cell in taken and not THOROUGH) or not copies.changed(*damage, change):
            continue
        taken.add(cell)
        found = verify(copies.database)
        assert account in found.unproven, str(change)
        hidden = not set(found.problems) - before
        if hidden:
            missed.add((table, change.column or DELETED))
        if THOROUGH and copies.changed(change):
            assert verify(copies.database).sound == hidden, str(change)
    assert len(taken) > len(TABLES[table].columns)
    assert missed == {(name, column) for name, column in _documented() if name == table}


UNREADABLE = {
    "a kind of proposals": ("proposals", "kind", "x"),
    "what was proposed": ("proposals", "payload", "{"),
    "a policy": ("accounts", "policy", "1"),
    "a price's delta": ("event_costs", "curve_delta", -1),
    "a relation": ("event_costs", "neighboring_relation", "replace_none"),
    "a population's relation": ("populations", "neighboring_relation", "replace_none"),
    "a key's end": ("api_keys", "expires_at", 1),
    "that a key is for one run": ("api_keys", "single_use", 2),
    "text that is none": ("organisations", "name", b"\xff\xfe"),
    "a curve": ("balances", "held_curve", "x"),
    "a nest of brackets": ("accounts", "planned_events", "[" * 100_000),
    "an outcome's time": ("decisions", "created_at", "infinity"),
    "a number of steps": ("decision_events", "count", "many"),
    "an alert": ("alerts", "payload", "[]"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_cell_is_named_and_the_rest_is_verified(copies: Copies, what: str) -> None:
    table, column, value = UNREADABLE[what]
    account, damage = zeroed(_source(), "überall")
    key = [each.name for each in TABLES[table].primary_key]
    where = {
        "accounts": "WHERE kind = 'budget'",
        "balances": "WHERE account_id IN (SELECT id FROM accounts WHERE kind = 'run')",
    }.get(table, "")
    row = _source().execute(f"SELECT {', '.join(key)} FROM {table} {where}").fetchone()  # noqa: S608 - names of tables
    change = Change(table, tuple(zip(key, row, strict=True)), column, value)
    assert copies.changed(*damage, change)
    found = apply_quarantines(copies.database, verify(copies.database), CLI_ACTOR, datetime.now(UTC))
    assert any(f"{table}.{column} of the row with" in problem for problem in found.problems), found.problems
    assert account in verify(copies.database).quarantined


def test_damaged_cells_are_not_compared_with_each_other(copies: Copies) -> None:
    compared = 0

    class Counted(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    with copies.database.read(ALL_TENANTS) as tx:
        audit = VerificationContext(tx)
        for place in [*range(100), 0]:
            row = {"organisation_id": Counted("org_1"), "run_id": "run_1", "position": place}
            audit.report(DamagedCell("decisions", "created_at", row, "it is no moment"))
    assert (len(audit.discrepancies), compared) == (100, 0)  # of a million, every pair would be


@dataclass(frozen=True)
class _Within:
    """A database of which a verification sees what is not committed."""

    tx: Connection

    @contextmanager
    def read(self, _whose: object, *, patient: bool = False) -> Iterator[Connection]:
        del patient
        yield self.tx
        self.tx.execution_options(yield_per=None, stream_results=False)  # a verification streams what it reads


@contextmanager
def _free() -> Iterator[Connection]:
    """A transaction on PostgreSQL that heeds no constraint and is never committed."""
    _, name = furnished("postgresql", fill)
    database = Database(postgres.shared().url(name, "ledger"))
    with closing(database.engine.connect()) as tx:
        tx.exec_driver_sql("SET session_replication_role = replica")
        for table, constraint in tx.exec_driver_sql(EVERY_CHECK.replace("%", "%%")).all():
            tx.exec_driver_sql(f'ALTER TABLE {table} DROP CONSTRAINT "{constraint}"')
        yield tx
        tx.rollback()
    database.dispose()


@contextmanager
def _in_memory(tx: Connection) -> Iterator[sqlite3.Connection]:
    """The rows of a database in a SQLite that is asked what to change."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    with engine.begin() as made:
        for table in metadata.sorted_tables:
            rows = [dict(row) for row in tx.execute(select(table)).mappings()]
            if rows:
                made.execute(insert(table), rows)
    with closing(engine.raw_connection()) as raw:
        yield cast("sqlite3.Connection", raw.driver_connection)
    engine.dispose()


def _tried(tx: Connection, change: Change) -> VerificationReport | None:
    """What a verification finds of a change that is undone again; None: PostgreSQL does not take it."""
    undone = tx.begin_nested()
    try:
        tx.exec_driver_sql(*change.statement("%s"))
    except DBAPIError:
        return None
    else:
        return verify(cast("Database", _Within(tx)))
    finally:
        undone.rollback()


def _wanted() -> set[tuple[str, str]]:
    """One column of each type, which is what the databases differ in, and their rows; unless all are asked for."""
    of_type: dict[str, list[tuple[str, str]]] = {}
    for table in TABLES.values():
        for column in table.columns:
            of_type.setdefault(_kind(column), []).append((table.name, column.name))
    columns = {cell for cells in of_type.values() for cell in (cells if THOROUGH else cells[:1])}
    return columns | {(table, DELETED) for table, _ in columns}


def _kind(column: Column[Any]) -> str:
    """The type of a column, and whether it may be empty; of texts, whose lengths make no difference to readers, one."""
    kind = "text" if isinstance(column.type, String) else type(column.type).__name__
    return f"{kind}, {column.nullable}"


@pytest.mark.postgresql
def test_changed_cell_on_postgresql_is_found_or_documented() -> None:
    """One value for a column, unless all are asked for: what its type takes."""
    need_postgresql()
    taken: set[tuple[str, str]] = set()
    missed: set[tuple[str, str]] = set()
    wanted = _wanted()
    with _free() as tx, _in_memory(tx) as file:
        account, damage = zeroed(file, "mimic")
        for change in damage:
            tx.exec_driver_sql(*change.statement("%s"))
        before = set(verify(cast("Database", _Within(tx))).problems)
        assert len(before) == 1
        for change in (change for table in TABLES.values() for change in changes(file, table)):
            cell = (change.table, change.column or DELETED)
            found = _tried(tx, change) if cell in wanted and (THOROUGH or cell not in taken) else None
            if found is not None:
                taken.add(cell)
                assert account in found.unproven, str(change)
                if not set(found.problems) - before:
                    missed.add(cell)
    assert len(taken) > sum(column != DELETED for _, column in wanted)
    assert missed <= _documented()
