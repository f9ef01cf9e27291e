"""zCDP: the numbers that its monitors print, a bound on every order, and nothing to say of what is sampled."""

from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import GRID_VERSION, HIGHEST, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.rdp import event_curve
from app.accounting.zcdp import ZcdpBound, total_zcdp_bound, zcdp_bound
from tests.each import for_each

ADD, REPLACE, SPECIAL = NeighboringRelation
GRID = orders(GRID_VERSION)
DECAY = dp.Decay(mode="time", decay_rate=6e-4, steps=300, event=dp.Gaussian(4.0))

GAUSSIAN: list[tuple[DpEvent, NeighboringRelation, float]] = [
    (dp.Gaussian(2.0), ADD, 1 / 8),
    (dp.Gaussian(2.0), SPECIAL, 1 / 8),
    (dp.Gaussian(2.0), REPLACE, 1 / 2),
    (dp.Gaussian(2.0, "microbatch"), ADD, 1 / 2),
    (dp.AdaptiveClipping(noise_multiplier=2.0), ADD, 1 / 8),
    (dp.AdaptiveClipping(gradient_noise_multiplier=2.0, count_noise_stddev=1.0), ADD, 1 / 4),
    (dp.TreeAggregation(2.0, (1,)), SPECIAL, 1 / 8),
    (dp.TreeAggregation(2.0, (4,)), SPECIAL, 3 / 8),
    (dp.SelfComposed(dp.Gaussian(2.0), 100), ADD, 100 / 8),
    (dp.Composed((dp.Gaussian(2.0), dp.SelfComposed(dp.Gaussian(1.0), 3))), ADD, 1 / 8 + 3 / 2),
    (dp.GroupPrivacy(3, dp.Gaussian(2.0)), ADD, 9 / 8),
    (dp.PoissonSampled(1.0, dp.Gaussian(2.0)), ADD, 1 / 8),
    (dp.SampledWithoutReplacement(10, 10, dp.Gaussian(2.0)), REPLACE, 1 / 2),
    (DECAY, ADD, sum((1 + 6e-4 * t) ** 2 / 32 for t in range(300))),
]
OTHER: list[tuple[DpEvent, NeighboringRelation, float, float]] = [
    (dp.DiscreteGaussian(2.0), ADD, 1 / 8, 0.0),
    (dp.Laplace(2.0), ADD, 1 / 8, 0.0),
    (dp.Laplace(2.0), REPLACE, 1 / 2, 0.0),
    (dp.DiscreteLaplace(0.1, 5), ADD, 1 / 8, 0.0),
    (dp.DiscreteLaplace(0.1, 5), REPLACE, 1 / 2, 0.0),
    (dp.PermuteAndFlip(0.5), ADD, 1 / 8, 0.0),
    (dp.RandomizedResponse(0.5, 2), REPLACE, log(3) ** 2 / 2, 0.0),
    (dp.RandomizedResponse(0.5, 2), SPECIAL, log(2) ** 2 / 2, 0.0),
    (dp.RandomizedResponse(0.5, 4), SPECIAL, log(2.5) ** 2 / 2, 0.0),
    (dp.Exponential(0.4), ADD, 0.02, 0.0),
    (dp.EpsilonDelta(0.4), ADD, 0.08, 0.0),
    (dp.Zcdp(0.3, 0.1), ADD, 0.3, 0.1),
    (dp.SelfComposed(dp.Zcdp(0.3, 0.1), 5), ADD, 1.5, 0.5),
    (dp.GroupPrivacy(2, dp.Zcdp(0.3, 0.1)), ADD, 1.2, 0.3),
]
UNKNOWN: list[tuple[DpEvent, NeighboringRelation]] = [
    (dp.PoissonSampled(0.5, dp.Gaussian(2.0)), ADD),
    (dp.PoissonSampled(0.5, dp.Laplace(2.0)), ADD),
    (dp.SampledWithoutReplacement(10, 9, dp.Gaussian(2.0)), REPLACE),
    (dp.EpsilonDelta(0.4, 1e-6), ADD),
    (dp.Zcdp(0.4, delta=1e-6), ADD),
    (dp.RepeatAndSelect(dp.Gaussian(2.0), 10.0, 1.0), ADD),
    (dp.Composed((dp.Gaussian(2.0), dp.PoissonSampled(0.5, dp.Gaussian(2.0)))), ADD),
    (dp.SelfComposed(dp.PoissonSampled(0.5, dp.Gaussian(2.0)), 4), ADD),
    (dp.GroupPrivacy(2, dp.PoissonSampled(0.5, dp.Gaussian(2.0))), ADD),
    (dp.Decay(mode="time", decay_rate=6e-4, steps=300, event=dp.PoissonSampled(0.1, dp.Gaussian(4.0))), ADD),
]


