"""Every change made by hand is found by `verify`, or docs/explanation/verification.md gives the reason why not."""
# ruff: noqa: S608 - the names are those of the tables

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Column, Float, Integer, LargeBinary, Table

from app.ledger.ids import id_of
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import metadata
from app.persistence.tables.base import UtcDateTime
from app.persistence.tolerant_rows import DamagedCell
from app.service.auth.authentication import CLI_ACTOR
from app.service.verification.report import VerificationContext
from app.service.verification.requests import apply_quarantines
from app.service.verification.verify import verify
from tests.conftest import furnished
from tests.service.full_ledger import fill

DOCUMENT = Path(__file__).parents[2] / "docs/explanation/verification.md"
TABLES = {table.name: table for table in metadata.sorted_tables}
DELETED = "a deleted row"
THOROUGH = "RELIABILITY_ROUNDS" in os.environ
"""Whether each cell of each kind of row gets every value, and each change is made alone."""

KINDS = {"accounts": "kind", "decisions": "outcome"}
"""Tables of which one row of each kind is changed; of the others one row."""

OF_MODEL = r"icu-team/model |\breservation_items\b|\battempts\b|\brun_anchors\b"
KNOWN_BY = {
    **{name: rf"\b{name}\b" for name in ("account_labels", "account_metadata", "account_usage_snapshots", "alerts")},
    **{name: rf"\b{name}\b" for name in ("api_keys", "block_schedules", "deliveries", "experiments", "proposals")},
    **{name: rf"\b{name}\b" for name in ("idempotent_responses", "receivers", "sessions", "sign_in_links")},
    "checkpoints": "the checkpoint after",
    "data_blocks": "as it was opened: block",
    "partition_attestations": "no attestation|opened: (attest|replacement)",
    "populations": "berall",
    "runs": "icu-team/sweep",
    "verifications": r"\bverifications\b",
    **dict.fromkeys(("attempts", "decision_events", "decision_ranges", "reservation_items"), OF_MODEL),
    **dict.fromkeys(("reservations", "run_anchors"), OF_MODEL),
}
"""Words in each problem of a changed row by table; without a table, such a change hides what others are found by."""


@dataclass(frozen=True)
class Change:
    """One cell that somebody changes, or, without a column, a row that is deleted."""

    table: str
    key: tuple[tuple[str, Any], ...]
    column: str | None
    value: object = None

    @property
    def cell(self) -> tuple[str, str]:
        return self.table, self.column or DELETED

    def statement(self) -> tuple[str, tuple[object, ...]]:
        """SQL and its parameters."""
        where = " AND ".join(f'"{name}" = ?' for name, _ in self.key)
        values = tuple(value for _, value in self.key)
        if self.column is None:
            return f"DELETE FROM {self.table} WHERE {where}", values
        return f'UPDATE {self.table} SET "{self.column}" = ? WHERE {where}', (self.value, *values)


def changes(file: sqlite3.Connection, table: Table) -> Iterator[Change]:
    """Change each column to several wrong values, and delete a row; unless thorough, of one kind of row in turn."""
    key = [column.name for column in table.primary_key]
    chosen = [tuple(zip(key, values, strict=True)) for values in _chosen(file, table, key)]
    for place, column in enumerate(table.columns):
        for row in chosen if THOROUGH else [chosen[place % len(chosen)]]:
            where = " AND ".join(f'"{name}" = ?' for name, _ in row)
            asked = f'SELECT "{column.name}" FROM {table.name} WHERE {where}'
            [before] = file.execute(asked, [value for _, value in row]).fetchone()
            tried = {repr(value): value for value in _values(file, table, column, before)}
            tried.pop(repr(before), None)
            yield from (Change(table.name, row, column.name, value) for value in tried.values())
    yield from (Change(table.name, row, None) for row in chosen[: None if THOROUGH else 1])


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


def _values(file: sqlite3.Connection, table: Table, column: Column[Any], before: Any) -> Iterator[object]:  # noqa: ANN401 - a cell
    """Wrong values for a cell; the first is that of another row, if there is one, which is the hardest to find."""
    other = file.execute(
        f'SELECT "{column.name}" FROM {table.name} WHERE "{column.name}" IS NOT ? ORDER BY rowid DESC', (before,)
    ).fetchone()
    yield from () if other is None or other[0] is None else other
    yield from [None] if column.nullable else ()
    kind = getattr(column.type, "impl_instance", column.type)  # what a column of ids or hashes is stored as
    if isinstance(column.type, UtcDateTime):
        yield from ("2026-01-01 00:00:00.000000", "infinity", 1)
    elif isinstance(kind, LargeBinary):
        yield from (bytes([(before or b"\0")[0] ^ 1]) + (before or b"")[1:], "x")
    elif isinstance(kind, Integer):
        yield from ((before or 0) + 1, (before or 0) - 1, 2**62, "x")
    elif isinstance(kind, Float):
        yield from ((before or 1.0) * 1.5, -1.0, "NaN")
    else:
        for rule in table.constraints:
            if isinstance(rule, CheckConstraint) and f"{column.name} IN" in str(rule.sqltext):
                yield from re.findall(r"'(\w+)'", str(rule.sqltext))[:3]
        yield from (f"{before or ''}x", "{", "1", b"\xff\x00")


