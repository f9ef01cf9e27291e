"""Items of decisions, in rows by event: whatever sequence is written is read again, whole or its beginning."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, func, select, update

from app.accounting.events import Gaussian, canonical, fingerprint
from app.ledger.runs.decisions import DecisionEntry
from app.ledger.step_events import MAX_COUNT
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import decisions, dp_events, raw_rows, usage_history
from app.persistence.repositories.decision_items import group_items
from app.persistence.tables import accounts, decision_events, decision_ranges, runs
from app.persistence.tables import decisions as decision_rows
from tests.conftest import open_ledger
from tests.soak import few

EVENTS = [Gaussian(noise) for noise in (60.0, 70.25, 1e6)]
FIRST, SECOND, THIRD = map(fingerprint, EVENTS)
LENGTHS = {fingerprint(event): len(canonical(event)) for event in EVENTS}

Items = tuple[tuple[str, int], ...]

counts = st.just(1) | st.integers(1, 20) | st.just(MAX_COUNT)
sequences = st.lists(st.tuples(st.sampled_from(sorted(LENGTHS)), counts), min_size=1, max_size=40).map(tuple)


class _UndoneError(Exception):
    """Nothing of a transaction is to stay."""


@dataclass(frozen=True)
class Writer:
    """A run without decisions, to which some like the template are added for a while."""

    database: Database
    template: DecisionEntry
    population: str

    @property
    def run(self) -> tuple[str, str]:
        """Its organisation and its id."""
        return self.template.organisation_id, self.template.run_id

    @contextmanager
    def writes(self, *sequences: Items) -> Iterator[tuple[Connection, list[DecisionEntry]]]:
        """A transaction in which the run has a decision on each sequence, and that is rolled back."""
        entries: list[DecisionEntry] = []
        for items in sequences:
            first = entries[-1].first_step + entries[-1].step_count if entries else 0
            steps = sum(count for _, count in items)
            placed = self.template._replace(position=len(entries), first_step=first, items=items)
            entries.append(placed._replace(step_count=steps, requested_count=steps))
        with suppress(_UndoneError), self.database.write(ALL_TENANTS) as tx:
            decisions.add_all(tx, [(entry, b"x" * 32) for entry in entries])
            yield tx, entries
            raise _UndoneError


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Writer]:
    with open_ledger(tmp_path_factory.mktemp("ledger"), module_database_url) as ledger:
        population = str(ledger.population()["id"])
        ledger.budget()
        run = ledger.run()
        assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        with ledger.database.write(ALL_TENANTS) as tx:
            owner = tx.execute(select(accounts.c.organisation_id).where(accounts.c.id == run)).scalar_one()
            dp_events.remember(tx, owner, EVENTS)
            [stored] = raw_rows.entries(tx, owner, run)
            for table in (decision_ranges, decision_rows):
                tx.execute(delete(table))
        yield Writer(ledger.database, stored.entry, population)


@few(15)
@given(st.lists(sequences, min_size=1, max_size=3))
@example([((FIRST, 1),) * 1000])
@example([tuple((fingerprint(EVENTS[index % 3]), MAX_COUNT) for index in range(1000))])
@pytest.mark.both_databases
def test_sequence_is_read_as_it_was_written(writer: Writer, sequences: list[Items]) -> None:
    with writer.writes(*sequences) as (tx, entries):
        assert [stored.entry for stored in raw_rows.entries(tx, *writer.run)] == entries
        found = decisions.at_positions(tx, *writer.run, range(len(sequences)))
        assert [tuple((fingerprint(step.event), step.count) for step in each.steps) for each in found] == sequences
        rows = tx.execute(select(func.count()).select_from(decision_events)).scalar_one()
        assert rows == sum(len({event for event, _ in items[1:]}) for items in sequences)
        charged, kinds, steps = usage_history.charged_events(tx, *writer.run, 10)
        counted: Counter[str] = Counter()
        for event, count in (item for items in sequences for item in items):
            counted[event] += count
        assert {total.fingerprint: total.count for total in charged} == counted
        assert (kinds, steps) == (len(charged), counted.total())


def _beginning(items: Items, room: int) -> Items:
    """The items before the first that does not fit."""
    for index, (event, _) in enumerate(items):
        room -= decisions.EVENT_BYTES + LENGTHS[event]
        if room < 0:
            return items[:index]
    return items


@few(15)
@given(st.lists(sequences, min_size=1, max_size=3), st.integers(0, 60_000))
@example([((FIRST, 1), (SECOND, 2), (FIRST, 1), (THIRD, 1))], 3 * (decisions.EVENT_BYTES + 60))
@pytest.mark.both_databases
def test_first_items_are_read_when_there_is_little_room(writer: Writer, sequences: list[Items], room: int) -> None:
    with writer.writes(*sequences) as (tx, _), mock.patch.object(decisions, "EVENTS_ROOM", room):
        found = decisions.at_positions(tx, *writer.run, range(len(sequences)))
        for each, items in zip(found, sequences, strict=True):
            shown = tuple((fingerprint(step.event), step.count) for step in each.steps)
            assert shown == _beginning(items, room // len(sequences))


@settings(max_examples=200)
@given(sequences)
def test_row_names_each_item_once(items: Items) -> None:
    """As the documentation of the rows says it, and with no other reader."""
    read = {}
    for item, event, count, repeats in group_items(items):
        assert " " not in repeats
        others = [(each, 1) if isinstance(each, int) else each for each in json.loads(repeats)]
        for index, times in ((item, count - sum(times for _, times in others)), *others):
            assert index not in read
            read[index] = (event, times)
    assert read == dict(enumerate(items[1:], 1))


def test_form_of_a_row_is_the_documented_one() -> None:
    items = ((FIRST, 1), (SECOND, 1), (THIRD, 4), (SECOND, 1), (FIRST, 1), (SECOND, 6))
    assert group_items(items) == [(1, SECOND, 8, "[3,[5,6]]"), (2, THIRD, 4, "[]"), (4, FIRST, 1, "[]")]
    assert group_items(items[:1]) == []


@pytest.mark.both_databases
def test_history_of_an_account_counts_all_items_of_its_first_events(writer: Writer) -> None:
    items = ((FIRST, 1), (SECOND, 2), (SECOND, 3), (FIRST, 4), (THIRD, 5), (SECOND, 6))
    with writer.writes(items) as (tx, _):
        tx.execute(update(runs).values(decision_count=1))
        found = usage_history.events_of(tx, writer.run[0], writer.population, 10, 4)
        assert found == {(writer.run[1], 0): [(FIRST, 1), (SECOND, 11), (FIRST, 4)]}
