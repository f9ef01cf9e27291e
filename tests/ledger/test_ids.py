"""Ids and the integers that are stored for them: one for one, in the same order, and none for any other text."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import ids
from app.service.ids import RANDOM_DIGITS, is_of, new_id

NUMBERS = st.integers(0, (len(ids.PREFIXES) << ids.BITS) - 1)
IDS = NUMBERS.map(ids.id_of)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2500, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - as it asks
OTHERS = ("evt", "exp", "key", "prp", "res", "ses", "ver", "rcv")


@given(NUMBERS, NUMBERS)
def test_ids_and_integers_are_one_to_one_and_in_the_same_order(one: int, other: int) -> None:
    first, second = ids.id_of(one), ids.id_of(other)
    assert (ids.number_of(first), ids.number_of(second)) == (one, other)
    assert (first < second, first == second) == (one < other, one == other)
    assert (first.encode() < second.encode()) == (one < other)


@pytest.mark.parametrize(
    "text",
    [
        *("", "run", "run_", "_", "000000000000000", "_000000000000000", "run000000000000000", "run-000000000000000"),
        *("run_00000000000000", "run_0000000000000000", "run_0000000000000000000000000000"),
        *("RUN_000000000000000", "Run_000000000000000", "run_00000000000000A", "run_00000000000000g"),
        *(" run_000000000000000", "run_000000000000000 ", "run_000000000000000\n", "run_ 00000000000000"),
        *("run_+00000000000000", "run_-00000000000001", "run_0x0000000000000", "run_0000000_0000000"),
        *("run_00000000000000\u0661", "run_00000000000000\uff11", "r\u00fcn_000000000000000", "run_000000000000000\0"),
        *("key_000000000000000", "res_000000000000000", "mimic/icu-team/model", "run_000000000000000'--"),
    ],
)
def test_no_other_text_has_an_integer(text: str) -> None:
    assert ids.number_of(text) == ids.NO_NUMBER
    assert not ids.is_id(text)


@pytest.mark.parametrize("number", [-(2**63), -1, len(ids.PREFIXES) << ids.BITS, 2**63 - 1])
def test_no_other_integer_has_an_id(number: int) -> None:
    with pytest.raises(ValueError, match="no id has the number"):
        ids.id_of(number)


def test_the_integer_in_hexadecimal_is_that_of_the_prefix_and_the_digits() -> None:
    """As docs/operations/runbook.md says."""
    assert [f"{ids.number_of(f'{prefix}_19aa5b3c4d7b0c1'):016x}" for prefix in ("bud", "org", "pop", "run")] == [
        f"{digit}19aa5b3c4d7b0c1" for digit in range(4)
    ]


@given(IDS)
def test_the_bounds_of_a_prefix_hold_its_ids_and_no_others(public_id: str) -> None:
    for prefix in ids.PREFIXES:
        least, greatest = ids.bounds(prefix)
        assert ids.is_id(least)
        assert ids.is_id(greatest)
        assert (least <= public_id <= greatest) == public_id.startswith(f"{prefix}_")


@given(st.sampled_from((*ids.PREFIXES, *OTHERS)), MOMENTS)
def test_a_new_id_has_its_prefix_and_its_moment(prefix: str, now: datetime) -> None:
    made = new_id(prefix, now)
    numbered = prefix in ids.PREFIXES
    assert (ids.is_numbered(prefix), ids.is_id(made)) == (numbered, numbered)
    assert len(made) == len(prefix) + 1 + (ids.DIGITS if numbered else ids.TIME_DIGITS + RANDOM_DIGITS)
    assert made.startswith(f"{prefix}_")
    assert is_of(made, now)
    assert not is_of(made, now + timedelta(milliseconds=2))
    assert not is_of(made, now - timedelta(milliseconds=2))


@given(st.sampled_from((*ids.PREFIXES, *OTHERS)), MOMENTS, MOMENTS)
def test_a_new_id_sorts_behind_the_newest_even_if_the_clock_went_back(
    prefix: str, now: datetime, before: datetime
) -> None:
    newest, alone = new_id(prefix, before), new_id(prefix, now)
    made = new_id(prefix, now, newest)
    assert made > newest
    assert len(made) == len(newest)
    last, own, found = (int(each[4:][: ids.TIME_DIGITS], 16) for each in (newest, alone, made))
    assert found == max(own, last + 1)


def test_ids_of_one_moment_differ_in_their_random_digits() -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    for prefix, different in (("run", 2), ("key", 64)):
        assert len({new_id(prefix, now) for _ in range(64)}) >= different
