"""Curves against those of Google's dp_accounting, on the same orders."""

from dataclasses import dataclass
from itertools import product
from math import exp, inf

import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Theirs
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from app.accounting import events as dp
from app.accounting.curves import GRID_VERSION, UNIT, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.noise_schedules import DecayMode
from app.accounting.rdp import curve_over, event_curve

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

ORDERS = np.array([1.0625, 1.5, 2, 2.75, 3, 4, 5.5, 8, 12, 17, 24.25, 32, 48, 64])
WHOLE = np.floor(ORDERS) == ORDERS
GRID = orders(GRID_VERSION)
MNIST = 256 / 60000
MOVED = ((ADD_OR_REMOVE, 1), (REPLACE_SPECIAL, 1), (REPLACE_ONE, 2))
"""By how many clipping norms a record moves a sum."""


@dataclass(frozen=True)
class Row:
    """One mechanism as both describe it.

    Args:
        ours: the event here.
        theirs: the event there.
        relation: under which both have a price.
        exact: at which orders dp_accounting computes the divergence itself: at "all", at "whole" ones, at "none".
    """

    ours: DpEvent
    theirs: dp_event.DpEvent
    relation: NeighboringRelation
    exact: str

    def __str__(self) -> str:
        return f"{self.ours} {self.relation}"


def gaussian(z: float) -> dp_event.DpEvent:
    return dp_event.GaussianDpEvent(float(z))


def sampled(q: float, *events: dp_event.DpEvent) -> dp_event.DpEvent:
    inner = events[0] if len(events) == 1 else dp_event.ComposedDpEvent(list(events))
    return dp_event.PoissonSampledDpEvent(q, inner)


