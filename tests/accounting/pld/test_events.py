"""Epsilon of events by their privacy loss distributions, against dp_accounting, closed forms and pure epsilons."""

from math import comb, erfc, exp, expm1, inf, log, log1p, sqrt

import pytest

from app.accounting import events as dp
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.pld.accountant import pld_delta, pld_epsilon
from app.accounting.pld.events import composed
from app.accounting.pld.merging import MAX_PAIRS
from tests.each import for_each

ADD, REPLACE, SPECIAL = NeighboringRelation


@pytest.mark.parametrize("steps", [2, 1000, 1001, 50_000])
@pytest.mark.parametrize("rate", [0.0, 1e-300])
def test_equal_noise_of_a_schedule_is_charged_for_all_its_steps(steps: int, rate: float) -> None:
    step = dp.PoissonSampled(0.01, dp.Gaussian(2.0))
    assert composed({dp.Decay("exp", rate, steps, step): 3}, ADD) == composed({step: 3 * steps}, ADD)


@pytest.mark.parametrize(
    ("events", "relation", "mu"),
    [
        ({dp.Gaussian(5.0): 3}, ADD, sqrt(3) / 5),
        ({dp.Gaussian(5.0): 3}, REPLACE, 2 * sqrt(3) / 5),
        ({dp.Gaussian(5.0): 1, dp.PoissonSampled(1.0, dp.Gaussian(5.0)): 2}, ADD, sqrt(3) / 5),
        ({dp.SampledWithoutReplacement(10, 10, dp.Gaussian(5.0)): 3}, REPLACE, 2 * sqrt(3) / 5),
        ({dp.TreeAggregation(20.0, (100, 50)): 5}, SPECIAL, sqrt(5 * 7) / 20),
        ({dp.Decay("step", 0.5, 2, dp.Gaussian(8.0)): 3}, ADD, sqrt(3 * (1 / 64 + 1 / 16))),
    ],
)
def test_gaussian_noise_has_its_closed_form(
    events: dict[DpEvent, int], relation: NeighboringRelation, mu: float
) -> None:
    assert pld_epsilon(events, relation, 1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-12)


def test_a_mixture_of_one_distance_is_a_sample() -> None:
    sample = composed({dp.PoissonSampled(0.25, dp.Gaussian(1.0)): 1}, ADD)
    assert composed({dp.MixtureOfGaussians(2.0, (0, 2), (0.75, 0.25)): 1}, ADD) == sample
    assert composed({dp.PoissonSampled(0.5, dp.MixtureOfGaussians(2.0, (0, 2), (0.5, 0.5))): 1}, ADD) == sample


def test_a_mixture_costs_what_removing_its_record_costs() -> None:
    # Adding it loses at most -ln 0.9 = 0.105: less than the loss at x = 4.
    s, x, sizes, shares = 2.0, 4.0, (0.0, 1.0, 2.0), (0.9, 0.09, 0.01)
    ratio = sum(share * exp(size * (2 * x - size) / (2 * s * s)) for size, share in zip(sizes, shares, strict=True))
    above = sum(share * erfc((x - size) / s / sqrt(2)) / 2 for size, share in zip(sizes, shares, strict=True))
    exact = above - ratio * erfc(x / s / sqrt(2)) / 2
    assert exact <= pld_delta({dp.MixtureOfGaussians(s, sizes, shares): 1}, ADD, log(ratio)) < 1.001 * exact


@pytest.mark.parametrize(("most", "mu"), [(20, 2 / 5), (10, 4 / 5)])
def test_a_truncated_sample_of_all_records_is_their_sum_or_replaces_one(most: int, mu: float) -> None:
    found = pld_epsilon({dp.TruncatedPoissonSampled(10, 1.0, most, dp.Gaussian(5.0)): 4}, ADD, 1e-6)
    assert gaussian_epsilon(mu, 1e-6) <= found < 1.001 * gaussian_epsilon(mu, 1e-6)


LAPLACE = dp.Laplace(1.0)


