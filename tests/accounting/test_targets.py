"""The rule of a plan: it fits exactly where its epsilon is within the target, in whole units and never above."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.accounting.conversion import Rule, declared_bounds, epsilon_of_curve
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, RdpCurve, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve

GRID = orders(GRID_VERSION)
STEP = event_curve(PoissonSampled(0.01, Gaussian(1.1)), NeighboringRelation.ADD_OR_REMOVE_ONE)
RELEASE = event_curve(Gaussian(20.0), NeighboringRelation.ADD_OR_REMOVE_ONE)
OWN_DELTAS = st.integers(0, int(2e-5 / DELTA_UNIT))


@given(
    steps=st.integers(0, 100_000),
    releases=st.integers(0, 50),
    own=OWN_DELTAS,
    delta=st.floats(-8, -0.5).map(lambda exponent: 10**exponent),
    room=st.floats(0.9, 1.1),
)
def test_a_plan_fits_exactly_where_its_epsilon_is_within_the_target(
    steps: int, releases: int, own: int, delta: float, room: float
) -> None:
    exact = STEP.times(steps) + RELEASE.times(releases)
    total = RdpCurve(exact.values, own)
    epsilon = epsilon_of_curve(GRID, total, delta).epsilon
    assume(0 < epsilon < np.inf)
    assume(abs(room - 1) > 1e-9)
    assert Rule(epsilon * room, delta).fits(total) == (room > 1)


@given(steps=st.integers(1, 10_000), delta=st.floats(1e-8, 0.4), epsilon=st.floats(1e-3, 10))
def test_fitting_plan_reads_as_an_epsilon_within_the_target(steps: int, delta: float, epsilon: float) -> None:
    total = STEP.times(steps)
    if Rule(epsilon, delta).fits(total):
        assert epsilon_of_curve(GRID, total, delta).epsilon <= epsilon


def test_delta_alone_covers_what_costs_no_epsilon() -> None:
    tiny = event_curve(Gaussian(1e3), NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert Rule(0.0, 0.01).fits(tiny)
    assert epsilon_of_curve(GRID, tiny, 0.01).epsilon == 0


@pytest.mark.parametrize("own", [int(1e-5 / DELTA_UNIT) + 1, EXHAUSTED])
def test_nothing_fits_once_the_mechanisms_own_deltas_have_taken_all(own: int) -> None:
    assert not Rule(1e4, 1e-5).fits(RdpCurve(np.zeros(GRID.size, dtype=np.int64), own))


def test_an_exhausted_order_never_fits() -> None:
    assert not Rule(1e4, 0.4).fits(RdpCurve(np.full(GRID.size, EXHAUSTED)))


def test_bounds_are_shared_and_cannot_be_written_to() -> None:
    bounds = declared_bounds(1.0, 1e-5, 1)
    assert bounds is declared_bounds(1.0, 1e-5, 1)
    with pytest.raises(ValueError, match="read-only"):
        bounds[0] = 1
