"""Against Google's dp_accounting, on the same orders: how many steps fit."""

from dataclasses import dataclass
from functools import cache

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from app.accounting.conversion import Rule, declared_bounds
from app.accounting.curves import GRID_VERSION, HIGHEST, RdpCurve, orders
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from tests.ledger.conftest import admitted, make_account, refused, repetitions_left
from tests.soak import thinned

ALL_ORDERS = orders(GRID_VERSION)
WHOLE = (np.floor(ALL_ORDERS) == ALL_ORDERS) & (ALL_ORDERS <= HIGHEST)
SOME = np.flatnonzero(WHOLE | ((np.arange(ALL_ORDERS.size) % 25 == 0) & (ALL_ORDERS <= HIGHEST)))
GRID = [float(order) for order in ALL_ORDERS[SOME]]


@dataclass(frozen=True)
class Setting:
    q: float
    z: float
    epsilon: float
    delta: float

    def __str__(self) -> str:
        return f"q={self.q:.4g} z={self.z} epsilon={self.epsilon} delta={self.delta}"

    @property
    def event(self) -> DpEvent:
        return PoissonSampled(self.q, Gaussian(self.z)) if self.q < 1 else Gaussian(self.z)

    @property
    def curve(self) -> RdpCurve:
        return event_curve(self.event, NeighboringRelation.ADD_OR_REMOVE_ONE)

    @property
    def theirs(self) -> dp_accounting.DpEvent:
        gaussian = dp_accounting.GaussianDpEvent(self.z)
        return dp_accounting.PoissonSampledDpEvent(self.q, gaussian) if self.q < 1 else gaussian


SETTINGS = [
    Setting(q, z, epsilon, delta)
    for q, z, epsilons in (
        *((256 / 60000, 1.1, (0.9, 1.0, 2.0, 3.0, 8.0)), (256 / 60000, 1.5, (0.5, 1.0, 3.0))),
        *((256 / 60000, 0.7, (3.0, 8.0)), (0.001, 0.8, (1.5, 4.0)), (0.001, 1.1, (1.0, 2.0))),
        *((0.01, 1.0, (1.5, 3.0, 8.0)), (0.01, 1.1, (1.0, 2.0, 8.0)), (0.01, 2.0, (0.5, 1.0, 3.0))),
        *((0.01, 4.0, (0.2, 1.0, 8.0)), (0.05, 1.5, (2.0, 8.0)), (0.05, 4.0, (0.5, 2.0)), (0.2, 2.0, (4.0,))),
        *((0.2, 8.0, (1.0, 4.0)), (1.0, 10.0, (0.9, 2.0, 8.0)), (1.0, 100.0, (0.1, 1.0, 20.0))),
    )
    for epsilon in epsilons
    for delta in (1e-5, 1e-7)
]


def counted(setting: Setting, account: Account) -> int:
    """How many repetitions fit, proven: that many are admitted and one more is refused."""
    count, _ = repetitions_left([account], setting.event)
    if count:
        admitted([account], setting.event, count)
    refused([account], setting.event, count + 1)
    return count


def declared(setting: Setting, places: NDArray[np.intp] | slice = slice(None)) -> int:
    """How many repetitions fit at some orders if they are fixed in advance, proven in the same way."""
    rule, curve = Rule(setting.epsilon, setting.delta), setting.curve
    bounds = declared_bounds(setting.epsilon, setting.delta, GRID_VERSION)[places]
    count = int(np.max(np.maximum(bounds, 0) // np.maximum(curve.values[places], 1)))
    assert not count or rule.fits(curve.times(count))
    assert not isinstance(places, slice) or not rule.fits(curve.times(count + 1))
    return count


@cache
def composed_once(event: dp_accounting.DpEvent) -> RdpAccountant:
    """Their accountant after one event: that is what takes it so long, and many settings have the same."""
    accountant = RdpAccountant(GRID)
    accountant.compose(event)
    return accountant


def their_count(setting: Setting) -> tuple[int, float]:
    """The most repetitions whose epsilon is at most the limit, and the order that decides about one more."""
    curve = composed_once(setting.theirs)._rdp  # a fresh accountant for each probe would take minutes

    def fits(count: int) -> bool:
        epsilon, _ = dp_accounting.rdp.compute_epsilon(GRID, curve * count, setting.delta)
        return bool(epsilon <= setting.epsilon)

    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    _, order = dp_accounting.rdp.compute_epsilon(GRID, curve * max(low, 1), setting.delta)
    return low, float(order)


@pytest.mark.parametrize("setting", thinned(SETTINGS, 4), ids=str)
def test_as_much_fits_in_advance_as_dp_accounting_says_and_93_percent_of_it_adaptively(setting: Setting) -> None:
    theirs, order = their_count(setting)
    ours, in_advance = declared(setting, SOME), declared(setting)
    assert in_advance >= ours >= theirs
    if order.is_integer():
        assert ours == theirs
    adaptive = counted(setting, make_account(setting.epsilon, setting.delta))
    assert adaptive <= in_advance
    if in_advance >= 500 and setting.z >= 1:
        assert adaptive >= 0.93 * in_advance
