"""The hash chain: one text for each entry, another hash for whatever is said otherwise, and JSON as RFC 8785 has it."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from app.ledger.audit import AuditEntry, canonical, canonical_audit_entry, utc_text
from app.ledger.runs.decisions import DecisionEntry, canonical_entry, entry_hash, genesis
from tests.soak import few

TEXT = st.text(max_size=20)
CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MOMENTS = st.integers(0, 2**52).map(lambda us: datetime(1970, 1, 2, tzinfo=UTC) + timedelta(microseconds=us))
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53) + 1, 2**53 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | CHARACTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(CHARACTERS, inner, max_size=4),
    max_leaves=12,
)
AUDITED = st.builds(
    AuditEntry,
    position=st.integers(0, 2**53 - 1),
    **dict.fromkeys(("organisation_id", "actor", "action", "subject"), CHARACTERS),
    **dict.fromkeys(("before", "after", "reason", "request_id"), st.none() | CHARACTERS),
    created_at=MOMENTS,
)
COUNT = st.integers(0, 2**62)
REAL = st.floats(0, 1e6)
ENTRIES = st.builds(
    DecisionEntry,
    outcome=st.sampled_from(["admitted", "refused", "reported", "forfeited"]),
    **dict.fromkeys(("organisation_id", "run_id", "request_fingerprint", "binding_account_id", "actor"), TEXT),
    **dict.fromkeys(("position", "attempt", "first_step", "step_count", "requested_count"), COUNT),
    population_version=COUNT,
    **dict.fromkeys(
        ("idempotency_key", "reservation_id", "refusal_details", "ended_plans", "warnings", "request_id"),
        st.none() | TEXT,
    ),
    items=st.lists(st.tuples(TEXT, COUNT), max_size=3).map(tuple),
    epsilon=REAL | st.just(inf),
    limit_unit=st.sampled_from(["epsilon", "rho", "mu"]),
    limit_value=REAL,
    limit_delta=REAL,
    used=REAL,
    steps_remaining=st.none() | COUNT,
    created_at=MOMENTS,
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
    limit_unit="epsilon",
    limit_value=3.0,
    limit_delta=1e-5,
    used=0.25,
    steps_remaining=12,
    population_version=9,
    binding_account_id="bud_1",
    refusal_details=None,
    ended_plans=None,
    warnings=None,
    created_at=datetime(2026, 12, 1, 9, 30, tzinfo=UTC),
    actor="key_1",
)


def test_hash_formula_never_changes() -> None:
    assert genesis("org_1", "run_1").hex() == "b7a94a342d850cc139ba0f25a0aeb4d2cbd34e4f79e5587985b5753ebae0a61c"
    assert canonical_entry(ENTRY) == (
        '{"actor":"key_1","attempt":1,"binding_account_id":"bud_1","created_at":"2026-12-01T09:30:00.000000+00:00",'
        '"ended_plans":null,"epsilon":0.5,"first_step":7,"idempotency_key":"key",'
        f'"items":[["{"a" * 64}",2]],"limit_delta":1e-05,"limit_unit":"epsilon","limit_value":3.0,'
        '"organisation_id":"org_1","outcome":"admitted","population_version":9,'
        '"position":3,'
        f'"refusal_details":null,"request_fingerprint":"{"f" * 64}","request_id":null,"requested_count":2,'
        '"reservation_id":null,"run_id":"run_1","step_count":2,"steps_remaining":12,"used":0.25,"warnings":null}'
    )
    assert entry_hash(genesis("org_1", "run_1"), ENTRY).hex() == (
        "3fb43827e06cbe45250b289d761feab6248cf1e60f688f4e49b7305356e7e6c9"
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
    assert canonical_entry(ENTRY._replace(epsilon=1, limit_value=3)) == canonical_entry(ENTRY._replace(epsilon=1.0))


@pytest.mark.parametrize(("one", "other"), [(("a", "bc"), ("ab", "c")), (("a", "b"), ("b", "a"))])
def test_every_run_has_a_beginning_of_its_own(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert genesis(*one) != genesis(*other)


@given(JSON)
@example([1e16, 1e20, 2.0**53, 1.7976931348623157e308])
def test_canonical_json_is_the_same_for_any_earlier_text(value: object) -> None:
    text = canonical(value)
    assert canonical(json.loads(text)) == text
    assert canonical(json.loads(json.dumps(value, indent=2))) == text


@given(AUDITED)
def test_an_audit_entry_s_text_is_that_of_the_library(entry: AuditEntry) -> None:
    facts = {name: value for name, value in asdict(entry).items() if name != "entry_hash"}
    text = canonical_audit_entry(entry)
    assert text.encode() == rfc8785.dumps(facts | {"created_at": utc_text(entry.created_at)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # The examples of RFC 8785, sections 3.2.2 and 3.2.3, and its appendix B.
        ([333333333.33333329, 1e30, 4.50, 2e-3, 1e-27], "[333333333.3333333,1e+30,4.5,0.002,1e-27]"),
        ({"string": '\u20ac$\u000f\u000aA\'\u0042"\u005c"/'}, '{"string":"€$\\u000f\\nA\'B\\"\\\\\\"/"}'),
        (
            {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7},
            '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}',
        ),
        ([5e-324, -0.0, 1e21, 999999999999999900000.0, 1e-6], "[5e-324,0,1e+21,999999999999999900000,0.000001]"),
        ([3.0, 1e-5, True, None], "[3,0.00001,true,null]"),
    ],
)
def test_canonical_json_is_that_of_the_standards_examples(value: object, text: str) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize("value", [inf, -inf, nan, 2**53 + 1, 2**62 - 1, [10**400], "\ud800", {1: 2}])
def test_value_that_json_cannot_hold_exactly_is_refused(value: object) -> None:
    with pytest.raises((ValueError, OverflowError)):
        canonical(value)
