"""The items of a decision in their rows, damaged: each damage is named, and ends no verification."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, delete

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import decisions, raw_rows
from app.persistence.tables import decision_events
from app.service.verification import verify
from tests.conftest import Ledger
from tests.service.tampering import MODEL, run_of, set_item, tampering

NOISES = [60.0, 70.0, 80.0, 70.0, 90.0, 70.0]
COUNTS = [1, 1, 3, 1, 1, 2]


def _charge(ledger: Ledger) -> None:
    """A run with one decision, whose second event comes three times: row 1 has 4 steps and the repeats [3,[5,2]]."""
    ledger.population()
    ledger.budget()
    events = [
        {"event": {"type": "gaussian", "noise_multiplier": noise}, "count": count}
        for noise, count in zip(NOISES, COUNTS, strict=True)
    ]
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"events": events}).status_code == 200


FURNISHED = {"charged": _charge}


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


def _repeats(text: str, count: int = 4) -> Callable[[Connection], None]:
    return lambda tx: set_item(tx, 0, repeats=text, count=count)


DAMAGES: dict[str, Callable[[Connection], object]] = {
    "an item that is missing": _repeats("[[5,2]]", 3),
    "the last item missing": _repeats("[3]", 2),
    "all repeats missing": _repeats("[]", 1),
    "repeats missing, and counted elsewhere": _repeats("[]"),
    "an item twice": _repeats("[3,3,[5,2]]", 5),
    "an item twice with other counts": _repeats("[3,[3,2],[5,2]]", 6),
    "its own first item again": _repeats("[1,3,[5,2]]", 5),
    "the item of another event": _repeats("[2,3,[5,2]]", 5),
    "the item of the decision's own row": _repeats("[0,3,[5,2]]", 5),
    "an item before all": _repeats("[-1,[5,2]]"),
    "an item behind all": _repeats("[3,[6,2]]"),
    "an item very far behind": _repeats(f"[3,[{10**18},2]]"),
    "an item at a place of many digits": _repeats(f"[3,[{10**400},2]]"),
    "an item at a place of too many digits": _repeats(f"[3,[{10**4000}{10**4000},2]]"),
    "items exchanged": _repeats("[5,[3,2]]"),
    "another count": _repeats("[3,[5,1]]"),
    "another count, and the sum with it": _repeats("[3,[5,3]]", 5),
    "a count of none": _repeats("[3,[5,0]]", 2),
    "a count below none": _repeats("[3,[5,-2]]", 0),
    "a count that is too large": _repeats(f"[3,[5,{10**9 + 1}]]"),
    "a count of many digits": _repeats(f"[3,[5,{10**400}]]"),
    "no text": _repeats(""),
    "no JSON": _repeats("x"),
    "a list without an end": _repeats("[3,[5,2]"),
    "more behind the list": _repeats("[3,[5,2]]]"),
    "brackets only": _repeats("[" * 100_000),
    "an object": _repeats('{"3":[5,2]}'),
    "an empty object": _repeats("{}"),
    "a text": _repeats('"35"'),
    "an empty text": _repeats('""'),
    "a number": _repeats("3"),
    "nothing": _repeats("null"),
    "a fraction for an index": _repeats("[3.0,[5,2]]"),
    "a fraction for the index of several": _repeats("[3,[5.0,2]]"),
    "a fraction for a count": _repeats("[3,[5,2.0]]"),
    "no number": _repeats("[3,[5,NaN]]"),
    "no end": _repeats("[3,[5,Infinity]]"),
    "a truth for an index": _repeats("[[true,1],3,[5,2]]", 5),
    "a truth for a count": _repeats("[[3,true],[5,2]]"),
    "a truth for an item": _repeats("[3,[5,2],true]"),
    "a text for an index": _repeats('["3",[5,2]]'),
    "a text for a count": _repeats('[3,[5,"2"]]'),
    "nothing for an item": _repeats("[null,[5,2]]"),
    "an index without its count": _repeats("[[3],[5,2]]"),
    "three numbers": _repeats("[3,[5,2,1]]"),
    "a nest of lists": _repeats("[3,[5,[2]]]"),
    "an object for an item": _repeats('[3,{"5":2}]'),
    "a sum that is too small": lambda tx: set_item(tx, 0, count=3),
    "a sum that is too large": lambda tx: set_item(tx, 0, count=5),
    "a sum of none": lambda tx: set_item(tx, 0, count=0),
    "a sum below none": lambda tx: set_item(tx, 0, count=-(2**62)),
    "a sum of very many": lambda tx: set_item(tx, 0, count=2**62),
    "another first index": lambda tx: set_item(tx, 0, item=7),
    "a first index below none": lambda tx: set_item(tx, 0, item=-1),
    "another event": lambda tx: set_item(tx, 0, event_fingerprint="0" * 64),
    "its row deleted": lambda tx: tx.execute(delete(decision_events).where(decision_events.c.item == 1)),
    "the last row deleted": lambda tx: tx.execute(delete(decision_events).where(decision_events.c.item == 4)),
    "all rows deleted": lambda tx: tx.execute(delete(decision_events)),
}


@pytest.mark.both_databases
def test_items_are_sound_before(charged: Ledger) -> None:
    assert verify(charged.database).sound


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_items_are_named_and_leave_the_run_unproven(charged: Ledger, what: str) -> None:
    with tampering(charged.database) as tx:
        DAMAGES[what](tx)
        run = run_of(tx)
    found = verify(charged.database)
    assert any(MODEL in problem for problem in found.problems), found.problems
    assert run in {account for _, account in found.unproven}
    assert found.checked["decisions"] == 1


def test_what_cannot_be_read_is_named_with_its_row(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        set_item(tx, 0, repeats="[3,[5,2]")
    named = [
        problem for problem in verify(charged.database).problems if "decision_events.repeats of the row" in problem
    ]
    assert len(named) == 1
    assert "position 0, item 1 cannot be read" in named[0]


def test_what_cannot_be_read_is_shown_nowhere(charged: Ledger) -> None:
    with tampering(charged.database) as tx:
        set_item(tx, 0, repeats="[3,[5,2]")
        run = run_of(tx)
    with charged.database.read(ALL_TENANTS) as tx:
        [owner] = [each.organisation_id for each in raw_rows.list_runs(tx)]
        with pytest.raises(LedgerUnavailableError, match=r"decision_events\.repeats"):
            decisions.at_positions(tx, owner, run, [0])
    assert charged.get(f"/v1/runs/{run}/history").status_code == 503
