"""Canonical JSON is RFC 8785's: the same text for the same JSON, however it was written before."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from math import inf, nan

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from app.ledger.audit import AuditEntry, canonical, canonical_audit_entry, utc_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53) + 1, 2**53 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.builds(
    AuditEntry,
    organisation_id=TEXT,
    position=st.integers(0, 2**53 - 1),
    actor=TEXT,
    action=TEXT,
    subject=TEXT,
    before=st.none() | TEXT,
    after=st.none() | TEXT,
    reason=st.none() | TEXT,
    request_id=st.none() | TEXT,
    created_at=st.integers(0, 2**52).map(lambda us: datetime(1970, 1, 2, tzinfo=UTC) + timedelta(microseconds=us)),
)


@given(JSON)
@example([1e16, 1e20, 2.0**53, 1.7976931348623157e308])
def test_canonical_json_is_the_same_for_any_earlier_text(value: object) -> None:
    text = canonical(value)
    assert canonical(json.loads(text)) == text
    assert canonical(json.loads(json.dumps(value, indent=2))) == text


@given(ENTRIES)
def test_an_audit_entry_s_text_is_that_of_the_library(entry: AuditEntry) -> None:
    facts = {name: value for name, value in asdict(entry).items() if name != "entry_hash"}
    text = canonical_audit_entry(entry)
    assert text.encode() == rfc8785.dumps(facts | {"created_at": utc_text(entry.created_at)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # The examples of RFC 8785, sections 3.2.2 and 3.2.3, and its appendix B.
        (
            {"numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001]},
            '{"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}',
        ),
        ({"string": '\u20ac$\u000f\u000aA\'\u0042"\u005c"/'}, '{"string":"€$\\u000f\\nA\'B\\"\\\\\\"/"}'),
        (
            {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7},
            '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}',
        ),
        (
            [5e-324, -0.0, 1e21, 999999999999999900000.0, 1e-6, 1e-7],
            "[5e-324,0,1e+21,999999999999999900000,0.000001,1e-7]",
        ),
        ([3.0, 1e-5, True, None], "[3,0.00001,true,null]"),
    ],
)
def test_canonical_json_is_that_of_the_standards_examples(value: object, text: str) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize("value", [inf, -inf, nan, 2**53 + 1, 2**62 - 1, [10**400], "\ud800", {1: 2}])
def test_value_that_json_cannot_hold_exactly_is_refused(value: object) -> None:
    with pytest.raises((ValueError, OverflowError)):
        canonical(value)