@for_each(
    [
        (dp.GroupPrivacy(3, LAPLACE), ADD),
        (dp.SelfComposed(LAPLACE, 3), ADD),
        (dp.Composed((LAPLACE, dp.SelfComposed(LAPLACE, 2))), ADD),
        (dp.PoissonSampled(1.0, dp.SelfComposed(LAPLACE, 3)), ADD),
        (dp.SampledWithoutReplacement(9, 9, dp.SelfComposed(dp.Laplace(2.0), 3)), REPLACE),
    ]
)
def test_a_wrapper_of_pure_mechanisms_is_pure(case: tuple[DpEvent, NeighboringRelation]) -> None:
    event, relation = case
    assert pld_epsilon({event: 1}, relation, 1e-6) <= 3
    assert pld_delta({event: 1}, relation, 3 * (1 + 1e-12)) == 0


def test_a_pure_guarantee_is_never_exceeded() -> None:
    assert pld_epsilon({dp.Laplace(1.0): 1}, ADD, 1e-12) <= 1
    assert pld_epsilon({dp.EpsilonDelta(0.7, 1e-8): 2}, ADD, 2.0001e-8) <= 1.4
    assert pld_epsilon({dp.DiscreteLaplace(0.5, 2): 3}, ADD, 1e-12) <= 3
    assert pld_epsilon({dp.Laplace(1.0): 1}, ADD, 1e-30) <= 1 + 2**-49
    assert 0 <= pld_delta({dp.Laplace(1.0): 1}, ADD, 1.0) <= 2**-49
    assert pld_delta({dp.Laplace(1.0): 1}, ADD, 1.001) == 0
    amplified = pld_epsilon({dp.PoissonSampled(0.1, dp.EpsilonDelta(0.7, 1e-8)): 1}, ADD, 1.0001e-9)
    assert amplified <= log1p(0.1 * expm1(0.7)) * 1.000001


def test_near_a_pure_guarantee_randomized_response_is_the_bound() -> None:
    for short in (1e-3, 1e-9):
        delta = (exp(1) - exp(1 - short)) / (1 + exp(1))
        assert pld_delta({dp.EpsilonDelta(1.0, 0.0): 1}, ADD, 1 - short) == pytest.approx(delta, rel=1e-6)
        assert pld_epsilon({dp.EpsilonDelta(1.0, 0.0): 1}, ADD, delta) == pytest.approx(1 - short, rel=1e-12)
    assert pld_epsilon({dp.EpsilonDelta(1e-9, 0.0): 1}, ADD, 1e-3) == 0


def test_a_bounded_range_lies_between_two_losses_and_a_pure_guarantee() -> None:
    found = pld_epsilon({dp.Exponential(0.1): 100}, ADD, 1e-5)
    assert 1.968 < found < pld_epsilon({dp.EpsilonDelta(0.1, 0.0): 100}, ADD, 1e-5)
    taken = pld_epsilon({dp.PoissonSampled(0.2, dp.Exponential(0.5)): 100}, ADD, 1e-5)
    assert taken < pld_epsilon({dp.PoissonSampled(0.2, dp.EpsilonDelta(0.5, 0.0)): 100}, ADD, 1e-5)


MANY: dict[str, dict[DpEvent, int]] = {
    "decay": {dp.Decay("exp", 2e-5, 100_000, dp.PoissonSampled(0.02, dp.Gaussian(6.0))): 1},
    "noises": {dp.PoissonSampled(0.01, dp.Gaussian(0.8 * 10 ** (place / 999))): 10 for place in range(1000)},
    "more noises": {dp.PoissonSampled(0.01, dp.Gaussian(0.8 + 7.2 * place / 2999)): 10 for place in range(3000)},
    "samples": {dp.PoissonSampled(0.004 + place / 1e5, dp.Gaussian(1.1)): 10 for place in range(1000)},
    "both": {dp.PoissonSampled(0.004 * 4**t, dp.Gaussian(1 + 3 * t)): 10 for t in (n / 999 for n in range(1000))},
    "laplace": {dp.Laplace(10.0 + place): 1 for place in range(400)},
}
EACH = {"decay": 31.34, "noises": 3.304347, "more noises": 3.638211}
EACH |= {"samples": 4.877223, "both": 1.442969, "laplace": 1.154022}
"""Epsilons of all mechanisms one by one, at 1e-5: computed with MAX_PAIRS above their number."""


