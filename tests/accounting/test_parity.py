"""Curves against those of Google's dp_accounting, on the same orders."""

from itertools import combinations, product
from math import exp, inf
from typing import NamedTuple

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
from tests.each import for_each
from tests.soak import thinned

ADD_OR_REMOVE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation

ORDERS = np.array([1.0625, 1.5, 2, 2.75, 3, 4, 5.5, 8, 12, 17, 24.25, 32, 48, 64])
WHOLE = np.floor(ORDERS) == ORDERS
GRID = orders(GRID_VERSION)
MNIST = 256 / 60000
MOVED = ((ADD_OR_REMOVE, 1), (REPLACE_SPECIAL, 1), (REPLACE_ONE, 2))
"""By how many clipping norms a record moves a sum."""


class Row(NamedTuple):
    """One mechanism as both describe it, and at which orders dp_accounting computes the divergence itself."""

    ours: DpEvent
    theirs: dp_event.DpEvent
    relation: NeighboringRelation = ADD_OR_REMOVE
    exact: str = "all"


def gaussian(z: float) -> dp_event.DpEvent:
    return dp_event.GaussianDpEvent(float(z))


def sampled(q: float, *events: dp_event.DpEvent) -> dp_event.DpEvent:
    inner = events[0] if len(events) == 1 else dp_event.ComposedDpEvent(list(events))
    return dp_event.PoissonSampledDpEvent(q, inner)


def times(event: dp_event.DpEvent, count: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(event, count)


def batch(size: int, places: int, z: float) -> dp_event.DpEvent:
    return dp_event.SampledWithoutReplacementDpEvent(size, places, gaussian(z))


def step_of(z: float) -> dp.PoissonSampled:
    return dp.PoissonSampled(0.02, dp.Gaussian(z))


THEIR_TREE = dp_event.SingleEpochTreeAggregationDpEvent
# The gradients' noise is made larger so that both together have noise 1.
CLIPPING = dp.AdaptiveClipping(gradient_noise_multiplier=(1 - (2 * 12.8) ** -2) ** -0.5, count_noise_stddev=12.8)
DRAWN = dp.PoissonSampled(0.1, dp.MixtureOfGaussians(2.2, (0, 2), (0.9, 0.1)))
TWO = dp.Composed((dp.Gaussian(1.3), dp.SelfComposed(dp.Gaussian(9), 4)))
RUNS = [
    (dp.Gaussian(5), gaussian(5)),
    (dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(2)), 200), times(sampled(0.01, gaussian(2)), 200)),
]
PARTS = [
    (dp.Gaussian(3), gaussian(3)),
    (step_of(1.2), sampled(0.02, gaussian(1.2))),
    (dp.SelfComposed(dp.Laplace(30), 20), times(dp_event.LaplaceDpEvent(30.0), 20)),
    (dp.Zcdp(0.01, 0.02), dp_event.ZCDpEvent(0.01, 0.02)),
]
SCHEDULES: tuple[tuple[DecayMode, list[float]], ...] = (
    ("time", [2 / (1 + 0.01 * t) for t in range(3, 23)]),
    ("exp", [2 * exp(-0.01 * t) for t in range(3, 23)]),
)

