"""A limit that changes: every order keeps its share of delta, and so does what is kept for own deltas."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import DELTA_UNIT, GRID_VERSION
from app.accounting.events import Gaussian, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.filters import Limit, filter_weights
from app.ledger.tuning import rescale_weights
from tests.soak import few

WORKLOAD = event_curve(Gaussian(20.0), NeighboringRelation.ADD_OR_REMOVE_ONE)
DELTAS = st.floats(1e-20, 1e-3)


@given(st.lists(DELTAS, min_size=2, max_size=30))
def test_no_part_of_delta_ever_gets_a_larger_share(deltas: list[float]) -> None:
    limits = [Limit(2.0, delta) for delta in deltas]
    first = filter_weights(limits[0], WORKLOAD, GRID_VERSION)
    weights = first
    for before, after in pairwise(limits):
        earlier, weights = weights, rescale_weights(weights, before, after)
        assert weights.within(after.delta)
        if after.delta >= before.delta:
            assert weights.reserve >= earlier.reserve
            assert all(a >= b for a, b in zip(weights.deltas, earlier.deltas, strict=True))
        for now, then in zip((*weights.deltas, weights.reserve), (*first.deltas, first.reserve), strict=True):
            share, shared = Fraction(now) / Fraction(after.delta), Fraction(then) / Fraction(limits[0].delta)
            assert shared * (1 - Fraction(1, 10**10)) <= share <= shared


@few(5)
@given(DELTAS, st.floats(0.01, 0.99))
def test_a_thousand_changes_move_nothing_into_the_reserve(delta: float, factor: float) -> None:
    high, low = Limit(2.0, delta), Limit(2.0, delta * factor)
    weights = filter_weights(high, WORKLOAD, GRID_VERSION)
    most = weights.set_aside()
    for _ in range(1000):
        weights = rescale_weights(rescale_weights(weights, high, low), low, high)
    assert weights.set_aside() <= most <= Fraction(delta) / 100 / Fraction(DELTA_UNIT) * (1 + Fraction(1, 10**9)) + 1