@for_each(list(MANY))
def test_many_mechanisms_as_fewer_cost_less_than_one_percent(name: str) -> None:
    assert len(composed(MANY[name], ADD).removal) == MAX_PAIRS
    found = pld_epsilon(MANY[name], ADD, 1e-5)
    assert EACH[name] <= found < 1.01 * EACH[name]


def test_own_deltas_are_composed() -> None:
    two: dict[DpEvent, int] = {dp.EpsilonDelta(1, 0.1): 1, dp.EpsilonDelta(2, 0.2): 1}
    assert pld_delta(two, ADD, 3.0) == pytest.approx(1 - 0.9 * 0.8, rel=1e-8)
    stated = dp.EpsilonDelta(0.1, 1e-7)
    same: list[dict[DpEvent, int]] = [{stated: 100}, {dp.SelfComposed(dp.Composed((stated, stated)), 50): 1}]
    for events in same:
        found = pld_epsilon(events, ADD, 1e-5)
        assert found == pytest.approx(6.378, rel=1e-4)  # dp_accounting's
        assert pld_delta(events, ADD, found) == pytest.approx(1e-5, rel=1e-9)
    assert pld_epsilon({stated: 101}, ADD, 1e-5) == inf
    sampled = pld_delta({dp.PoissonSampled(0.5, dp.EpsilonDelta(0, 0.2)): 2, dp.NoOp(): 1}, ADD, 0.0)
    assert sampled == pytest.approx(1 - 0.9**2, rel=1e-8)
    assert pld_delta({dp.GroupPrivacy(3, dp.EpsilonDelta(0, 0.1)): 1}, ADD, 0.0) == pytest.approx(0.3, rel=1e-8)


def test_the_worse_direction_counts() -> None:
    # One record answers "a" with 0.625, an empty one with 0.25; adding it loses more.
    def delta(p: float, q: float) -> float:
        chances = [(comb(6, n) * p**n * (1 - p) ** (6 - n), comb(6, n) * q**n * (1 - q) ** (6 - n)) for n in range(7)]
        return sum(max(0.0, one - exp(0.5) * other) for one, other in chances)

    removed, added = delta(0.625, 0.25), delta(0.25, 0.625)
    assert 1.02 * removed < added
    assert added <= pld_delta({dp.RandomizedResponse(0.5, 4): 6}, SPECIAL, 0.5) < 1.01 * added


CUT = dp.TruncatedPoissonSampled(1000, 0.01, 60, dp.Gaussian(1.0))
HALF = dp.RandomizedResponse(0.5, 4)
WITHOUT_A_PAIR: dict[NeighboringRelation, tuple[DpEvent, ...]] = {
    ADD: (
        *(dp.DiscreteGaussian(4.0), dp.Zcdp(0.1), dp.RepeatAndSelect(dp.Gaussian(4.0), 10, 1.0), HALF),
        *(dp.PoissonSampled(0.1, dp.DiscreteGaussian(4.0)), dp.TreeAggregation(20.0, (100,))),
        *(dp.PermuteAndFlip(600.0), dp.EpsilonDelta(600.0, 0.0)),
        dp.TruncatedPoissonSampled(1000, 0.01, 60, dp.Laplace(1.0)),
    ),
    REPLACE: (
        *(dp.PoissonSampled(0.1, each) for each in (HALF, dp.Laplace(4.0), dp.DiscreteLaplace(0.1, 1))),
        *(dp.PoissonSampled(0.1, dp.PermuteAndFlip(1.0)), CUT),
        dp.SampledWithoutReplacement(100, 10, dp.Gaussian(4.0)),
        dp.SampledWithReplacement(100, 10, dp.Gaussian(4.0)),
    ),
    SPECIAL: (CUT,),
}


@for_each([(event, relation) for relation, events in WITHOUT_A_PAIR.items() for event in events])
def test_events_without_a_proven_pair_are_refused(case: tuple[DpEvent, NeighboringRelation]) -> None:
    event, relation = case
    with pytest.raises(UnsupportedEventError):
        pld_epsilon({event: 1}, relation, 1e-5)


def test_too_many_different_mechanisms_are_refused() -> None:
    events: dict[DpEvent, int] = {dp.DiscreteGaussian(10.0 + place, 1): 1 for place in range(2 * MAX_PAIRS + 1)}
    with pytest.raises(UnsupportedEventError, match="different mechanisms"):
        pld_epsilon(events, ADD, 1e-5)