UNSAMPLED = [
    *(Row(dp.SelfComposed(dp.Gaussian(z), 100), times(gaussian(z), 100)) for z in (0.1, 0.5, 1.1, 10)),
    # Replacing a record is twice the sensitivity; dp_accounting leaves the doubling to its caller.
    *(Row(dp.Gaussian(z), gaussian(z / moved), relation) for z in (0.5, 3) for relation, moved in MOVED),
    *(
        Row(dp.SelfComposed(dp.Laplace(z), n), times(dp_event.LaplaceDpEvent(z), n))
        for z, n in product((0.1, 0.3, 1.0, 5.0, 100.0), (1, 50))
    ),
    *(Row(dp.Laplace(z), dp_event.LaplaceDpEvent(z / 2), REPLACE_ONE) for z in (0.5, 20.0)),
    *(
        Row(dp.Zcdp(rho, xi), dp_event.ZCDpEvent(rho, xi), relation)
        for (rho, xi), relation in product(((1e-4, 0.0), (7.0, 2.0)), (ADD_OR_REMOVE, REPLACE_ONE))
    ),
    *(
        Row(dp.RandomizedResponse(p, k), dp_event.RandomizedResponseDpEvent(p, k), relation)
        for p, k, relation in product((0.05, 0.5, 0.99), (2, 10, 1000), (REPLACE_ONE, REPLACE_SPECIAL))
    ),
    *(
        Row(dp.SelfComposed(dp.TreeAggregation(z, n), 3), times(THEIR_TREE(z, list(n)), 3), REPLACE_SPECIAL)
        for z, n in product((1.0, 50.0), ((1,), (7,), (8,), (100, 50), (1023,), (1024, 3)))
    ),
    *(
        Row(dp.PermuteAndFlip(1 / z), dp_event.LaplaceDpEvent(z), relation)
        for z, (relation, _) in product((0.1, 20.0), MOVED)
    ),
    *(Row(dp.MixtureOfGaussians(3, (2,), (1,)), gaussian(1.5 / moved), relation) for relation, moved in MOVED),
]
SAMPLED = [
    *(
        Row(dp.PoissonSampled(q, dp.Gaussian(z)), sampled(q, gaussian(z)), ADD_OR_REMOVE, "whole")
        for q, z in product((1e-3, MNIST, 0.05, 0.2, 0.9), (0.5, 1.1, 4, 10))
    ),
    *(
        Row(dp.SelfComposed(dp.PoissonSampled(q, dp.Gaussian(z)), n), times(sampled(q, gaussian(z)), n), each, "whole")
        for q, z, n, each in ((MNIST, 1.1, 14062, REPLACE_SPECIAL), (0.1, 6, 300, ADD_OR_REMOVE))
    ),
    *(
        Row(dp.PoissonSampled(q, TWO), sampled(q, gaussian(1.3), times(gaussian(9), 4)), ADD_OR_REMOVE, "whole")
        for q in (0.003, 0.3)
    ),
    *(
        Row(event, sampled(0.02, gaussian(1)), ADD_OR_REMOVE, "whole")
        for event in (
            *(dp.PoissonSampled(0.02, CLIPPING), dp.PoissonSampled(0.02, dp.AdaptiveClipping(1))),
            dp.PoissonSampled(0.02, dp.Gaussian(2, "microbatch")),
            dp.PoissonSampled(0.02, dp.GroupPrivacy(3, dp.Gaussian(3))),
        )
    ),
    # A group of which one is sampled as often, and whose records move the sum as far together.
    Row(dp.GroupPrivacy(2, dp.PoissonSampled(1 - 0.98**0.5, dp.Gaussian(2))), sampled(0.02, gaussian(1)), exact="none"),
    *(
        Row(dp.MixtureOfGaussians(2 * z, (0, 2), (1 - q, q)), sampled(q, gaussian(z)), relation, "whole")
        for (q, z), relation in product(((1e-3, 0.7), (0.2, 4)), (ADD_OR_REMOVE, REPLACE_SPECIAL))
    ),
    Row(DRAWN, sampled(0.01, gaussian(1.1)), REPLACE_SPECIAL, "whole"),
    *(
        Row(dp.TruncatedPoissonSampled(1000, q, 1001, dp.Gaussian(z)), sampled(q, gaussian(z)), relation, "whole")
        for (q, z), relation in product(((1e-3, 0.7), (0.2, 4)), (ADD_OR_REMOVE, REPLACE_SPECIAL))
    ),
    *(Row(dp.TruncatedPoissonSampled(9, 1, 10, dp.Gaussian(2)), gaussian(2 / moved), each) for each, moved in MOVED),
    # All places hold the only record.
    *(Row(dp.SampledWithReplacement(1, n, dp.Gaussian(20)), gaussian(10 / n), REPLACE_ONE) for n in (1, 3)),
    *(
        Row(dp.SampledWithReplacement(size, 1, dp.Gaussian(2 * z)), batch(size, 1, z), REPLACE_ONE, "none")
        for size, z in ((100, 1), (1000, 8))
    ),
    *(
        Row(dp.SampledWithoutReplacement(n, size, dp.Gaussian(2 * z)), batch(n, size, z), REPLACE_ONE, "none")
        for (n, size), z in product(((1000, 10), (60000, 256), (100, 30)), (0.7, 2, 8))
    ),
]
COMPOSED = [
    *(  # both search for an order, dp_accounting among fewer
        Row(
            dp.RepeatAndSelect(ours, mean, None if shape == inf else shape),
            dp_event.RepeatAndSelectDpEvent(theirs, mean, shape),
            exact="none",
        )
        for (ours, theirs), mean, shape in product(RUNS, (1.0, 30.0), (0.0, 0.5, 4.0, inf))
    ),
    *(
        Row(
            dp.SelfComposed(dp.Composed((first[0], second[0])), 5),
            times(dp_event.ComposedDpEvent([first[1], second[1]]), 5),
            exact="whole",
        )
        for first, second in combinations(PARTS, 2)
    ),
    *(
        Row(
            dp.Decay(mode, 0.01, 20, dp.PoissonSampled(0.05, dp.Gaussian(2)), first_step=3),
            dp_event.ComposedDpEvent([sampled(0.05, gaussian(z)) for z in noises]),
            exact="whole",
        )
        for mode, noises in SCHEDULES
    ),
]
ROWS = [*UNSAMPLED, *SAMPLED, *COMPOSED]


def test_rows_are_over_120_different_events() -> None:
    assert len({(row.ours, row.relation) for row in ROWS}) == len(ROWS) > 120


@for_each(ROWS)
def test_a_curve_is_never_above_dp_accountings_and_equals_it_where_that_is_exact(row: Row) -> None:
    accountant = RdpAccountant(ORDERS, Theirs[row.relation.name])
    accountant.compose(row.theirs)
    theirs = accountant.rdp
    ours = curve_over(row.ours, ORDERS, row.relation).nats()
    rounding = 20_000 * UNIT  # up to a unit for each repetition: 1e-9 nats
    assert np.all(ours <= theirs * (1 + 1.01e-9) + rounding)
    exact = {"all": WHOLE | True, "whole": WHOLE, "none": WHOLE & False}[row.exact]
    assert np.all(ours[exact] >= theirs[exact] * (1 - 1e-9) - 1e-12)


@pytest.mark.parametrize("shape", thinned([2.5, 0.0, 1.0], 3))
def test_selection_is_dp_accountings_where_both_search_the_same_orders(shape: float) -> None:
    accountant = RdpAccountant(list(GRID[:-1]))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(gaussian(5), 10.0, shape))
    ours = event_curve(dp.RepeatAndSelect(dp.Gaussian(5), 10.0, shape), ADD_OR_REMOVE).nats()
    assert ours[:-1] == pytest.approx(accountant.rdp, rel=1e-8)
