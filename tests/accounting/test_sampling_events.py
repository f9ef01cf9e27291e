"""Events on a sample: what may be sampled, what it is charged as, and what is refused."""

from itertools import product

import numpy as np
import pytest

from app.accounting import events as dp
from app.accounting.curves import DELTA_UNIT, GRID_VERSION, HIGHEST, RdpCurve, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.exact_losses import UNBOUNDED_LOSSES, pure_nats
from app.accounting.formulas.amplification import sampled_epsilon_delta, sampled_pure_dp_rdp
from app.accounting.formulas.mechanisms import bounded_range_rdp, pure_dp_rdp
from app.accounting.rdp import event_curve
from tests.each import for_each

ADD_OR_REMOVE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation
GRID = orders(GRID_VERSION)

DRAWN = dp.MixtureOfGaussians(2, (0, 1, 2), (0.4, 0.5, 0.1))
SUMS = [
    *(dp.Gaussian(2), dp.Gaussian(2, "microbatch"), dp.AdaptiveClipping(2), dp.SelfComposed(dp.Gaussian(2), 3)),
    dp.AdaptiveClipping(gradient_noise_multiplier=2, count_noise_stddev=9),
    dp.Composed((dp.Gaussian(2), dp.SelfComposed(dp.Composed((dp.Gaussian(3), dp.AdaptiveClipping(4))), 2))),
    *(dp.Laplace(2), dp.DiscreteGaussian(2), dp.DiscreteLaplace(0.5, 2), DRAWN),
    dp.MixtureOfGaussians(4, (1, 2), (0.9, 0.1)),
    *(dp.GroupPrivacy(2, dp.Gaussian(2)), dp.GroupPrivacy(2, dp.Laplace(2))),
    *(dp.GroupPrivacy(2, dp.DiscreteLaplace(0.5, 2)), dp.GroupPrivacy(2, DRAWN)),
    dp.GroupPrivacy(2, dp.GroupPrivacy(2, dp.SelfComposed(dp.Gaussian(9), 2))),
]
STATED = [dp.EpsilonDelta(0.5), dp.EpsilonDelta(0.5, 1e-7), dp.GroupPrivacy(2, dp.EpsilonDelta(0.5, 1e-7))]
CHOICES = [dp.Exponential(0.5), dp.PermuteAndFlip(0.5)]
SAMPLABLE = [*SUMS, *CHOICES, dp.GroupPrivacy(2, dp.PermuteAndFlip(0.5)), *STATED]
LOCAL = [dp.RandomizedResponse(0.5, 2), dp.Zcdp(0.1), dp.TreeAggregation(1, (8,))]
NOT_SAMPLABLE = [
    *LOCAL,
    *(dp.PoissonSampled(0.5, dp.Gaussian(1)), dp.PoissonSampled(1, dp.Gaussian(1))),
    *(dp.SampledWithoutReplacement(10, 2, dp.Gaussian(1)), dp.SampledWithReplacement(10, 2, dp.Gaussian(1))),
    dp.TruncatedPoissonSampled(10, 0.3, 2, dp.Gaussian(1)),
    *(dp.Composed((dp.Gaussian(1), dp.Laplace(1))), dp.Composed((dp.Gaussian(1), DRAWN))),
    *(dp.SelfComposed(dp.DiscreteLaplace(0.5, 2), 2), dp.SelfComposed(dp.Exponential(1), 2)),
    *(dp.SelfComposed(dp.PoissonSampled(0.5, dp.Gaussian(1)), 2), dp.RepeatAndSelect(dp.Gaussian(1), 2, 1)),
    *(dp.GroupPrivacy(2, dp.Zcdp(0.1)), dp.GroupPrivacy(2, dp.RandomizedResponse(0.5, 2))),
    dp.Decay("time", 0.1, 5, dp.Gaussian(1)),
]
SHOWING = [
    *(*CHOICES, *STATED, *LOCAL, dp.SelfComposed(dp.Exponential(1), 2), dp.PoissonSampled(0.5, dp.EpsilonDelta(0.5))),
    dp.Composed((dp.Gaussian(1), dp.RandomizedResponse(0.5, 2))),
    dp.RepeatAndSelect(dp.RandomizedResponse(0.9, 2), 2, 1),
]