def zeroed(file: sqlite3.Connection, path: str) -> tuple[tuple[str, str], list[Change]]:
    """An account, and what makes it snapshot as if nothing had been charged to it."""
    asked = "SELECT organisation_id, id FROM accounts WHERE path = ?"
    owner, account = file.execute(asked, (path,)).fetchone()
    balance = (("organisation_id", owner), ("account_id", account))
    row = (("organisation_id", owner), ("id", account))
    made = [Change("balances", balance, "spent_curve", b""), Change("accounts", row, "uncompacted_charges", "{}")]
    return (id_of(owner), id_of(account)), made


@dataclass
class Copies:
    """A SQLite file that is put back as it was before each change."""

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
                    file.execute(*change.statement())
            except sqlite3.IntegrityError:
                return False
            return True


def _documented() -> set[tuple[str, str]]:
    """The columns that the document calls unproven, by table."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    found = {table: re.findall(rf"`(\w+)`|({DELETED})", names) for table, names in rows}
    return {(table, column or deleted) for table, cells in found.items() for column, deleted in cells}


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


def _known_by(change: Change) -> str:
    if change.table == "decisions":
        asked = "SELECT path FROM accounts WHERE id = ?"
        [path] = _source().execute(asked, (dict(change.key)["run_id"],)).fetchone()
        return OF_MODEL if path == "mimic/icu-team/model" else f"{path} "
    return KNOWN_BY.get(change.table, "")


def _is_named(words: str, change: Change, problem: str) -> bool:
    """Whether a problem is about a change: by its words, or as a cell that cannot be read."""
    return bool(re.search(words, problem)) or f"{change.table}.{change.column} of the row" in problem


def _rounds(copies: Copies) -> list[dict[str, Change]]:
    """Changes by the words of their problems; those of a round, of which none has the words of another, are one test.

    One value for a cell that the database takes, unless all are asked for.
    """
    rounds: list[dict[str, Change]] = []
    taken: set[tuple[object, ...]] = set()
    for table in TABLES.values():
        for change in changes(_source(), table):
            if ((change.key, change.cell) in taken and not THOROUGH) or not copies.changed(change):
                continue
            taken.add((change.key, change.cell))
            words = _known_by(change)
            place = next((each for each in rounds if words and "" not in each and words not in each), None)
            if place is None or THOROUGH:
                rounds.append({words: change})
            else:
                place[words] = change
    cells = {(table, column) for table in TABLES for column in (*TABLES[table].columns.keys(), DELETED)}
    assert {change.cell for each in rounds for change in each.values()} >= cells
    return rounds


def test_changed_cell_is_found_or_documented(copies: Copies) -> None:
    """Beside a balance that was zeroed: neither hides the other."""
    account, damage = zeroed(_source(), "mimic")
    assert copies.changed(*damage)
    before = set(verify(copies.database).problems)
    assert len(before) == 1
    missed: list[Change] = []
    for made in _rounds(copies):
        assert copies.changed(*damage, *made.values())
        found = verify(copies.database)
        assert account in found.unproven, made
        problems = set(found.problems) - before
        hidden = [each for words, each in made.items() if not any(_is_named(words, each, said) for said in problems)]
        missed += hidden
        if THOROUGH and copies.changed(*made.values()):
            assert verify(copies.database).sound == bool(hidden), made
    assert {change.cell for change in missed} == _documented()
    assert copies.changed(*damage, *missed)
    assert set(verify(copies.database).problems) == before


UNREADABLE = [
    ("proposals", "kind", "x"),
    ("proposals", "payload", "{"),
    ("accounts", "policy", "1"),
    ("event_costs", "curve_delta", -1),
    ("event_costs", "neighboring_relation", "replace_none"),
    ("populations", "neighboring_relation", "replace_none"),
    ("api_keys", "expires_at", 1),
    ("api_keys", "single_use", 2),
    ("organisations", "name", b"\xff\xfe"),
    ("organisations", "id", -1),
    ("organisations", "id", "x"),
    ("balances", "held_curve", "x"),
    ("accounts", "planned_events", "[" * 100_000),
    ("decisions", "created_at", "infinity"),
    ("decision_events", "count", "many"),
    ("alerts", "payload", "[]"),
]


@pytest.mark.parametrize(("table", "column", "value"), UNREADABLE)
def test_unreadable_cell_is_named_and_the_rest_verified(copies: Copies, table: str, column: str, value: object) -> None:
    account, damage = zeroed(_source(), "überall")
    key = [each.name for each in TABLES[table].primary_key]
    runs = "WHERE account_id IN (SELECT id FROM accounts WHERE kind = 'run')"
    where = {"accounts": "WHERE kind = 'budget'", "balances": runs}.get(table, "")
    row = _source().execute(f"SELECT {', '.join(key)} FROM {table} {where}").fetchone()
    assert copies.changed(*damage, Change(table, tuple(zip(key, row, strict=True)), column, value))
    found = apply_quarantines(copies.database, verify(copies.database), CLI_ACTOR, datetime.now(UTC))
    assert any(f"{table}.{column} of the row with" in problem for problem in found.problems), found.problems
    assert account in verify(copies.database).quarantined


def test_damaged_cell_is_reported_once(copies: Copies) -> None:
    with copies.database.read(ALL_TENANTS) as tx:
        audit = VerificationContext(tx)
        for place in (1, 2, 1):
            row = {"organisation_id": "org_1", "run_id": "run_1", "position": place}
            audit.report(DamagedCell("decisions", "created_at", row, "it is no moment"))
    assert len(audit.discrepancies) == 2
