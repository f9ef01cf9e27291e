"""Repetitions and used shares at the orders of a filter are those of its bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.exact_losses import PER_NAT, UNBOUNDED_LOSSES, Coordinate, ExactLosses
from app.ledger.filter.filter_orders import FilterOrders
from app.ledger.filter.filters import UNLIMITED, FilterBounds

ORDERS = 6
EXACT = 2**53
units = st.one_of(
    st.integers(0, 20),
    st.integers(0, EXACT),
    st.sampled_from([0, EXACT - 1, EXACT, EXHAUSTED // 3, EXHAUSTED - 1, EXHAUSTED]),
)
counts = st.one_of(st.integers(1, 3), st.integers(1, 10**9))


def vectors(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(values, min_size=ORDERS, max_size=ORDERS)


def curves() -> st.SearchStrategy[RdpCurve]:
    losses = st.tuples(*(st.sampled_from([0, 1, 7, PER_NAT // 3, PER_NAT, most]) for most in UNBOUNDED_LOSSES))
    return st.builds(
        lambda values, exact: RdpCurve(np.array(values, dtype=np.int64), exact=ExactLosses(*exact)),
        vectors(units),
        losses,
    )


@st.composite
def gates(draw: st.DrawFn) -> FilterBounds:
    """The bounds of a filter of some orders, or of all."""
    places = np.array(sorted(draw(st.sets(st.integers(0, ORDERS - 1), min_size=1))))
    bounds = draw(vectors(st.one_of(st.integers(-1, 20), st.integers(-1, EXHAUSTED - 1))))
    prices = draw(vectors(st.integers(-200, 200)))
    return FilterBounds(
        places,
        np.array(bounds, dtype=np.int64)[places],
        np.array(prices)[places] / 7,
        draw(st.integers(0, 2)),
        draw(st.sampled_from([0, 3, 100, PER_NAT, 7 * PER_NAT])),
        draw(st.sampled_from(Coordinate)),
    )


def used(orders: FilterOrders, count: int, first: int, ahead: int) -> float:
    """The share after repetitions, with the order that was looked up after fewer of them if that holds."""
    found = orders.least_share(first, ahead)
    if not found.first <= count <= found.last:
        found = orders.least_share(count)
    return min(found.after(count), orders.exact_share(count))


@given(gates(), curves(), st.integers(0, 2), st.lists(st.tuples(curves(), counts), min_size=1, max_size=4), counts)
def test_orders_count_as_the_bounds(
    gate: FilterBounds, begun: RdpCurve, delta: int, charges: list[tuple[RdpCurve, int]], further: int
) -> None:
    spent = RdpCurve(begun.values, min(delta, gate.room), exact=begun.exact)
    orders = FilterOrders.of(gate, spent, charges[0][0])
    for number, (curve, count) in enumerate(charges):
        most, endless = orders.repetitions()
        for charged in (0, count, max(most, 0), max(most, 0) + 1):  # the boundary, and one beside it
            left = gate.left(spent, curve.times(charged))
            by_orders = int((left // np.maximum(curve.values[gate.places], 1)).max())
            exact_left = gate.most - gate.exact_loss(spent + curve.times(charged))
            loss = gate.exact_loss(curve)
            ruled = max(by_orders, -1 if exact_left < 0 else exact_left // loss if loss else UNLIMITED)
            counted = max(most - charged, endless)
            assert counted == ruled if ruled >= 0 else counted < 0
        for repeated in (count, count + further):
            for ahead in (0, 1, further):
                assert used(orders, repeated, count, ahead) == gate.used(spent + curve.times(repeated))
        spent = spent + curve.times(count)
        orders = orders.after(count, charges[(number + 1) % len(charges)][0])


@pytest.fixture
def gate() -> FilterBounds:
    """The bounds at three orders."""
    return FilterBounds(np.array([0, 1, 2]), np.array([90, 90, 90]), np.array([0.5, 0.1, 0.2]), 0, 0)


def curve(*values: int) -> RdpCurve:
    return RdpCurve(np.array(values, dtype=np.int64))


def test_infinite_orders_are_left_out(gate: FilterBounds) -> None:
    spent, cost = curve(5, EXHAUSTED, 0), curve(1, 2, EXHAUSTED)
    orders = FilterOrders.of(gate, spent, cost)
    assert orders.repetitions() == (85, -1)
    assert used(orders, 3, 3, 0) == gate.used(spent + cost.times(3)) == 8 / 90
    assert used(orders.after(1, spent), 1, 1, 0) == gate.used(spent + cost + spent)


def test_order_that_decides_is_looked_up_as_far_as_it_does(gate: FilterBounds) -> None:
    orders = FilterOrders.of(gate, curve(0, 10, 20), curve(3, 2, 1))
    assert orders.least_share(0, 9) == (0, 9, 90, 0, 3)
    assert orders.least_share(0, 20) == (0, 0, 90, 0, 3)  # then another one has the least
    found = orders.least_share(11, 59)
    assert found == (11, 70, 90, 20, 1)
    for count in range(11, 71):
        assert found.after(count) == gate.used(curve(3 * count, 10 + 2 * count, 20 + count))
    assert orders.least_share(11, 60) == (11, 11, 90, 20, 1)  # then none is within its bound
