"""Items of a decision that come several times: damaged rows are named, and shown nowhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import decisions as stored_decisions
from app.persistence.repositories.raw_rows import list_runs
from app.service.verification.verify import verify
from tests.service.prepared_ledgers import copied
from tests.service.tampering import MODEL, run_of, tampering
from tests.service.test_tampering import on_item


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with copied("repeats", tmp_path) as opened:
        yield opened


FAR = f"{10**4000}{10**4000}"
"""A number of more digits than Python reads."""

REPEATS = [
    # Items that are missing, or twice, or others; the second number is the sum of the row's counts.
    *(("[[5,2]]", 3), ("[3]", 2), ("[]", 4), ("[3,3,[5,2]]", 5), ("[1,3,[5,2]]", 5), ("[2,3,[5,2]]", 5)),
    *(("[-1,[5,2]]", 4), ("[3,[6,2]]", 4), (f"[3,[{10**18},2]]", 4), (f"[3,[{FAR},2]]", 4), ("[5,[3,2]]", 4)),
    # Other counts.
    *(("[3,[5,1]]", 4), ("[3,[5,3]]", 5), ("[3,[5,0]]", 2), ("[3,[5,-2]]", 0), (f"[3,[5,{10**9 + 1}]]", 4)),
    *(("[3,[5,2]]", 3), ("[3,[5,2]]", 5), ("[3,[5,2]]", 0), ("[3,[5,2]]", -(2**62)), ("[3,[5,2]]", 2**62)),
    # No list of indexes and counts.
    *((text, 4) for text in ("", "[3,[5,2]", "[" * 100_000, '{"3":[5,2]}', '"35"', "3", "[3.0,[5,2]]", "[3,[5,NaN]]")),
    *((text, 4) for text in ("[[3,true],[5,2]]", "[3,[5,2],true]", '[3,[5,"2"]]', "[null,[5,2]]", "[3,[5,2,1]]")),
    ("[[true,1],3,[5,2]]", 5),
]


def test_damaged_repeats_are_named_and_leave_the_run_unproven(database: Database) -> None:
    for repeats, count in REPEATS:
        with tampering(database) as tx:
            on_item(1, repeats=repeats, count=count)(tx)
            run = run_of(tx)
        found = verify(database)
        said = (repeats[:40], count, found.problems)
        assert any(MODEL in problem for problem in found.problems), said
        assert run in {account for _, account in found.unproven}, said
        assert found.checked["decisions"] == 1, said


def test_unreadable_items_are_named_with_their_row_and_shown_nowhere(database: Database) -> None:
    with tampering(database) as tx:
        on_item(1, repeats="[3,[5,2]")(tx)
        run = run_of(tx)
    [problem] = [each for each in verify(database).problems if "decision_events.repeats of the row" in each]
    assert "position 0, item 1 cannot be read" in problem
    with database.read(ALL_TENANTS) as tx:
        [(owner, _)] = list_runs(tx)
        with pytest.raises(LedgerUnavailableError, match=r"decision_events\.repeats"):
            stored_decisions.at_positions(tx, owner, run, [0])
