"""Items of decisions, in rows by event: whatever sequence is written is read again, whole or its beginning."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select, update

from app.accounting.events import Gaussian, canonical, fingerprint
from app.ledger.decisions import DecisionEntry
from app.ledger.step_events import MAX_COUNT
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import decisions, dp_events, raw_rows, usage_history
from app.persistence.repositories.decision_items import group_items
from app.persistence.tables import accounts, decision_events, runs
from tests.conftest import open_ledger

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
    """A run without decisions, to which some are added for a while."""

    database: Database
    organisation_id: str
    run: str
    population: str

    @contextmanager
    def writes(self, *sequences: Items) -> Iterator[Connection]:
        """A transaction in which the run has a decision on each sequence, and that is rolled back."""
        with suppress(_UndoneError), self.database.write(ALL_TENANTS) as tx:
            decisions.add_all(tx, [(entry, b"x" * 32) for entry in self.entries(*sequences)])
            yield tx
            raise _UndoneError

    def entries(self, *sequences: Items) -> list[DecisionEntry]:
        """Decisions that admit such items one after another."""
        made: list[DecisionEntry] = []
        for items in sequences:
            first = made[-1].first_step + made[-1].step_count if made else 0
            steps = sum(count for _, count in items)
            made.append(
                DecisionEntry(
                    organisation_id=self.organisation_id,
                    run_id=self.run,
                    position=len(made),
                    attempt=1,
                    outcome="admitted",
                    idempotency_key=None,
                    request_fingerprint="0" * 64,
                    first_step=first,
                    step_count=steps,
                    requested_count=steps,
                    items=items,
                    reservation_id=None,
                    epsilon=0.5,
                    delta=1e-6,
                    epsilon_limit=1.0,
                    steps_remaining=0,
                    binding_account_id=self.population,
                    refusal_details=None,
                    ended_plans=None,
                    created_at=datetime(2026, 11, 23, tzinfo=UTC),
                    actor="key_test",
                )
            )
        return made


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Writer]:
    with open_ledger(tmp_path_factory.mktemp("ledger"), module_database_url) as ledger:
        population = str(ledger.population()["id"])
        ledger.budget()
        run = ledger.run()
        with ledger.database.write(ALL_TENANTS) as tx:
            owner = tx.execute(select(accounts.c.organisation_id).where(accounts.c.id == run)).scalar_one()
            dp_events.remember(tx, owner, EVENTS)
        yield Writer(ledger.database, owner, run, population)


@given(st.lists(sequences, min_size=1, max_size=3))
@example([((FIRST, 1),) * 1000])
@example([tuple((fingerprint(EVENTS[index % 3]), MAX_COUNT) for index in range(1000))])
def test_every_sequence_is_read_as_it_was_written(writer: Writer, sequences: list[Items]) -> None:
    with writer.writes(*sequences) as tx:
        assert [stored.entry for stored in raw_rows.entries(tx, writer.organisation_id, writer.run)] == writer.entries(
            *sequences
        )
        found = decisions.at_positions(tx, writer.organisation_id, writer.run, range(len(sequences)))
        assert [tuple((fingerprint(step.event), step.count) for step in each.steps) for each in found] == sequences
        rows = tx.execute(select(func.count()).select_from(decision_events)).scalar_one()
        assert rows == sum(len({event for event, _ in items[1:]}) for items in sequences)
        charged, kinds, steps = usage_history.charged_events(tx, writer.organisation_id, writer.run, 10)
        every = [item for items in sequences for item in items]
        assert {total.fingerprint: total.count for total in charged} == {
            event: sum(count for each, count in every if each == event) for event, _ in every
        }
        assert (kinds, steps) == (len(charged), sum(count for _, count in every))


def _beginning(items: Items, room: int) -> Items:
    """The items before the first that does not fit."""
    for index, (event, _) in enumerate(items):
        room -= decisions.EVENT_BYTES + LENGTHS[event]
        if room < 0:
            return items[:index]
    return items


@given(st.lists(sequences, min_size=1, max_size=3), st.integers(0, 60_000))
@example([((FIRST, 1), (SECOND, 2), (FIRST, 1), (THIRD, 1))], 3 * (decisions.EVENT_BYTES + 60))
def test_where_there_is_little_room_the_first_items_are_read(writer: Writer, sequences: list[Items], room: int) -> None:
    with writer.writes(*sequences) as tx, mock.patch.object(decisions, "EVENTS_ROOM", room):
        found = decisions.at_positions(tx, writer.organisation_id, writer.run, range(len(sequences)))
        for each, items in zip(found, sequences, strict=True):
            shown = tuple((fingerprint(step.event), step.count) for step in each.steps)
            assert shown == _beginning(items, room // len(sequences))


@settings(max_examples=200)
@given(sequences)
def test_a_row_names_each_item_once(items: Items) -> None:
    """As the documentation of the rows says it, and with no other reader."""
    read = {}
    for item, event, count, repeats in group_items(items):
        assert " " not in repeats
        others = [(each, 1) if isinstance(each, int) else each for each in json.loads(repeats)]
        for index, times in ((item, count - sum(times for _, times in others)), *others):
            assert index not in read
            read[index] = (event, times)
    assert read == dict(enumerate(items[1:], 1))


def test_the_form_of_a_row_is_the_one_that_is_documented() -> None:
    items = ((FIRST, 1), (SECOND, 1), (THIRD, 4), (SECOND, 1), (FIRST, 1), (SECOND, 6))
    assert group_items(items) == [(1, SECOND, 8, "[3,[5,6]]"), (2, THIRD, 4, "[]"), (4, FIRST, 1, "[]")]
    assert group_items(items[:1]) == []


def test_an_account_history_counts_all_items_of_the_events_that_come_first(writer: Writer) -> None:
    items = ((FIRST, 1), (SECOND, 2), (SECOND, 3), (FIRST, 4), (THIRD, 5), (SECOND, 6))
    with writer.writes(items) as tx:
        tx.execute(update(runs).values(decision_count=1))
        found = usage_history.events_of(tx, writer.organisation_id, writer.population, 10, 4)
        assert found == {(writer.run, 0): [(FIRST, 1), (SECOND, 11), (FIRST, 4)]}
