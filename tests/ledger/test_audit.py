"""The hash chain: one text for each entry, and another hash for whatever is said otherwise."""

import json
from datetime import UTC, datetime, timedelta, timezone
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.decisions import DecisionEntry, canonical_entry, entry_hash, genesis
from tests.soak import few

TEXT = st.text(max_size=20)
COUNT = st.integers(0, 2**62)
REAL = st.floats(0, 1e6)
ENTRIES = st.builds(
    DecisionEntry,
    organisation_id=TEXT,
    run_id=TEXT,
    position=COUNT,
    attempt=COUNT,
    outcome=st.sampled_from(["admitted", "refused", "reported", "forfeited"]),
    idempotency_key=st.none() | TEXT,
    request_fingerprint=TEXT,
    first_step=COUNT,
    step_count=COUNT,
    requested_count=COUNT,
    items=st.lists(st.tuples(TEXT, COUNT), max_size=3).map(tuple),
    reservation_id=st.none() | TEXT,
    epsilon=REAL | st.just(inf),
    delta=REAL,
    epsilon_limit=REAL,
    steps_remaining=st.none() | COUNT,
    binding_account_id=TEXT,
    refusal_details=st.none() | TEXT,
    ended_plans=st.none() | TEXT,
    created_at=st.integers(0, 2**52).map(lambda us: datetime(1970, 1, 2, tzinfo=UTC) + timedelta(microseconds=us)),
    actor=TEXT,
    request_id=st.none() | TEXT,
)
ENTRY = DecisionEntry(
    organisation_id="org_1",
    run_id="run_1",
    position=3,
    attempt=1,
    outcome="admitted",
    idempotency_key="key",
    request_fingerprint="f" * 64,
    first_step=7,
    step_count=2,
    requested_count=2,
    items=(("a" * 64, 2),),
    reservation_id=None,
    epsilon=0.5,
    delta=1e-5,
    epsilon_limit=3.0,
    steps_remaining=12,
    binding_account_id="bud_1",
    refusal_details=None,
    ended_plans=None,
    created_at=datetime(2026, 12, 1, 9, 30, tzinfo=UTC),
    actor="key_1",
)


def test_hash_formula_never_changes() -> None:
    assert genesis("org_1", "run_1").hex() == "b7a94a342d850cc139ba0f25a0aeb4d2cbd34e4f79e5587985b5753ebae0a61c"
    assert canonical_entry(ENTRY) == (
        '{"actor":"key_1","attempt":1,"binding_account_id":"bud_1","created_at":"2026-12-01T09:30:00.000000+00:00",'
        '"delta":1e-05,"ended_plans":null,"epsilon":0.5,"epsilon_limit":3.0,"first_step":7,"idempotency_key":"key","items":[["'
        + "a"
        * 64
        + '",2]],'
        '"organisation_id":"org_1","outcome":"admitted","position":3,"refusal_details":null,"request_fingerprint":"'
        + "f"
        * 64
        + '","request_id":null,"requested_count":2,"reservation_id":null,"run_id":"run_1",'
        '"step_count":2,"steps_remaining":12}'
    )
    assert entry_hash(genesis("org_1", "run_1"), ENTRY).hex() == (
        "61f710a7c8f4d2a492df1adab92e13ffeaa74cd38c2f3f9e8cae58e369d4fef4"
    )


@few(15)
@given(ENTRIES)
def test_entry_is_written_as_canonical_json(entry: DecisionEntry) -> None:
    facts: dict[str, Any] = entry._asdict()
    facts["created_at"] = entry.created_at.strftime("%Y-%m-%dT%H:%M:%S.%f+00:00")
    facts["epsilon"] = None if entry.epsilon == inf else entry.epsilon
    text = canonical_entry(entry)
    assert text == json.dumps(facts, sort_keys=True, separators=(",", ":"))
    assert json.loads(text) == facts | {"items": [list(item) for item in entry.items]}
    assert text.isascii()


@few(15)
@given(ENTRIES, ENTRIES)
def test_entries_that_differ_in_one_field_have_different_hashes(entry: DecisionEntry, other: DecisionEntry) -> None:
    previous = genesis("o", "r")
    for name in DecisionEntry._fields:
        changed = entry._replace(**{name: getattr(other, name)})
        assert (entry_hash(previous, changed) == entry_hash(previous, entry)) == (changed == entry), name


@few(15)
@given(ENTRIES, st.integers(-14, 14))
def test_a_moment_has_one_text_in_every_time_zone(entry: DecisionEntry, hours: int) -> None:
    elsewhere = entry._replace(created_at=entry.created_at.astimezone(timezone(timedelta(hours=hours))))
    assert canonical_entry(elsewhere) == canonical_entry(entry)


def test_whole_numbers_for_floats_have_the_text_of_floats() -> None:
    assert canonical_entry(ENTRY._replace(epsilon=1, epsilon_limit=3)) == canonical_entry(ENTRY._replace(epsilon=1.0))


@pytest.mark.parametrize(("one", "other"), [(("a", "bc"), ("ab", "c")), (("a", "b"), ("b", "a"))])
def test_every_run_has_a_beginning_of_its_own(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert genesis(*one) != genesis(*other)