@for_each([*((*row, 0.0, True) for row in GAUSSIAN), *((*row, False) for row in OTHER)])
def test_event_has_its_published_numbers_and_no_order_diverges_more(
    row: tuple[DpEvent, NeighboringRelation, float, float, bool],
) -> None:
    event, relation, rho, xi, is_gaussian = row
    found = zcdp_bound(event, relation)
    assert found is not None
    assert found.is_gaussian == is_gaussian
    assert (found.rho, found.xi) == pytest.approx((rho, xi), rel=1e-12)
    bounded = event_curve(event, relation).nats() <= (found.xi + found.rho * GRID) * (1 + 2e-9) + 1e-13
    assert bounded[GRID <= HIGHEST].all()


@for_each(UNKNOWN)
def test_nothing_is_said_of_what_is_sampled_or_fails_with_a_delta(row: tuple[DpEvent, NeighboringRelation]) -> None:
    event, relation = row
    assert zcdp_bound(event, relation) is None
    assert total_zcdp_bound([(dp.Gaussian(2.0), 3), (event, 1)], relation) is None


def test_a_plan_is_the_sum_of_its_steps() -> None:
    found = total_zcdp_bound([(dp.Gaussian(2.0), 8), (dp.Zcdp(0.5, 0.1), 2)], ADD)
    assert found == ZcdpBound(2.0, 0.2, is_gaussian=False)
    assert total_zcdp_bound([(dp.Gaussian(2.0), 8), (dp.Gaussian(1.0), 2)], ADD) == ZcdpBound(2.0, is_gaussian=True)


@given(rho=st.floats(1e-9, 100), xi=st.floats(0, 1), delta=st.floats(1e-30, 0.4))
def test_the_printed_epsilon_is_xi_plus_rho_plus_two_roots(rho: float, xi: float, delta: float) -> None:
    plan = ZcdpBound(rho, xi)
    exact = xi + rho + 2 * sqrt(rho * log(1 / delta))
    assert exact <= plan.epsilon(delta) <= exact * (1 + 1e-11)
    assert plan.delta(plan.epsilon(delta)) == pytest.approx(delta, rel=1e-7)
    assert plan.delta(xi) == 1
    # The grid's best order is no better than the continuous one that this formula stands for.
    classic = (xi + rho * GRID + log(1 / delta) / (GRID - 1)).min()
    assert classic >= plan.epsilon(delta) * (1 - 1e-11)


@given(rho=st.floats(1e-6, 50), delta=st.floats(-20, -1).map(lambda exponent: 10**exponent))
def test_for_gaussian_noise_exact_is_at_most_renyi_is_at_most_zcdp(rho: float, delta: float) -> None:
    plan = ZcdpBound(rho, is_gaussian=True)
    renyi = epsilon_of_curve(GRID, event_curve(dp.Zcdp(rho), ADD), delta).epsilon
    assert plan.exact_epsilon(delta) <= renyi
    assert plan.exact_epsilon(delta) == pytest.approx(gaussian_epsilon(sqrt(2 * rho), delta), rel=1e-9)
    assert plan.exact_delta(plan.epsilon(delta)) <= delta
    assert plan.exact_epsilon(delta) <= plan.epsilon(delta)


def test_the_numbers_stay_finite_for_the_loudest_plans() -> None:
    plan = ZcdpBound(0.0, is_gaussian=True) + ZcdpBound(1e6 / 2, is_gaussian=True).times(1e9)
    assert plan.epsilon(1e-30) < inf
    assert plan.exact_epsilon(1e-30) < inf
    assert plan.delta(1e4) == plan.exact_delta(1e4) == 1
    assert np.isfinite(plan.rho)
