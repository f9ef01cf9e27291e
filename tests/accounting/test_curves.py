"""Curves are exact integers, whatever the order of charges; the grid never changes, and little is lost by it."""

from functools import lru_cache
from hashlib import sha256
from itertools import product
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_at_orders, epsilon_from_rdp, threshold_units
from app.accounting.curves import EXHAUSTED, GRID_VERSION, HIGHEST, PURE, UNIT, RdpCurve, finite_orders, orders
from app.accounting.errors import UnknownGridVersionError
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.exact_losses import (
    PER_NAT,
    UNBOUNDED,
    UNBOUNDED_LOSSES,
    ExactLosses,
    pure_limit,
    pure_nats,
    pure_nats_within,
    pure_units,
)
from app.accounting.rdp import event_curve, rdp
from tests.soak import thinned

UNITS = st.one_of(st.integers(0, EXHAUSTED), st.integers(0, 1000), st.integers(EXHAUSTED - 3, EXHAUSTED))


def curve(*units: int) -> RdpCurve:
    return RdpCurve(np.array(units, dtype=np.int64))


@given(a=UNITS, b=UNITS, count=st.one_of(st.integers(0, 10**9), st.integers(0, 2**70)))
def test_addition_and_multiplication_are_exact_or_exhausted(a: int, b: int, count: int) -> None:
    with np.errstate(all="raise"):
        assert int((curve(a) + curve(b)).values[0]) == min(a + b, EXHAUSTED)
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


def test_curves_of_different_grids_and_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="different grids"):
        curve(1) + curve(1, 2)
    with pytest.raises(ValueError, match="at least 0"):
        curve(1).times(-1)


def test_curve_of_other_values_than_int64_amounts_is_refused() -> None:
    for values, kind in (([-1], np.int64), ([1.0], np.float64), ([[1]], np.int64), ([1], np.int32)):
        with pytest.raises(ValueError, match="int64"):
            RdpCurve(np.array(values, dtype=kind))


