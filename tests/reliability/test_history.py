"""The checker that proves a ledger finds what is wrong: a journal that was forged does not agree with it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Ledger, open_ledger
from tests.reliability.clients import Trainer
from tests.reliability.history import Journal, Tally, check, tally


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """On SQLite: the checker is tried, not the database."""
    with open_ledger(tmp_path) as opened:
        yield opened


@pytest.fixture
def journal(ledger: Ledger) -> Journal:
    """Of a client with a few admissions and a refusal, by number, by key and by both."""
    ledger.population()
    ledger.budget()
    ledger.http.headers.update(ledger.headers("trainer"))
    trainer = Trainer(ledger.http, Journal(), 0)
    trainer.register("mimic/icu-team")
    trainer.ask({"first_step": 0, "count": 2}, None)
    trainer.ask({"count": 3}, "k-1")
    trainer.ask({"count": 10**7}, "k-2")
    trainer.again(trainer.ask({"first_step": 5}, "k-3"))
    return trainer.journal


def was_never_sent(journal: Journal) -> None:
    del journal.asked[0]


def was_acknowledged_but_is_lost(journal: Journal) -> None:
    answer = journal.asked[0].answers[0].json() | {"first_step": 6, "next_step": 8}
    lost = replace(journal.asked[0], body={"first_step": 6, "count": 2}, answers=[httpx2.Response(200, json=answer)])
    journal.asked.append(lost)


def was_told_other_numbers(journal: Journal) -> None:
    asked = journal.asked[1]
    answer = asked.answers[0].json()
    asked.answers[0] = httpx2.Response(200, json=answer | {"steps_remaining": answer["steps_remaining"] + 1})


def asked_for_something_else(journal: Journal) -> None:
    journal.asked[1].items = ((journal.asked[1].items[0][0], 4),)


def was_answered_in_two_ways(journal: Journal) -> None:
    journal.asked[3].answers[1] = httpx2.Response(200, json={})


def was_refused_by_another_key(journal: Journal) -> None:
    journal.asked[2].key = "k-9"


def was_refused_where_the_ledger_admitted(journal: Journal) -> None:
    journal.asked[1].answers[0] = journal.asked[2].answers[0]


def was_told_of_an_error(journal: Journal) -> None:
    journal.asked[0].answers[0] = httpx2.Response(500, json={"code": "internal_error"})


def test_an_honest_journal_agrees(ledger: Ledger, journal: Journal) -> None:
    check(journal, ledger.database)
    assert journal.admitted == 6
    assert tally(journal, ledger.database) == Tally(6, 0, 0, ())


@pytest.mark.parametrize(
    ("forge", "acknowledged", "lost", "doubled"),
    [(was_acknowledged_but_is_lost, 8, 2, 0), (asked_for_something_else, 7, 4, 3), (was_never_sent, 4, 0, 2)],
)
def test_what_is_lost_and_what_is_doubled_is_counted(
    ledger: Ledger, journal: Journal, forge: Callable[[Journal], None], acknowledged: int, lost: int, doubled: int
) -> None:
    forge(journal)
    found = tally(journal, ledger.database)
    assert (found.acknowledged, found.lost, found.doubled) == (acknowledged, lost, doubled)
    assert found.problems != ()


@pytest.mark.parametrize(
    "forge",
    [
        was_never_sent,
        was_acknowledged_but_is_lost,
        was_told_other_numbers,
        asked_for_something_else,
        was_answered_in_two_ways,
        was_refused_by_another_key,
        was_refused_where_the_ledger_admitted,
        was_told_of_an_error,
    ],
)
def test_a_forged_one_does_not(ledger: Ledger, journal: Journal, forge: Callable[[Journal], None]) -> None:
    forge(journal)
    with pytest.raises(AssertionError, match=r"run_\w+"):
        check(journal, ledger.database)
