"""The work of a request is counted before it is done, whoever asked before, and bounded."""

from itertools import product
from math import log
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given

from app.accounting import events as dp
from app.accounting.calibration import solvers
from app.accounting.calibration.solvers import Target, max_sampling_probability, min_noise_multiplier
from app.accounting.conversion import Rule
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.group_privacy import for_group
from app.accounting.pld.frequencies import frequencies
from app.accounting.pld.gaussian_mixture import ReplacedMixturePair
from app.accounting.pld.pairs import GaussianPair, SampledPair
from app.accounting.pld.plans import plan_epsilon, plan_log_delta
from app.accounting.pricing_effort import (
    MAX_WORK,
    bounded,
    bounded_apart,
    curve_work,
    require_affordable_events,
    use_effort,
)
from app.accounting.rdp import event_curve
from tests.accounting.event_strategies import EVENTS
from tests.each import for_each

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
SAMPLED = dp.PoissonSampled(0.01, dp.Gaussian(1.0))
SCHEDULE = dp.Decay("time", 1e-4, 1000, dp.PoissonSampled(0.5, dp.Gaussian(5.0)))


def test_work_without_a_bound_is_not_counted() -> None:
    use_effort(10**12)
    with bounded(10):
        use_effort(10)
        with pytest.raises(PlanTooExpensiveError, match="Send fewer different events"):
            use_effort(1)
    use_effort(10**12)


def test_work_that_is_counted_apart_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.accounting.pricing_effort.MAX_PLAN_WORK", 5)
    with bounded_apart():
        use_effort(10**12)
    with bounded(10):
        use_effort(9)
        with bounded_apart():
            use_effort(5)
            with pytest.raises(PlanTooExpensiveError):
                use_effort(1)
        use_effort(1)
        with pytest.raises(PlanTooExpensiveError):
            use_effort(1)


def test_the_work_of_a_loss_distribution_is_about_the_time_it_takes() -> None:
    """A lattice with millions of places takes hundreds of times as long as a usual one."""
    usual, tiny = (SampledPair(q, GaussianPair(z), removes=True) for q, z in ((0.01, 1.1), (4.37e-6, 0.322)))
    with bounded(10_000):
        plan_epsilon({usual: 1000}, 1e-6)
    with bounded(500_000), pytest.raises(PlanTooExpensiveError):
        plan_epsilon({tiny: 30}, 4.25e-5)


@for_each(product((1e-6, 0.1, 0.9), (0.3, 1.0, 10.0)))
def test_losses_of_a_replaced_record_are_found_in_few_rounds(q_and_z: tuple[float, float]) -> None:
    """A place that was found left its bracket, and was searched for by halving in 50 rounds."""
    q, z = q_and_z
    with patch.object(Mixture, "slope", autospec=True, side_effect=Mixture.slope) as slope:
        ReplacedMixturePair(Mixture(z, (0.0, 1.0), (1 - q, q))).tails(np.linspace(-10, 10, 201))
    assert slope.call_count / 2 <= 12


def test_epsilon_at_almost_half_of_delta_takes_no_finer_lattice() -> None:
    """Places between 0 and an epsilon of 1e-9 took 12 s, and were given up again."""
    sampled = ReplacedMixturePair(Mixture(1.0, (0.0, 1.0), (0.9, 0.1)))
    with bounded(300_000):
        assert log(0.06) < plan_log_delta({sampled: 1}, 1e-9, 0.49) < log(0.07)


def test_frequencies_that_are_summed_count_each_product_with_a_mass() -> None:
    """Of 3 distributions with 10 masses 2,049 frequencies: 122 µs for pairs of masses, 491 for sums, then powers."""
    masses, counts, places = np.full((3, 10), 0.1), np.ones(3), np.arange(10)
    with bounded(1412):
        assert frequencies(masses, counts, places, 4096, 0.0) is not None
    with bounded(1411), pytest.raises(PlanTooExpensiveError):
        frequencies(masses, counts, places, 4096, 0.0)


def test_a_curve_that_is_kept_counts_like_any_other_and_a_bound_does_not_change_it() -> None:
    work, curve = curve_work(SAMPLED, few=False), event_curve(SAMPLED, ADD)
    for _ in range(2):
        with bounded(2 * work - 1):
            assert event_curve(SAMPLED, ADD) == curve
            with pytest.raises(PlanTooExpensiveError):
                event_curve(SAMPLED, ADD)


