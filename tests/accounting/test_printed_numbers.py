"""Epsilons that papers and tutorials print, and those that other systems' scripts compute."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from app.accounting.conversion import delta_from_rdp, epsilon_from_rdp
from app.accounting.curves import GRID_VERSION, UNIT, orders
from app.accounting.events import Decay, Gaussian, NeighboringRelation, PoissonSampled, SelfComposed
from app.accounting.rdp import curve_over, event_curve

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE

GRID = orders(GRID_VERSION)
MNIST = 256 / 60000


def sampled(q: float, z: float) -> DpEvent:
    return PoissonSampledDpEvent(q, GaussianDpEvent(z))


class Printed(NamedTuple):
    """What a paper or a tutorial prints for DP-SGD at delta 1e-5, by the classic conversion at some orders."""

    q: float
    z: float
    steps: int
    epsilon: float
    orders: Sequence[float]


MOMENTS = range(2, 34)  # moments up to 32, which are orders up to 33
TENSORFLOW = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))

PRINTED = [
    # Abadi et al. 2016 (arXiv 1607.00133), section 5.1: q = 0.01, sigma = 4, 100 epochs, epsilon about 1.26.
    Printed(0.01, 4, 10_000, 1.26, MOMENTS),
    # TensorFlow Privacy, tutorials/README.md: noise 1.1 after 1, 2 and 60 epochs; noise 1.3, 15 epochs; 0.7, 45 epochs.
    Printed(MNIST, 1.1, 60_000 // 256, 1.03, TENSORFLOW),
    Printed(MNIST, 1.1, 2 * 60_000 // 256, 1.11, TENSORFLOW),
    Printed(MNIST, 1.1, 60 * 60_000 // 256, 3.01, TENSORFLOW),
    Printed(MNIST, 1.3, 15 * 60_000 // 256, 1.19, TENSORFLOW),
    Printed(MNIST, 0.7, 45 * 60_000 // 256, 7.10, TENSORFLOW),
    # Bu, Dong, Long, Su 2020 (arXiv 1911.11607), figure 4: the moments accountant at epoch 70.
    Printed(MNIST, 0.7, 70 * 60_000 // 256, 8.68, TENSORFLOW),
]


@pytest.mark.parametrize("printed", PRINTED, ids=str)
def test_printed_epsilons_come_out_to_both_decimals(printed: Printed) -> None:
    event = SelfComposed(PoissonSampled(printed.q, Gaussian(printed.z)), printed.steps)
    theirs = np.array(printed.orders, dtype=np.float64)
    classic = epsilon_from_rdp(theirs, curve_over(event, theirs, ADD_OR_REMOVE).nats(), 1e-5, "classic").epsilon
    assert classic == pytest.approx(printed.epsilon, abs=0.005)
    ours = epsilon_from_rdp(GRID, event_curve(event, ADD_OR_REMOVE).nats(), 1e-5).epsilon
    assert ours < classic


@pytest.mark.parametrize("epochs", [1, 10, 50])
def test_primihubs_script_computes_our_epsilon(epochs: int) -> None:
    # PrimiHub's page on DP-SGD: dp_accounting at orders up to 63; batch 256 of 60,000, noise multiplier 1, delta 1e-5.
    steps = epochs * 60_000 // 256
    accountant = RdpAccountant(TENSORFLOW)
    accountant.compose(SelfComposedDpEvent(sampled(MNIST, 1.0), steps))
    event = SelfComposed(PoissonSampled(MNIST, Gaussian(1)), steps)
    theirs = np.array(TENSORFLOW)
    same_orders = epsilon_from_rdp(theirs, curve_over(event, theirs, ADD_OR_REMOVE).nats(), 1e-5).epsilon
    assert same_orders == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-5)
    found = delta_from_rdp(theirs, curve_over(event, theirs, ADD_OR_REMOVE).nats(), 2.0).delta
    assert found <= accountant.get_delta(2.0) * (1 + 1e-4)
    ours = epsilon_from_rdp(GRID, event_curve(event, ADD_OR_REMOVE).nats(), 1e-5).epsilon
    assert ours <= same_orders * 1.001  # what the grid may lose against an order that happens to be the best one


# The factory's example with the monitor's defaults, its unit test, and the monitor's example.
@pytest.mark.parametrize(
    ("n", "batch", "z", "rate"), [(60_000, 32, 1.5, 6e-4), (60_000, 16, 0.4, 6e-3), (100, 32, 1.5, 6e-4)]
)
def test_mindarmours_decay_is_charged_step_by_step(n: int, batch: int, z: float, rate: float) -> None:
    # RDPMonitor: noise z / (1 + rate t), orders given by the caller, the classic conversion at delta 1e-3.
    chosen, steps = np.array([2.0, 3.0, 5.0, 9.0, 17.0, 33.0]), 40
    accountant = RdpAccountant(chosen)
    for step in range(steps):
        accountant.compose(sampled(batch / n, z / (1 + rate * step)))
    event = Decay("time", rate, steps, PoissonSampled(batch / n, Gaussian(z)))
    ours = curve_over(event, chosen, ADD_OR_REMOVE).nats()
    assert ours == pytest.approx(accountant.rdp, rel=1e-8, abs=steps * UNIT)
    classic = np.min(accountant.rdp + log(1e3) / (chosen - 1))
    assert epsilon_from_rdp(chosen, ours, 1e-3, "classic").epsilon == pytest.approx(classic, rel=1e-8)
