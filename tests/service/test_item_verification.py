"""The items of a decision in their rows, damaged: each damage is named, and ends no verification."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import decisions, raw_rows
from app.persistence.tables import decision_events
from app.service.verification import verify
from tests.service.prepared_ledgers import copied
from tests.service.tampering import MODEL, run_of, set_item, tampering

FAR = f"{10**4000}{10**4000}"
"""A number of more digits than Python reads."""

REPEATS = [
    # Items that are missing, or twice, or others; the second number is the sum of the row's counts.
    *(("[[5,2]]", 3), ("[3]", 2), ("[]", 1), ("[]", 4), ("[3,3,[5,2]]", 5), ("[3,[3,2],[5,2]]", 6)),
    *(("[1,3,[5,2]]", 5), ("[2,3,[5,2]]", 5), ("[0,3,[5,2]]", 5), ("[-1,[5,2]]", 4), ("[3,[6,2]]", 4)),
    *((f"[3,[{10**18},2]]", 4), (f"[3,[{10**400},2]]", 4), (f"[3,[{FAR},2]]", 4), ("[5,[3,2]]", 4)),
    # Other counts.
    *(("[3,[5,1]]", 4), ("[3,[5,3]]", 5), ("[3,[5,0]]", 2), ("[3,[5,-2]]", 0), (f"[3,[5,{10**9 + 1}]]", 4)),
    *((f"[3,[5,{10**400}]]", 4), ("[3,[5,2]]", 3), ("[3,[5,2]]", 5), ("[3,[5,2]]", 0)),
    *(("[3,[5,2]]", -(2**62)), ("[3,[5,2]]", 2**62)),
    # No list of indexes and counts.
    *((text, 4) for text in ("", "x", "[3,[5,2]", "[3,[5,2]]]", "[" * 100_000, '{"3":[5,2]}', "{}", '"35"', '""', "3")),
    *((text, 4) for text in ("null", "[3.0,[5,2]]", "[3,[5.0,2]]", "[3,[5,2.0]]", "[3,[5,NaN]]", "[3,[5,Infinity]]")),
    *((text, 4) for text in ("[[3,true],[5,2]]", "[3,[5,2],true]", '["3",[5,2]]', '[3,[5,"2"]]', "[null,[5,2]]")),
    *((text, 4) for text in ("[[3],[5,2]]", "[3,[5,2,1]]", "[3,[5,[2]]]", '[3,{"5":2}]')),
    ("[[true,1],3,[5,2]]", 5),
]
ROWS: dict[str, Callable[[Connection], object]] = {
    "another first index": lambda tx: set_item(tx, 0, item=7),
    "a first index below none": lambda tx: set_item(tx, 0, item=-1),
    "another event": lambda tx: set_item(tx, 0, event_fingerprint="0" * 64),
    "its row deleted": lambda tx: tx.execute(delete(decision_events).where(decision_events.c.item == 1)),
    "the last row deleted": lambda tx: tx.execute(delete(decision_events).where(decision_events.c.item == 4)),
    "all rows deleted": lambda tx: tx.execute(delete(decision_events)),
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with copied("repeats", tmp_path) as opened:
        yield opened


def _is_named(database: Database, tamper: Callable[[Connection], object]) -> None:
    with tampering(database) as tx:
        tamper(tx)
        run = run_of(tx)
    found = verify(database)
    assert any(MODEL in problem for problem in found.problems), found.problems
    assert run in {account for _, account in found.unproven}
    assert found.checked["decisions"] == 1


@pytest.mark.parametrize(("repeats", "count"), REPEATS, ids=lambda value: str(value)[:20])
def test_damaged_repeats_are_named_and_leave_the_run_unproven(database: Database, repeats: str, count: int) -> None:
    _is_named(database, lambda tx: set_item(tx, 0, repeats=repeats, count=count))


@pytest.mark.parametrize("what", ROWS)
def test_damaged_item_rows_are_named_and_leave_the_run_unproven(database: Database, what: str) -> None:
    _is_named(database, ROWS[what])


def test_unreadable_items_are_named_with_their_row_and_shown_nowhere(database: Database) -> None:
    with tampering(database) as tx:
        set_item(tx, 0, repeats="[3,[5,2]")
        run = run_of(tx)
    [problem] = [each for each in verify(database).problems if "decision_events.repeats of the row" in each]
    assert "position 0, item 1 cannot be read" in problem
    with database.read(ALL_TENANTS) as tx:
        [owner] = [each.organisation_id for each in raw_rows.list_runs(tx)]
        with pytest.raises(LedgerUnavailableError, match=r"decision_events\.repeats"):
            decisions.at_positions(tx, owner, run, [0])