@for_each(SAMPLABLE)
def test_sample_costs_less_than_all_records_and_a_rarer_one_less(event: DpEvent) -> None:
    for relation in NeighboringRelation:
        assert event_curve(dp.PoissonSampled(1, event), relation) == event_curve(event, relation)
    everybody = event_curve(event, ADD_OR_REMOVE)
    dearer = everybody
    for q in (0.999, 0.5, 0.01, 1e-6):
        curve = event_curve(dp.PoissonSampled(q, event), ADD_OR_REMOVE)
        assert np.all(curve.values <= dearer.values)
        assert curve.delta <= dearer.delta
        dearer = curve
    assert np.all((dearer.values < everybody.values)[GRID <= HIGHEST])


@for_each([*SUMS, dp.Composed((dp.Gaussian(1), dp.Laplace(1)))])
def test_special_record_of_a_sum_costs_a_missing_one_and_a_replaced_one_less_than_a_visible_one(event: DpEvent) -> None:
    sampled = dp.PoissonSampled(0.03, event)
    replaced, taken = event_curve(sampled, REPLACE_ONE), event_curve(event, REPLACE_ONE)
    if event in SUMS:
        removed = event_curve(sampled, ADD_OR_REMOVE)
        assert event_curve(sampled, REPLACE_SPECIAL) == removed
        assert replaced.covers(removed)
    with np.errstate(over="ignore"):
        convex = np.log1p(0.03 * np.expm1((GRID - 1) * taken.nats())) / (GRID - 1)
    assert np.all(replaced.nats() <= np.minimum(convex * (1 + 2e-9), taken.nats()))


@for_each(product(SHOWING, (REPLACE_ONE, REPLACE_SPECIAL)))
def test_sample_whose_absence_may_show_costs_the_convex_bound(case: tuple[DpEvent, NeighboringRelation]) -> None:
    event, relation = case
    taken, q, b = event_curve(event, relation), 0.03, GRID - 1
    with np.errstate(over="ignore"):
        convex = np.log1p(q * np.expm1(b * taken.nats())) / b
    sampled = event_curve(dp.PoissonSampled(q, event), relation)
    usual = np.isfinite(convex)
    assert sampled.nats()[usual] == pytest.approx(convex[usual], rel=2e-9)
    assert sampled.values[-1] == taken.values[-1]  # the largest loss is that of a record which is taken
    assert np.all(sampled.values <= taken.values)
    assert q * taken.delta_value() <= sampled.delta_value() <= q * taken.delta_value() * (1 + 3e-9) + DELTA_UNIT


@pytest.mark.parametrize(("order", "factor"), [(2, 99), (8, 708)])
def test_clients_that_are_seen_to_answer_pay_for_it(order: float, factor: float) -> None:
    # Each client is drawn with q = 0.01 and answers by a 1-DP local randomizer; the server sees who answered.
    prices = event_curve(dp.PoissonSampled(0.01, dp.EpsilonDelta(1)), REPLACE_SPECIAL).nats()
    price = prices[np.searchsorted(GRID, order)]
    yes, no = np.exp(1) / (1 + np.exp(1)), 1 / (1 + np.exp(1))
    moment = 0.99 + 0.01 * (yes**order * no ** (1 - order) + no**order * yes ** (1 - order))
    truth = np.log(moment) / (order - 1)
    assert truth <= price <= truth * (1 + 1e-8)
    hidden = sampled_pure_dp_rdp(0.01, 1, np.array([float(order)]))[0]
    assert truth / hidden == pytest.approx(factor, rel=0.01)


@for_each([dp.Zcdp(0.1), dp.RepeatAndSelect(dp.Gaussian(1), 2, 1), dp.Composed((dp.Gaussian(2), dp.Laplace(2)))])
def test_taking_every_record_is_no_sampling(event: DpEvent) -> None:
    for relation in NeighboringRelation:
        assert event_curve(dp.PoissonSampled(1, event), relation) == event_curve(event, relation)
    assert event_curve(dp.SampledWithoutReplacement(9, 9, event), REPLACE_ONE) == event_curve(event, REPLACE_ONE)


