"""Groups of records: each rewriting against the definition that it rests on."""

from collections import Counter
from functools import reduce
from math import exp, expm1
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.group_privacy import for_group
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.rdp import event_curve

ADDED, REPLACE_SPECIAL = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL
THREE_DRAWS = dp.MixtureOfGaussians(2, (0, 1, 2, 3), (1 / 8, 3 / 8, 3 / 8, 1 / 8))
FADING = dp.Decay("exp", 0.1, 5, dp.PoissonSampled(0.5, dp.Gaussian(6)))
FIXED = dp.SampledWithoutReplacement(100, 10, dp.Gaussian(1))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (dp.Gaussian(6), dp.Gaussian(2)),
        (dp.Gaussian(6, "microbatch"), dp.Gaussian(2, "microbatch")),
        (dp.Laplace(6), dp.Laplace(2)),
        (dp.DiscreteGaussian(6), dp.DiscreteGaussian(2)),
        (dp.DiscreteGaussian(6, 5), dp.DiscreteGaussian(2, 15)),
        (dp.DiscreteLaplace(0.5, 5), dp.DiscreteLaplace(0.5, 15)),
        (dp.AdaptiveClipping(6), dp.AdaptiveClipping(2)),
        tuple(dp.AdaptiveClipping(gradient_noise_multiplier=z, count_noise_stddev=5 * z) for z in (6, 2)),
        (dp.TreeAggregation(6, (5, 9)), dp.TreeAggregation(2, (5, 9))),
        (dp.RandomizedResponse(0.5, 4), dp.SelfComposed(dp.RandomizedResponse(0.5, 4), 3)),
        (dp.MixtureOfGaussians(2, (1,), (1,)), dp.MixtureOfGaussians(2, (3,), (1,))),
        (dp.MixtureOfGaussians(2, (0, 1), (0.5, 0.5)), THREE_DRAWS),
        (dp.MixtureOfGaussians(2, (0, 1, 5), (0.5, 0.5, 0)), THREE_DRAWS),
        (dp.Exponential(0.5), dp.Exponential(1.5)),
        (dp.PermuteAndFlip(0.5), dp.PermuteAndFlip(1.5)),
        (dp.EpsilonDelta(0.5), dp.EpsilonDelta(1.5)),
        (dp.Composed((dp.Gaussian(6), dp.Laplace(3))), dp.Composed((dp.Gaussian(2), dp.Laplace(1)))),
        (dp.SelfComposed(dp.Gaussian(6), 10), dp.SelfComposed(dp.Gaussian(2), 10)),
        (dp.RepeatAndSelect(dp.Gaussian(6), 5, 1), dp.RepeatAndSelect(dp.Gaussian(2), 5, 1)),
        (dp.Decay("exp", 0.1, 5, dp.Gaussian(6), 2), dp.Decay("exp", 0.1, 5, dp.Gaussian(2), 2)),
        (dp.PoissonSampled(1, dp.Gaussian(6)), dp.PoissonSampled(1, dp.Gaussian(2))),
        (dp.PoissonSampled(0.5, dp.Gaussian(2)), THREE_DRAWS),
        (dp.PoissonSampled(0.5, dp.Gaussian(4, "microbatch")), THREE_DRAWS),
        (dp.PoissonSampled(0.5, dp.SelfComposed(dp.GroupPrivacy(2, dp.Gaussian(8)), 4)), THREE_DRAWS),
        (dp.PoissonSampled(0.625, dp.MixtureOfGaussians(2, (0, 1), (0.2, 0.8))), THREE_DRAWS),
        (FADING, dp.Decay("exp", 0.1, 5, dp.GroupPrivacy(3, FADING.event))),
        (dp.GroupPrivacy(2, dp.Gaussian(12)), dp.Gaussian(2)),
    ],
    ids=str,
)
def test_three_records_of_a_unit_are_one_of_a_dearer_event(event: DpEvent, expected: DpEvent) -> None:
    assert for_group(event, 3) == expected
    assert for_group(event, 1) is event


@pytest.mark.parametrize(
    ("size", "q", "z", "steps", "known"),
    [
        *((2, 0.0064, 1, 782, 2.532), (3, 0.0064, 1, 782, 3.937), (10, 0.0064, 1, 782, 15.465)),
        *((4, 0.001, 0.8, 5000, 3.071), (2, 0.01, 1, 1000, 4.554), (4, 0.01, 4, 2000, 2.0555)),
        *((10, 0.001, 2, 10_000, 2.4505), (32, 0.001, 8, 5000, 1.2219)),
    ],
)
def test_a_group_on_samples_costs_the_loss_of_its_mixture(
    size: int, q: float, z: float, steps: int, known: float
) -> None:
    """Known are dp_accounting's distributions of mixtures at delta 1e-6."""
    event = dp.GroupPrivacy(size, dp.PoissonSampled(q, dp.Gaussian(z)))
    assert pld_epsilon({event: steps}, ADDED, 1e-6) == pytest.approx(known, rel=5e-4)