SQUARES = st.integers(0, UNBOUNDED_LOSSES.rho) | st.sampled_from([0, PER_NAT // 200, UNBOUNDED_LOSSES.rho])
PURE_LOSSES = st.integers(0, UNBOUNDED) | st.sampled_from([0, 1, 127, 128, 255, 256, PER_NAT, UNBOUNDED - 1, UNBOUNDED])


def losses(pure: int, rho: int = 0, mu_squared: int = 0) -> ExactLosses:
    return ExactLosses(pure, rho, mu_squared)


@given(units=st.lists(UNITS, min_size=1, max_size=5), pure=PURE_LOSSES, rho=SQUARES, mu_squared=SQUARES)
def test_bytes_round_trip_and_are_little_endian(units: list[int], pure: int, rho: int, mu_squared: int) -> None:
    kept = curve(*units).with_exact(losses(pure, rho, mu_squared))
    stored = kept.to_bytes()
    assert stored.startswith(b"".join(unit.to_bytes(8, "little") for unit in units))
    assert RdpCurve.from_bytes(stored) == kept


@pytest.mark.parametrize("data", [b"\0", bytes(9), bytes(15), b"\1" + bytes(7), bytes(8) + b"\xff" * 8])
def test_bytes_that_no_curve_has_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"size|bytes"):
        RdpCurve.from_bytes(data)


@given(one=PURE_LOSSES, other=PURE_LOSSES, count=st.integers(0, 10**9))
def test_pure_losses_add_up_exactly_up_to_the_highest(one: int, other: int, count: int) -> None:
    first, second = curve(1).with_exact(losses(one)), curve(1).with_exact(losses(other))
    assert (first + second).pure == min(one + other, UNBOUNDED)
    assert first.times(count).pure == min(one * count, UNBOUNDED)
    assert curve(1).with_exact(losses(max(one, other))).covers(first)
    assert first.covers(second) is (one >= other)
    assert curve(0).with_exact(losses(one)).is_zero is (one == 0)


@given(one=SQUARES, other=SQUARES, count=st.integers(0, 10**9))
def test_rho_and_mu_squared_add_up_exactly_and_apart(one: int, other: int, count: int) -> None:
    first, second = curve(1).with_exact(losses(0, one, other)), curve(1).with_exact(losses(0, other, one))
    both, most = (first + second).exact, UNBOUNDED_LOSSES.rho
    assert both == losses(0, min(one + other, most), min(one + other, most))
    assert first.times(count).exact == losses(0, min(one * count, most), min(other * count, most))
    assert first.covers(second) is (one == other)


@given(epsilon=st.floats(1e-30, 1e5))
def test_pure_loss_of_a_decimal_reads_as_that_decimal(epsilon: float) -> None:
    units = pure_units(epsilon)
    assert pure_limit(epsilon) <= units <= pure_limit(epsilon) + 1
    assert pure_nats(units) in (epsilon, nextafter(epsilon, inf))
    assert pure_limit(pure_nats(units)) >= units
    assert pure_nats_within(units) in (epsilon, nextafter(epsilon, inf))
    assert pure_nats_within(units - 1) == nextafter(epsilon, 0.0)
    assert pure_nats_within(-units) == 0


def test_curve_is_an_immutable_value() -> None:
    source = np.array([1, 2], dtype=np.int64)
    kept = RdpCurve(source)
    source[0] = 99
    assert (kept, hash(kept)) == (curve(1, 2), hash(curve(1, 2)))
    assert kept not in (curve(1, 3), "curve")
    with pytest.raises(ValueError, match="read-only"):
        kept.values[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        RdpCurve.from_bytes(kept.to_bytes()).values[0] = 0


def test_a_curve_covers_what_is_below_it_at_every_order_and_in_delta() -> None:
    whole = RdpCurve(np.array([3, 5]), 7)
    for values, delta, covered in ([3, 5], 7, True), ([0, 5], 0, True), ([4, 0], 0, False), ([3, 5], 8, False):
        assert whole.covers(RdpCurve(np.array(values), delta)) is covered


# Ten times as dense as the grid: its own loss is a hundredth of the grid's.
DENSE = 1 + (np.arange(160, 22000) / 700) ** 2
DELTAS = (1e-5, 1e-7, 1e-10)
MECHANISMS = [
    (1e-4, 0.9),  # the worst found: 17 steps at delta 1e-7
    *product((1e-4, 1e-3, 256 / 60000, 0.02, 0.1, 0.5, 1.0), (0.5, 1.1, 3.0, 10.0)),
    *((1e-4, 0.65), (1e-4, 2.0), (4e-4, 0.5)),
]


@lru_cache(maxsize=1)
def dense_curve(q: float, z: float) -> NDArray[np.float64]:
    return rdp(PoissonSampled(q, Gaussian(z)), DENSE, NeighboringRelation.ADD_OR_REMOVE_ONE)


def test_the_grid_is_an_increasing_read_only_vector_of_orders_up_to_infinity() -> None:
    grid = orders(GRID_VERSION)
    assert grid.dtype == np.float64
    assert grid[0] > 1
    assert grid[-2:].tolist() == [HIGHEST, PURE]
    assert np.all(np.diff(grid) > 0)
    assert not grid.flags.writeable


def test_a_grid_never_changes() -> None:
    # Stored curves mean nothing over another grid: whoever changes it must give it a new version.
    finite = finite_orders(1)
    assert len(finite) == 1387
    assert (
        sha256(finite.astype("<f8").tobytes()).hexdigest()
        == "c740027e2d36600081115892e6adf2181e8db22274c543a0c37c06db7b57d132"
    )


def test_unknown_grid_is_refused_and_the_last_order_stands_for_infinity() -> None:
    with pytest.raises(UnknownGridVersionError, match="known is 1"):
        event_curve(Gaussian(1.0), NeighboringRelation.ADD_OR_REMOVE_ONE, 3)
    assert orders(1)[-1] == PURE == 2.0**60
    bounds = threshold_units(orders(1), 0.5, 1e-12)
    assert 0 <= 0.5 / UNIT - bounds[-1] <= 2


@pytest.mark.parametrize(("q", "z"), thinned(MECHANISMS, 7))
def test_epsilon_is_within_a_tenth_of_a_percent_of_the_best_order(q: float, z: float) -> None:
    exact = dense_curve(q, z)
    step = event_curve(PoissonSampled(q, Gaussian(z)), NeighboringRelation.ADD_OR_REMOVE_ONE).nats()
    checked = 0
    for delta, epsilon in product(DELTAS, np.geomspace(0.1, 20, 40)):
        # The most repetitions that some order proves to be within epsilon: with them the best epsilon is this one.
        count = ((epsilon - epsilon_at_orders(DENSE, np.zeros_like(DENSE), delta)) / exact).max()
        if count >= 1:
            found = epsilon_from_rdp(orders(GRID_VERSION), count * step, delta).epsilon
            assert found <= epsilon * 1.001
            assert found >= epsilon * (1 - 1e-4)  # below it the reference itself would be at fault
            checked += 1
    assert checked > 0