def times(event: dp_event.DpEvent, count: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(event, count)


def unsampled_rows() -> list[Row]:
    rows = [
        Row(dp.SelfComposed(dp.Gaussian(z), count), times(gaussian(z), count), relation, "all")
        for z, count in product((0.1, 0.5, 1, 1.1, 2, 10, 100), (1, 100))
        for relation in (ADD_OR_REMOVE, REPLACE_SPECIAL)
    ]
    rows += [  # replacing a record is twice the sensitivity; dp_accounting leaves the doubling to its caller
        Row(dp.Gaussian(z), gaussian(z / 2), REPLACE_ONE, "all") for z in (0.5, 1, 3, 20)
    ]
    rows += [
        Row(dp.SelfComposed(dp.Laplace(z), count), times(dp_event.LaplaceDpEvent(z), count), ADD_OR_REMOVE, "all")
        for z, count in product((0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0), (1, 50))
    ]
    rows += [Row(dp.Laplace(z), dp_event.LaplaceDpEvent(z / 2), REPLACE_ONE, "all") for z in (0.5, 1.0, 3.0, 20.0)]
    rows += [
        Row(dp.Zcdp(rho, xi), dp_event.ZCDpEvent(rho, xi), relation, "all")
        for (rho, xi), relation in product(
            ((0.5, 0.0), (1e-4, 0.0), (0.01, 0.3), (7.0, 2.0)), (ADD_OR_REMOVE, REPLACE_ONE)
        )
    ]
    rows += [
        Row(dp.RandomizedResponse(p, k), dp_event.RandomizedResponseDpEvent(p, k), relation, "all")
        for p, k in product((0.05, 0.2, 0.5, 0.8, 0.99), (2, 3, 10, 1000))
        for relation in (REPLACE_ONE, REPLACE_SPECIAL)
    ]
    rows += [
        Row(
            dp.SelfComposed(dp.TreeAggregation(z, steps), 3),
            times(dp_event.SingleEpochTreeAggregationDpEvent(z, list(steps)), 3),
            REPLACE_SPECIAL,
            "all",
        )
        for z, steps in product((1.0, 4.0, 50.0), ((1,), (7,), (8,), (100, 50), (1023,), (1024, 3)))
    ]
    return rows


def limit_rows() -> list[Row]:
    """Events that dp_accounting prices by loss distributions only, where they are events with a divergence there."""
    rows = [
        Row(dp.MixtureOfGaussians(2 * z, (0, 2), (1 - q, q)), sampled(q, gaussian(z)), relation, "whole")
        for (q, z), relation in product(((1e-3, 0.7), (MNIST, 1.1), (0.2, 4)), (ADD_OR_REMOVE, REPLACE_SPECIAL))
    ]
    rows += [
        Row(
            dp.PoissonSampled(0.1, dp.MixtureOfGaussians(2.2, (0, 2), (0.9, 0.1))),
            sampled(0.01, gaussian(1.1)),
            each,
            "whole",
        )
        for each in (ADD_OR_REMOVE, REPLACE_SPECIAL)
    ]
    rows += [
        Row(dp.MixtureOfGaussians(3, (2,), (1,)), gaussian(1.5 / moved), relation, "all") for relation, moved in MOVED
    ]
    rows += [
        Row(dp.PermuteAndFlip(1 / z), dp_event.LaplaceDpEvent(z), relation, "all")
        for z, (relation, _) in product((0.1, 1.0, 20.0), MOVED)
    ]
    rows += [
        Row(dp.TruncatedPoissonSampled(1000, q, 1001, dp.Gaussian(z)), sampled(q, gaussian(z)), relation, "whole")
        for (q, z), relation in product(((1e-3, 0.7), (0.02, 1.1), (0.2, 4)), (ADD_OR_REMOVE, REPLACE_SPECIAL))
    ]
    rows += [
        Row(dp.TruncatedPoissonSampled(1000, 1, 1001, dp.Gaussian(2)), gaussian(2 / moved), relation, "all")
        for relation, moved in MOVED
    ]
    rows += [  # all places hold the only record
        Row(dp.SampledWithReplacement(1, places, dp.Gaussian(20)), gaussian(10 / places), REPLACE_ONE, "all")
        for places in (1, 3)
    ]
    rows += [
        Row(
            dp.SampledWithReplacement(size, 1, dp.Gaussian(2 * z)),
            dp_event.SampledWithoutReplacementDpEvent(size, 1, gaussian(z)),
            REPLACE_ONE,
            "none",
        )
        for size, z in ((100, 1), (1000, 8))
    ]
    return rows


def sampled_rows() -> list[Row]:
    rows = [
        Row(dp.PoissonSampled(q, dp.Gaussian(z)), sampled(q, gaussian(z)), ADD_OR_REMOVE, "whole")
        for q, z in product((1e-3, MNIST, 0.01, 0.05, 0.2, 0.5, 0.9), (0.5, 0.8, 1.1, 2, 4, 10))
    ]
    rows += [
        Row(
            dp.SelfComposed(dp.PoissonSampled(q, dp.Gaussian(z)), count),
            times(sampled(q, gaussian(z)), count),
            REPLACE_SPECIAL,
            "whole",
        )
        for q, z, count in ((MNIST, 1.1, 14062), (0.01, 4, 10000), (0.001, 0.7, 1000), (0.1, 6, 300))
    ]
    rows += [
        Row(
            dp.PoissonSampled(q, dp.Composed((dp.Gaussian(1.3), dp.SelfComposed(dp.Gaussian(9), 4)))),
            sampled(q, gaussian(1.3), times(gaussian(9), 4)),
            ADD_OR_REMOVE,
            "whole",
        )
        for q in (0.003, 0.02, 0.3)
    ]
    # Adaptive clipping: the gradients' noise is made larger so that both together have noise 1; and micro-batches.
    gradients = (1 - (2 * 12.8) ** -2) ** -0.5
    rows += [
        Row(event, sampled(0.02, gaussian(1)), ADD_OR_REMOVE, "whole")
        for event in (
            dp.PoissonSampled(0.02, dp.AdaptiveClipping(gradient_noise_multiplier=gradients, count_noise_stddev=12.8)),
            dp.PoissonSampled(0.02, dp.AdaptiveClipping(1)),
            dp.PoissonSampled(0.02, dp.Gaussian(2, "microbatch")),
            dp.PoissonSampled(0.02, dp.GroupPrivacy(3, dp.Gaussian(3))),
            dp.GroupPrivacy(2, dp.PoissonSampled(1 - 0.98**0.5, dp.Gaussian(2))),
        )
    ]
    rows += [
        Row(
            dp.SampledWithoutReplacement(n, batch, dp.Gaussian(2 * z)),
            dp_event.SampledWithoutReplacementDpEvent(n, batch, gaussian(z)),
            REPLACE_ONE,
            "none",
        )
        for (n, batch), z in product(((1000, 10), (60000, 256), (100, 30)), (0.7, 1, 2, 8))
    ]
    return rows


def selection_rows() -> list[Row]:
    runs = [
        (dp.Gaussian(5), gaussian(5)),
        (dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(2)), 200), times(sampled(0.01, gaussian(2)), 200)),
        (dp.Laplace(4), dp_event.LaplaceDpEvent(4.0)),
    ]
    return [
        Row(
            dp.RepeatAndSelect(ours, mean, None if shape == inf else shape),
            dp_event.RepeatAndSelectDpEvent(theirs, mean, shape),
            ADD_OR_REMOVE,
            "none",  # both search for an order, dp_accounting among fewer
        )
        for (ours, theirs), mean, shape in product(runs, (1.0, 2.0, 30.0), (0.0, 0.5, 1.0, 4.0, inf))
    ]