def test_more_records_than_a_mixture_has_distances_cost_a_little_more_than_their_mixture() -> None:
    epsilons = [
        pld_epsilon({dp.GroupPrivacy(size, dp.PoissonSampled(q, dp.Gaussian(40))): 1000}, ADDED, 1e-6)
        for size, q in ((63, 1 / 63), (64, 1 / 64), (1000, 1 / 1000))
    ]
    assert epsilons == sorted(epsilons)  # nearer to Poisson's distribution, which varies most
    assert epsilons[-1] < 1.02 * epsilons[0]


def test_schedule_of_groups_costs_its_steps_or_a_little_more() -> None:
    steps = [dp.GroupPrivacy(3, dp.PoissonSampled(0.01, dp.Gaussian(6 / (1 + 0.01 * t)))) for t in range(20)]
    exact = pld_epsilon(Counter(steps), ADDED, 1e-6)
    schedule = dp.GroupPrivacy(3, dp.Decay("time", 0.01, 20, dp.PoissonSampled(0.01, dp.Gaussian(6))))
    assert exact < pld_epsilon({schedule: 1}, ADDED, 1e-6) < 1.03 * exact
    total = reduce(add, (event_curve(step, ADDED) for step in steps))
    assert np.all(event_curve(schedule, ADDED).values >= total.values)


def test_zcdp_of_a_group_grows_with_the_square() -> None:
    found = for_group(dp.Zcdp(0.1, 0.3), 4)
    assert isinstance(found, dp.Zcdp)
    assert found.rho == pytest.approx(1.6, rel=1e-15)
    assert found.xi == pytest.approx(0.3 * 4 * (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=1e-14)


@given(epsilon=st.floats(1e-6, 3), delta=st.floats(1e-30, 1e-9), size=st.integers(2, 6))
def test_delta_of_a_group_is_the_sum_over_its_records(epsilon: float, delta: float, size: int) -> None:
    found = for_group(dp.EpsilonDelta(epsilon, delta), size)
    assert isinstance(found, dp.EpsilonDelta)
    assert found.epsilon == pytest.approx(size * epsilon, rel=1e-15)
    assert found.delta == pytest.approx(delta * sum(exp(epsilon * record) for record in range(size)), rel=1e-13)


@given(q=st.floats(1e-9, 1 - 1e-9), size=st.integers(2, 50))
def test_a_group_is_sampled_if_one_of_its_records_is(q: float, size: int) -> None:
    found = for_group(dp.PoissonSampled(q, dp.Laplace(100)), size)
    assert isinstance(found, dp.PoissonSampled)
    assert found.event == dp.Laplace(100 / size)
    assert q <= found.sampling_probability < 1
    none = np.exp(size * np.log1p(-q))
    assert found.sampling_probability == pytest.approx(1 - none, abs=1e-15)


@pytest.mark.parametrize(
    ("event", "size", "words"),
    [
        (FIXED, 2, "sampled_without_replacement"),
        (dp.Composed((dp.Gaussian(1), FIXED)), 2, "sampled_without_replacement"),
        (dp.Gaussian(1), 1001, "noise_multiplier is 0.000999"),
        (dp.Laplace(1), 10**6, "a whole group|protects the whole group"),
        (dp.Exponential(5), 2001, "epsilon is 10005"),
        (dp.MixtureOfGaussians(2, (0.5, 1), (0.5, 0.5)), 64, "more than 64 sensitivities"),
        # The sums of a million draws are so near each other that floats are too few to tell them apart.
        (dp.MixtureOfGaussians(1e6, (1, 1 + 2**-52), (0.5, 0.5)), 10**6, "more than 64 sensitivities"),
        (dp.MixtureOfGaussians(2, (0, 0.1, 1), (0.5, 0.3, 0.2)), 20, "more than 64 sensitivities"),
        (dp.TruncatedPoissonSampled(100, 0.1, 20, dp.Gaussian(1)), 2, "truncated_poisson_sampled"),
        (dp.SampledWithReplacement(100, 10, dp.Gaussian(1)), 2, "sampled_with_replacement"),
        (dp.DiscreteLaplace(0.5, 2), 10**6, "sensitivity is 2000000"),
        (dp.EpsilonDelta(1, 1e-6), 20, "delta is"),
        (dp.EpsilonDelta(100, 1e-300), 50, "delta is"),
        (dp.Zcdp(1), 1001, "rho is"),
        (dp.Zcdp(1, delta=1e-6), 2, "zcdp event with a delta"),
        (dp.RandomizedResponse(0.5, 3), 10**10, "count is"),
        (dp.Decay("step", 0.5, 10, dp.Gaussian(1)), 2, "noise"),
    ],
    ids=str,
)
def test_a_group_that_is_not_protected_is_refused_with_the_reason(event: DpEvent, size: int, words: str) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        for_group(event, size)


def test_a_group_on_a_sample_is_rewritten_before_it_is_amplified() -> None:
    grouped = dp.PoissonSampled(0.01, dp.GroupPrivacy(4, dp.GroupPrivacy(2, dp.EpsilonDelta(0.1, 1e-9))))
    plain = dp.PoissonSampled(0.01, dp.EpsilonDelta(0.8, 1e-9 * expm1(0.8) / expm1(0.1)))
    ours, expected = (event_curve(each, REPLACE_SPECIAL) for each in (grouped, plain))
    assert ours.nats() == pytest.approx(expected.nats(), rel=1e-12)
    assert ours.delta_value() == pytest.approx(expected.delta_value(), rel=1e-12)
