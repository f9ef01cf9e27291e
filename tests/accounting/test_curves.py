"""Curves are exact integers: any order, batching or splitting of charges gives the same bytes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve

UNITS = st.one_of(st.integers(0, EXHAUSTED), st.integers(0, 1000), st.integers(EXHAUSTED - 3, EXHAUSTED))


def curve(*units: int) -> RdpCurve:
    return RdpCurve(np.array(units, dtype=np.int64))


@given(a=UNITS, b=UNITS)
def test_addition_is_exact_or_exhausted(a: int, b: int) -> None:
    with np.errstate(all="raise"):
        assert int((curve(a) + curve(b)).values[0]) == min(a + b, EXHAUSTED)


@given(a=UNITS, count=st.one_of(st.integers(0, 10**9), st.integers(0, 2**70)))
def test_multiplication_is_exact_or_exhausted(a: int, count: int) -> None:
    with np.errstate(all="raise"):
        assert int(curve(a).times(count).values[0]) == min(a * count, EXHAUSTED)


@given(a=UNITS)
@example(a=2**53 + 1)  # the nearest float is below it
@example(a=EXHAUSTED - 1)
def test_nats_are_never_below_the_integer_and_nearly_equal_to_it(a: int) -> None:
    nats = float(curve(a).nats()[0])
    if a == EXHAUSTED:
        assert nats == np.inf
    else:
        numerator, denominator = nats.as_integer_ratio()
        assert a * denominator <= numerator * 2**44 <= (a + a // 2**51) * denominator


@given(nats=st.floats(0, 1e6))
def test_rounding_is_upwards_by_a_billionth_and_a_unit_at_most(nats: float) -> None:
    units = int(RdpCurve.from_nats(np.array([nats])).values[0])
    if units == EXHAUSTED:
        assert nats * (1 + 2e-9) >= EXHAUSTED * UNIT
    else:
        assert nats / UNIT <= units <= nats / UNIT * (1 + 1.01e-9) + 1


def test_nothing_costs_nothing() -> None:
    assert RdpCurve.from_nats(np.zeros(3)) == RdpCurve.zero(3)
    assert RdpCurve.zero(3).is_zero
    assert curve(5, EXHAUSTED).times(0).is_zero
    assert not curve(0, 1).is_zero


@pytest.mark.parametrize("nats", [np.inf, 1e300, EXHAUSTED * UNIT])
def test_sum_that_does_not_fit_is_exhausted(nats: float) -> None:
    with np.errstate(all="raise"):
        assert RdpCurve.from_nats(np.array([nats])) == curve(EXHAUSTED)


@pytest.mark.parametrize("nats", [-1e-300, np.nan, -np.inf])
def test_negative_or_nan_divergence_is_refused(nats: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        RdpCurve.from_nats(np.array([1.0, nats]))


def test_curves_of_different_grids_do_not_add() -> None:
    with pytest.raises(ValueError, match="different grids"):
        curve(1) + curve(1, 2)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        curve(1).times(-1)


@pytest.mark.parametrize(
    "values",
    [np.array([-1], dtype=np.int64), np.array([1.0]), np.array([[1]], dtype=np.int64), np.array([1], dtype="i4")],
)
def test_curve_of_other_values_than_int64_amounts_is_refused(
    values: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> None:
    with pytest.raises(ValueError, match="int64"):
        RdpCurve(values)


@given(units=st.lists(UNITS, min_size=1, max_size=5))
def test_bytes_round_trip_and_are_little_endian(units: list[int]) -> None:
    stored = curve(*units).to_bytes()
    assert stored == b"".join(unit.to_bytes(8, "little") for unit in units)
    assert RdpCurve.from_bytes(stored) == curve(*units)


def test_curve_is_an_immutable_value() -> None:
    source = np.array([1, 2], dtype=np.int64)
    kept = RdpCurve(source)
    source[0] = 99
    assert kept == curve(1, 2)
    assert hash(kept) == hash(curve(1, 2))
    assert kept != curve(1, 3)
    assert kept != "curve"
    with pytest.raises(ValueError, match="read-only"):
        kept.values[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        RdpCurve.from_bytes(kept.to_bytes()).values[0] = 0


def test_a_curve_covers_what_is_below_it_at_every_order_and_in_delta() -> None:
    whole = RdpCurve(np.array([3, 5]), 7)
    for values, delta, covered in ([3, 5], 7, True), ([0, 5], 0, True), ([4, 0], 0, False), ([3, 5], 8, False):
        assert whole.covers(RdpCurve(np.array(values), delta)) is covered