@for_each(NOT_SAMPLABLE)
def test_sampled_event_without_amplification_is_refused_where_a_record_is_added(event: DpEvent) -> None:
    with pytest.raises(
        UnsupportedEventError, match=r"may hold (a )?gaussian|zcdp does not amplify|out of a known number of records"
    ):
        event_curve(dp.PoissonSampled(0.5, event), ADD_OR_REMOVE)


@pytest.mark.parametrize("q", [1e-4, 0.02, 0.6])
def test_releases_of_one_sample_are_one_gaussian_release(q: float) -> None:
    together = dp.PoissonSampled(q, dp.Composed((dp.Gaussian(5), dp.AdaptiveClipping(20 / 3))))
    assert event_curve(together, ADD_OR_REMOVE).nats() == pytest.approx(
        event_curve(dp.PoissonSampled(q, dp.Gaussian(4)), ADD_OR_REMOVE).nats(), rel=1e-12
    )
    apart = dp.Composed((dp.PoissonSampled(q, dp.Gaussian(5)), dp.PoissonSampled(q, dp.Gaussian(20 / 3))))
    cheaper = event_curve(apart, ADD_OR_REMOVE).values < event_curve(together, ADD_OR_REMOVE).values
    assert np.all(cheaper[GRID <= HIGHEST])


def test_hardly_any_noise_is_priced_and_less_is_refused() -> None:
    # A clipped micro-batch may have half of the least noise multiplier; a thousand releases of one sample may not.
    curve = event_curve(dp.PoissonSampled(0.5, dp.Gaussian(1e-3, "microbatch")), ADD_OR_REMOVE)
    assert curve.values.min() > 0
    for event in (dp.SelfComposed(dp.Gaussian(1e-3), 5), dp.SelfComposed(dp.Gaussian(1), 10**9)):
        sampled = dp.PoissonSampled(0.5, dp.SelfComposed(event, 10**9))
        with pytest.raises(UnsupportedEventError, match="together a noise multiplier of"):
            event_curve(sampled, ADD_OR_REMOVE)


def test_a_sampled_choice_costs_at_most_what_its_range_allows() -> None:
    q, epsilon = 0.7, 3.0
    expected = np.minimum(sampled_pure_dp_rdp(q, epsilon, GRID), bounded_range_rdp(epsilon, GRID))
    curve = event_curve(dp.PoissonSampled(q, dp.Exponential(epsilon)), ADD_OR_REMOVE)
    assert curve.with_exact(UNBOUNDED_LOSSES) == RdpCurve.from_nats(expected)
    assert pure_nats(curve.pure) == pytest.approx(expected[-1], rel=1e-9)


@pytest.mark.parametrize(("q", "delta"), [(0.01, 1e-6), (0.9, 1e-12), (1e-300, 1e-300)])
def test_a_delta_of_its_own_is_sampled_too(q: float, delta: float) -> None:
    epsilon, rarer = sampled_epsilon_delta(q, 0.5, delta)
    curve = event_curve(dp.PoissonSampled(q, dp.EpsilonDelta(0.5, delta)), ADD_OR_REMOVE)
    assert np.array_equal(curve.values, RdpCurve.from_nats(pure_dp_rdp(epsilon, GRID)).values)
    assert rarer <= curve.delta_value() <= rarer * (1 + 2e-9) + DELTA_UNIT
    assert curve.delta >= 1


def test_gaussian_releases_of_a_fixed_batch_cost_by_their_sensitivity() -> None:
    # The micro-batch moves by two norms, as a sum does.
    same = (dp.Gaussian(2), dp.AdaptiveClipping(2), dp.Gaussian(2, "microbatch"), dp.GroupPrivacy(3, dp.Gaussian(6)))
    assert len({event_curve(dp.SampledWithoutReplacement(100, 7, each), REPLACE_ONE) for each in same}) == 1
