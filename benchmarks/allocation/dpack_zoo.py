"""The 620 curves of DPack's micro-benchmark, by our own accounting, and its knobs.

Source: Tholoniat et al., EuroSys 2025, and the configuration of the code released with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, exp, inf, log
from random import Random
from statistics import fmean, pstdev
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.events import Composed, DpEvent, Gaussian, Laplace, PoissonSampled, SelfComposed
from app.accounting.rdp import event_curve
from app.ledger.filter.limits import Limit
from app.ledger.step_events import PricedStep, StepEvent
from benchmarks.allocation.blocks import RELATION, papers_filter

LIMIT: Final = Limit(10.0, 1e-7)
ORDERS: Final = (3, 4, 5, 6, 8, 16, 32, 64)
"""DPack's orders with a positive bound."""

FILTER: Final = papers_filter(LIMIT, ORDERS)
CENTRE: Final = ORDERS.index(5)
FLATNESS: Final = slice(ORDERS.index(4), ORDERS.index(8) + 1)
SMALLEST: Final = 0.01
"""Curves that ask for less than this part of a block at their best order are left out, and those that do not fit."""

RANGE_MEAN, RANGE_DEVIATION, RANGE_LEAST = 0.05, 0.03, 1e-3
"""Difference of the largest and the least part at the orders 4 to 8, as the paper's grids set it."""


@dataclass(frozen=True, eq=False)
class ZooCurve:
    """A curve of the zoo.

    Args:
        event: priced.
        curve: over our whole grid.
        parts: of a block's bound at each of `ORDERS`; (n_orders,).
        best: index of the least of them.
    """

    event: DpEvent
    curve: RdpCurve
    parts: NDArray[np.float64]
    best: int


def events() -> list[DpEvent]:
    """List the mechanisms."""
    found: list[DpEvent] = [Gaussian(noise) for noise in np.geomspace(0.01, 10, 100).tolist()]
    for noise, records in product(np.geomspace(0.01, 10, 10).tolist(), np.geomspace(1e3, 1e8, 10).tolist()):
        found.append(SelfComposed(Gaussian(noise), ceil(log(records))))
    found += [Laplace(noise) for noise in np.geomspace(0.01, 10, 100).tolist()]
    for one, other in product((0.05, 0.1, 0.5, 1, 2, 3, 4, 5), repeat=2):
        found += [Composed((Laplace(one), Gaussian(other))), Composed((Laplace(one), Laplace(other)))]
    for epochs, rate, noise in product((1, 10, 100, 200), (0.001, 0.01, 0.05, 0.1, 0.2, 0.5), (0.1, 0.5, 1, 2)):
        steps = round(epochs / rate)
        found += [
            SelfComposed(PoissonSampled(rate, mechanism), steps) for mechanism in (Gaussian(noise), Laplace(noise))
        ]
    return found


@cache
def zoo() -> tuple[ZooCurve, ...]:
    """Price the mechanisms, and keep those that fit a block and ask for enough of it."""
    weights = FILTER.weights
    assert weights is not None
    places = np.array(weights.indices)
    grid = orders(GRID_VERSION)[places]
    bounds = LIMIT.epsilon + log(LIMIT.delta) / (grid - 1)
    kept = []
    for event in events():
        if isinstance(event, SelfComposed):  # its part is priced once for all repetitions
            curve = event_curve(event.event, RELATION).times(event.count)
        else:
            curve = event_curve(event, RELATION)
        parts = curve.values[places] * 2.0**-44 / bounds
        if SMALLEST < parts.min() < 1:
            kept.append(ZooCurve(event, curve, parts, int(np.argmin(parts))))
    return tuple(kept)


def buckets() -> dict[int, list[ZooCurve]]:
    """Group the zoo by the index of the best order."""
    found: dict[int, list[ZooCurve]] = {}
    for each in zoo():
        found.setdefault(each.best, []).append(each)
    return dict(sorted(found.items()))


def draw_curves(random: Random, number: int, deviation: float) -> list[ZooCurve]:
    """Draw curves: their best order by a discrete normal distribution around order 5, then evenly among its curves."""
    by_best = buckets()
    likely = [_weight(best, deviation) for best in by_best]
    chosen = random.choices(list(by_best.values()), likely, k=number)
    return [random.choice(each) for each in chosen]


def bent(curves: Sequence[ZooCurve], least: float) -> list[PricedStep]:
    """Shift curves so that each asks for `least` of a block at its best order, and bend them, as DPack does.

    Their range gets a mean and a deviation, among the curves of one best order.
    """
    scales = _range_scales()
    found = []
    for each in curves:
        parts = least + (each.parts - each.parts.min()) * scales[id(each)]
        found.append(_demand(each, parts))
    return found


def scaled(curves: Sequence[ZooCurve], least: float) -> list[PricedStep]:
    """Multiply curves so that each asks for `least` of a block of DPack's at its best order; at all our orders."""
    found = []
    for each in curves:
        nats = np.minimum(each.curve.nats() * (least / each.parts.min()), 1e5)
        found.append(PricedStep(StepEvent(each.event, 1), RdpCurve.from_nats(nats)))
    return found


@cache
def _range_scales() -> dict[int, float]:
    scales = {}
    for curves in buckets().values():
        ranges = [float(np.ptp(each.parts[FLATNESS])) for each in curves]
        mean, deviation = fmean(ranges), pstdev(ranges) or 1.0
        for each, own in zip(curves, ranges, strict=True):
            wanted = RANGE_MEAN + RANGE_DEVIATION * (own - mean) / deviation
            scales[id(each)] = max(wanted, RANGE_LEAST) / own
    return scales


def _demand(each: ZooCurve, parts: NDArray[np.float64]) -> PricedStep:
    weights = FILTER.weights
    assert weights is not None
    places = np.array(weights.indices)
    grid = orders(GRID_VERSION)
    nats = np.full(grid.shape, inf)
    nats[places] = parts * (LIMIT.epsilon + log(LIMIT.delta) / (grid[places] - 1))
    return PricedStep(StepEvent(each.event, 1), RdpCurve.from_nats(nats))


def _weight(best: int, deviation: float) -> float:
    if deviation == 0:
        return float(best == CENTRE)
    return exp(-((best - CENTRE) ** 2) / (2 * deviation**2))