@pytest.mark.parametrize("search", [min_noise_multiplier, max_sampling_probability])
def test_a_search_stops_before_it_computes_beyond_the_bound(search: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(search)
    target = Target(Rule(1.0, 1e-5), 1000, RdpCurve.zero(orders(GRID_VERSION).size), ADD)
    with bounded():
        assert search(SAMPLED, target) is not None
        with pytest.raises(PlanTooExpensiveError):
            search(SCHEDULE, target)
    monkeypatch.setattr(solvers, "curve_over", None)  # whatever is computed fails
    short = dp.Decay("time", 1e-4, 10, dp.PoissonSampled(0.5, dp.Gaussian(5.0)))
    with bounded(5 * curve_work(short, few=False)), pytest.raises(PlanTooExpensiveError):
        search(short, target)


def test_the_longest_exact_schedule_may_be_charged_and_two_may_not() -> None:
    assert 0.9 * MAX_WORK < require_affordable_events([SCHEDULE, SCHEDULE]) <= MAX_WORK
    with pytest.raises(PlanTooExpensiveError, match=r"about 1\.5 s"):
        require_affordable_events([SCHEDULE, dp.Decay("exp", 1e-4, 1000, dp.PoissonSampled(0.5, dp.Gaussian(5.0)))])


@given(EVENTS)
def test_wrapper_is_more_work_than_its_event_and_few_orders_are_less(event: DpEvent) -> None:
    work = curve_work(event, few=False)
    assert 0 < curve_work(event, few=True) <= work
    plain = (dp.SelfComposed(event, 10**9), dp.GroupPrivacy(1, event), dp.Composed((event, event)))
    for wrapped in (*plain, dp.RepeatAndSelect(event, 10.0, None)):
        assert curve_work(wrapped, few=False) > work
    assert curve_work(dp.Composed((event, dp.Gaussian(1e6), dp.Laplace(1e6))), few=False) > work


def q(event: DpEvent, probability: float = 0.1) -> DpEvent:
    return dp.PoissonSampled(probability, event)


NOISE, LAPLACE, FLIP = dp.Gaussian(1.0), dp.Laplace(1.0), dp.PermuteAndFlip(1.0)
DEARER: list[tuple[DpEvent, DpEvent]] = [
    *((NOISE, q(NOISE)), (q(NOISE, 1.0), q(NOISE)), (q(NOISE), dp.SampledWithoutReplacement(100, 10, NOISE))),
    (dp.RepeatAndSelect(NOISE, 2, 1), q(dp.RepeatAndSelect(NOISE, 2, 1))),
    (dp.SampledWithoutReplacement(100, 100, NOISE), dp.SampledWithoutReplacement(100, 10, NOISE)),
    *((q(LAPLACE), q(dp.GroupPrivacy(2, LAPLACE))), (q(FLIP), q(dp.GroupPrivacy(2, FLIP)))),
    (dp.TreeAggregation(1.0, (1,)), dp.TreeAggregation(1.0, (1,) * 1000)),
    (dp.RepeatAndSelect(NOISE, 2.0, 1.0), dp.RepeatAndSelect(NOISE, 2.0, None)),
    (q(dp.Composed((NOISE,))), q(dp.Composed((dp.SelfComposed(NOISE, 2),) * 1000))),
]
DEARER_OVER_FEW_ORDERS: list[tuple[DpEvent, DpEvent]] = [
    (
        dp.MixtureOfGaussians(3.0, (0, 1, 2), (0.8, 0.1, 0.1)),
        dp.MixtureOfGaussians(3.0, tuple(map(float, range(9))), (0.2, *[0.1] * 8)),
    ),
    *((q(LAPLACE), q(dp.Laplace(0.1))), (q(FLIP), q(dp.PermuteAndFlip(10.0)))),
    (dp.DiscreteLaplace(0.1, 3), q(dp.DiscreteLaplace(0.1, 3))),
    (dp.SampledWithReplacement(1000, 1, dp.Gaussian(9.0)), dp.SampledWithReplacement(1000, 500, dp.Gaussian(9.0))),
    (q(NOISE), dp.TruncatedPoissonSampled(1000, 0.1, 120, NOISE)),
]


@for_each([*DEARER, *DEARER_OVER_FEW_ORDERS])
def test_event_that_takes_longer_counts_more(pair: tuple[DpEvent, DpEvent]) -> None:
    cheap, dear = pair
    assert curve_work(cheap, few=False) < curve_work(dear, few=False)
    if pair in DEARER_OVER_FEW_ORDERS:
        assert curve_work(cheap, few=True) < curve_work(dear, few=True)


@pytest.mark.parametrize("few", [False, True])
def test_a_group_counts_as_the_event_that_protects_it(few: bool) -> None:  # noqa: FBT001 - as the function's
    drawn = dp.MixtureOfGaussians(20.0, (0.0, 0.4, 1.0), (0.8, 0.1, 0.1))
    composed = (dp.SelfComposed(drawn, 3), dp.Composed((drawn, dp.Gaussian(9.0))))
    for event in (drawn, dp.PoissonSampled(0.1, drawn), *composed):
        work = curve_work(dp.GroupPrivacy(4, event), few=few)
        assert work > curve_work(for_group(event, 4), few=few) > 1.5 * curve_work(event, few=few)
    assert curve_work(dp.PoissonSampled(0.1, dp.GroupPrivacy(4, drawn)), few=few) > 1.5 * curve_work(drawn, few=few)
