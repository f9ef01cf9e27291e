"""Searching: the answer fits, its neighbour does not, and few trials are needed where the guess is good."""

from decimal import Decimal
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, root, smallest_fitting


class From:
    """A rule that fits from some number on, and remembers what it was asked."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: list[int] = []

    def __call__(self, number: int) -> bool:
        self.asked.append(number)
        return number >= self.number


@given(number=st.integers(-110, 110), near=st.integers(-200, 200))
def test_the_least_number_that_fits_was_tried_and_so_was_the_one_below(number: int, near: int) -> None:
    rule = From(number)
    found = smallest_fitting(rule, near, -100, 100)
    if number > 100:
        assert found is None
        assert 100 in rule.asked
    else:
        assert found == max(number, -100)
        assert found in rule.asked
        assert found == -100 or found - 1 in rule.asked
    assert all(-100 <= asked <= 100 for asked in rule.asked)


def test_a_good_guess_takes_two_trials() -> None:
    rule = From(12_345)
    assert smallest_fitting(rule, 12_345, 0, 10**9) == 12_345
    assert rule.asked == [12_345, 12_344]


@given(number=st.integers(0, 2**62), near=st.integers(0, 2**62))
def test_a_bad_guess_takes_a_number_of_trials_that_grows_with_its_logarithm(number: int, near: int) -> None:
    rule = From(number)
    assert smallest_fitting(rule, near, 0, 2**62) == number
    assert len(rule.asked) <= 8 + 1.4 * log2(abs(number - near) + 2)


@given(place=st.floats(-10, 10), start=st.floats(-10, 10), slope=st.floats(0.5, 30), bend=st.floats(0, 3))
def test_a_root_is_found_in_few_trials(place: float, start: float, slope: float, bend: float) -> None:
    trials = []

    def falling(at: float) -> float:
        trials.append(at)
        return -slope * (at - place) - bend * (at - place) ** 3

    found = root(falling, start, (-10.0, 10.0), 1e-9)
    assert abs(falling(found)) <= 1e-9 or abs(found - place) <= 1e-9
    assert len(trials) <= 60


def test_without_a_root_the_bound_on_its_side_is_returned() -> None:
    assert root(lambda at: 5 - at / 100, 0.0, (-3.0, 3.0), 1e-9) == 3.0
    assert root(lambda at: -5 - at / 100, 0.0, (-3.0, 3.0), 1e-9) == -3.0


def test_a_jump_takes_the_place_of_a_root() -> None:
    assert root(lambda at: 700.0 if at < 1 else -1e-3, -2.0, (-3.0, 3.0), 1e-9) == pytest.approx(1.0, abs=1e-6)


@given(decade=st.integers(-300, 300), place=st.floats(0, 1), digits=st.integers(1, 6))
def test_numbers_with_few_digits_are_counted_upwards(decade: int, place: float, digits: int) -> None:
    index = int((decade + place) * 9 * 10 ** (digits - 1))
    number = decimal(index, digits)
    assert index_at_or_below(number, digits) == index
    assert number < decimal(index + 1, digits)
    assert len(Decimal(repr(number)).normalize().as_tuple().digits) <= digits


@given(value=st.floats(1e-12, 1e6), digits=st.integers(1, 6))
def test_the_number_at_or_below_is_at_or_below(value: float, digits: int) -> None:
    index = index_at_or_below(value, digits)
    assert Decimal(repr(decimal(index, digits))) <= Decimal(repr(value)) < Decimal(repr(decimal(index + 1, digits)))
