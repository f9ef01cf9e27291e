"""The grid of orders: its shape, and how much of epsilon is lost by not searching the best order continuously."""

from functools import lru_cache
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_at_orders, epsilon_from_rdp, threshold_units
from app.accounting.curves import GRID_VERSION, HIGHEST, PURE, UNIT, finite_orders, orders
from app.accounting.errors import UnknownGridVersionError
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve, rdp
from tests.soak import thinned

# Ten times as dense as the grid: its own loss is a hundredth of the grid's.
DENSE = 1 + (np.arange(160, 22000) / 700) ** 2
DELTAS = (1e-5, 1e-7, 1e-10)
MECHANISMS = [
    *product((1e-4, 1e-3, 256 / 60000, 0.02, 0.1, 0.5, 1.0), (0.5, 1.1, 3.0, 10.0)),
    (1e-4, 0.9),  # the worst found: 17 steps at delta 1e-7
    (1e-4, 0.65),
    (1e-4, 2.0),
    (4e-4, 0.5),
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


def test_unknown_grid_is_refused_with_the_known_one() -> None:
    with pytest.raises(UnknownGridVersionError, match="known is 1"):
        event_curve(Gaussian(1.0), NeighboringRelation.ADD_OR_REMOVE_ONE, 3)


def test_the_last_order_stands_for_infinity() -> None:
    assert orders(1)[-1] == PURE == 2.0**60
    bounds = threshold_units(orders(1), 0.5, 1e-12)
    assert 0 <= 0.5 / UNIT - bounds[-1] <= 2


@pytest.mark.parametrize(("q", "z"), thinned(MECHANISMS, 3))
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