def composed_rows() -> list[Row]:
    parts = [
        (dp.Gaussian(3), gaussian(3)),
        (dp.PoissonSampled(0.02, dp.Gaussian(1.2)), sampled(0.02, gaussian(1.2))),
        (dp.Laplace(7), dp_event.LaplaceDpEvent(7.0)),
        (dp.Zcdp(0.01, 0.02), dp_event.ZCDpEvent(0.01, 0.02)),
        (dp.SelfComposed(dp.Laplace(30), 20), times(dp_event.LaplaceDpEvent(30.0), 20)),
    ]
    rows = [
        Row(
            dp.SelfComposed(dp.Composed((first[0], second[0])), 5),
            times(dp_event.ComposedDpEvent([first[1], second[1]]), 5),
            ADD_OR_REMOVE,
            "whole",
        )
        for first, second in product(parts, repeat=2)
    ]
    schedules: tuple[tuple[DecayMode, list[float]], ...] = (
        ("time", [2 / (1 + 0.01 * t) for t in range(3, 23)]),
        ("exp", [2 * exp(-0.01 * t) for t in range(3, 23)]),
    )
    return rows + [
        Row(
            dp.Decay(mode, 0.01, 20, dp.PoissonSampled(0.05, dp.Gaussian(2)), first_step=3),
            dp_event.ComposedDpEvent([sampled(0.05, gaussian(z)) for z in noises]),
            ADD_OR_REMOVE,
            "whole",
        )
        for mode, noises in schedules
    ]


ROWS = [*unsampled_rows(), *limit_rows(), *sampled_rows(), *selection_rows(), *composed_rows()]


def test_there_are_at_least_200_different_rows() -> None:
    assert len({(row.ours, row.relation) for row in ROWS}) == len(ROWS) >= 200


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_curve_is_never_above_dp_accountings_and_equals_it_where_that_is_exact(row: Row) -> None:
    accountant = RdpAccountant(ORDERS, Theirs[row.relation.name])
    accountant.compose(row.theirs)
    theirs = accountant.rdp
    ours = curve_over(row.ours, ORDERS, row.relation).nats()
    rounding = 20_000 * UNIT  # up to a unit for each repetition: 1e-9 nats
    assert np.all(ours <= theirs * (1 + 1.01e-9) + rounding)
    exact = {"all": WHOLE | True, "whole": WHOLE, "none": WHOLE & False}[row.exact]
    assert np.all(ours[exact] >= theirs[exact] * (1 - 1e-9) - 1e-12)


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.5])
def test_selection_is_dp_accountings_where_both_search_the_same_orders(shape: float) -> None:
    accountant = RdpAccountant(list(GRID[:-1]))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(gaussian(5), 10.0, shape))
    ours = event_curve(dp.RepeatAndSelect(dp.Gaussian(5), 10.0, shape), ADD_OR_REMOVE).nats()
    assert ours[:-1] == pytest.approx(accountant.rdp, rel=1e-8)
