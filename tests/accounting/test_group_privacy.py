"""Groups of records: each rewriting against the definition that it rests on."""

from math import comb, exp, expm1

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import GRID_VERSION, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DiscreteGaussian,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    GroupPrivacy,
    Laplace,
    MixtureOfGaussians,
    NeighboringRelation,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
    Zcdp,
)
from app.accounting.group_privacy import for_group
from app.accounting.rdp import event_curve

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
GRID = orders(GRID_VERSION)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Gaussian(6), Gaussian(2)),
        (Gaussian(6, "microbatch"), Gaussian(2, "microbatch")),
        (Laplace(6), Laplace(2)),
        (DiscreteGaussian(6), DiscreteGaussian(2)),
        (DiscreteGaussian(6, 5), DiscreteGaussian(2, 15)),
        (DiscreteLaplace(0.5, 5), DiscreteLaplace(0.5, 15)),
        (AdaptiveClipping(6), AdaptiveClipping(2)),
        (
            AdaptiveClipping(gradient_noise_multiplier=6, count_noise_stddev=30),
            AdaptiveClipping(gradient_noise_multiplier=2, count_noise_stddev=10),
        ),
        (TreeAggregation(6, (5, 9)), TreeAggregation(2, (5, 9))),
        (RandomizedResponse(0.5, 4), SelfComposed(RandomizedResponse(0.5, 4), 3)),
        (MixtureOfGaussians(2, (1,), (1,)), MixtureOfGaussians(2, (3,), (1,))),
        (MixtureOfGaussians(2, (0, 1), (0.5, 0.5)), MixtureOfGaussians(2, (0, 1, 2, 3), (1 / 8, 3 / 8, 3 / 8, 1 / 8))),
        (
            MixtureOfGaussians(2, (0, 1, 5), (0.5, 0.5, 0)),
            MixtureOfGaussians(2, (0, 1, 2, 3), (1 / 8, 3 / 8, 3 / 8, 1 / 8)),
        ),
        (Exponential(0.5), Exponential(1.5)),
        (PermuteAndFlip(0.5), PermuteAndFlip(1.5)),
        (EpsilonDelta(0.5), EpsilonDelta(1.5)),
        (Composed((Gaussian(6), Laplace(3))), Composed((Gaussian(2), Laplace(1)))),
        (SelfComposed(Gaussian(6), 10), SelfComposed(Gaussian(2), 10)),
        (RepeatAndSelect(Gaussian(6), 5, 1), RepeatAndSelect(Gaussian(2), 5, 1)),
        (Decay("exp", 0.1, 5, Gaussian(6), 2), Decay("exp", 0.1, 5, Gaussian(2), 2)),
        (PoissonSampled(1, Gaussian(6)), PoissonSampled(1, Gaussian(2))),
        (GroupPrivacy(2, Gaussian(12)), Gaussian(2)),
    ],
    ids=str,
)
def test_three_records_of_a_unit_are_one_of_a_dearer_event(event: DpEvent, expected: DpEvent) -> None:
    assert for_group(event, 3) == expected
    assert for_group(event, 1) is event


def test_zcdp_of_a_group_grows_with_the_square() -> None:
    found = for_group(Zcdp(0.1, 0.3), 4)
    assert isinstance(found, Zcdp)
    assert found.rho == pytest.approx(1.6, rel=1e-15)
    assert found.xi == pytest.approx(0.3 * 4 * (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=1e-14)


@given(
    rho=st.floats(1e-3, 2),
    xi=st.floats(0, 2),
    size=st.integers(2, 12),
    order=st.floats(1.001, 100),
)
def test_zcdp_of_a_group_bounds_the_chain_of_its_records(rho: float, xi: float, size: int, order: float) -> None:
    # The weak triangle inequality over the records one by one, Q next to R:
    # D_a(P, R) <= k a / (k a - 1) D_{(k a - 1)/(k - 1)}(P, Q) + D_{k a}(Q, R).
    def chain(k: int, a: float) -> float:
        if k == 1:
            return xi + rho * a
        return k * a / (k * a - 1) * chain(k - 1, (k * a - 1) / (k - 1)) + xi + rho * k * a

    bound = for_group(Zcdp(rho, xi), size)
    assert isinstance(bound, Zcdp)
    assert chain(size, order) <= (bound.xi + bound.rho * order) * (1 + 1e-12)


@given(epsilon=st.floats(1e-6, 3), delta=st.floats(1e-30, 1e-9), size=st.integers(2, 6))
def test_delta_of_a_group_is_the_sum_over_its_records(epsilon: float, delta: float, size: int) -> None:
    found = for_group(EpsilonDelta(epsilon, delta), size)
    assert isinstance(found, EpsilonDelta)
    assert found.epsilon == pytest.approx(size * epsilon, rel=1e-15)
    assert found.delta == pytest.approx(delta * sum(exp(epsilon * record) for record in range(size)), rel=1e-13)


@given(q=st.floats(1e-9, 1 - 1e-9), size=st.integers(2, 50))
def test_a_group_is_sampled_if_one_of_its_records_is(q: float, size: int) -> None:
    found = for_group(PoissonSampled(q, Gaussian(100)), size)
    assert isinstance(found, PoissonSampled)
    assert found.event == Gaussian(100 / size)
    assert q <= found.sampling_probability < 1
    none = np.exp(size * np.log1p(-q))
    assert found.sampling_probability == pytest.approx(1 - none, abs=1e-15)


@pytest.mark.parametrize(("q", "z", "size"), [(0.01, 6, 2), (0.05, 8, 3), (0.3, 20, 5), (0.9, 10, 4)])
def test_a_sampled_group_costs_at_least_the_mixture_over_how_many_are_taken(q: float, z: float, size: int) -> None:
    # Worst case of a sum: all records push the same way. Then the output is a binomial mixture of Gaussians.
    curve = event_curve(GroupPrivacy(size, PoissonSampled(q, Gaussian(z))), ADD_OR_REMOVE).nats()
    x = np.linspace(-30 * z, size + 30 * z, 400_001)
    without = np.exp(-(x**2) / (2 * z * z)) / (z * np.sqrt(2 * np.pi))
    ratio = sum(
        comb(size, taken) * q**taken * (1 - q) ** (size - taken) * np.exp((2 * taken * x - taken**2) / (2 * z * z))
        for taken in range(size + 1)
    )
    for order in (2, 5, 16):
        bound = curve[np.searchsorted(GRID, order)]
        for density in (without * ratio**order, without * ratio ** (1 - order)):
            assert np.log(np.trapezoid(density, x)) / (order - 1) <= bound


def test_probabilities_that_were_rounded_are_divided_by_their_sum_before_they_are_multiplied() -> None:
    found = for_group(MixtureOfGaussians(2, (0, 1), (0.5, 0.5 + 9e-10)), 3)
    assert isinstance(found, MixtureOfGaussians)
    assert found.sampling_probs == pytest.approx((1 / 8, 3 / 8, 3 / 8, 1 / 8), rel=1e-8)
    assert sum(found.sampling_probs) == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize(
    ("event", "size", "words"),
    [
        (SampledWithoutReplacement(100, 10, Gaussian(1)), 2, "sampled_without_replacement"),
        (Composed((Gaussian(1), SampledWithoutReplacement(100, 10, Gaussian(1)))), 2, "sampled_without_replacement"),
        (Gaussian(1), 1001, "noise_multiplier is 0.000999"),
        (Laplace(1), 10**6, "a whole group|protects the whole group"),
        (Exponential(5), 2001, "epsilon is 10005"),
        (MixtureOfGaussians(2, (0, 1), (0.5, 0.5)), 64, "more than 64 sensitivities"),
        # The sums of a million draws are so near each other that floats are too few to tell them apart.
        (MixtureOfGaussians(1e6, (1, 1 + 2**-52), (0.5, 0.5)), 10**6, "more than 64 sensitivities"),
        (MixtureOfGaussians(2, (0, 0.1, 1), (0.5, 0.3, 0.2)), 20, "more than 64 sensitivities"),
        (TruncatedPoissonSampled(100, 0.1, 20, Gaussian(1)), 2, "truncated_poisson_sampled"),
        (SampledWithReplacement(100, 10, Gaussian(1)), 2, "sampled_with_replacement"),
        (DiscreteLaplace(0.5, 2), 10**6, "sensitivity is 2000000"),
        (EpsilonDelta(1, 1e-6), 20, "delta is"),
        (EpsilonDelta(100, 1e-300), 50, "delta is"),
        (Zcdp(1), 1001, "rho is"),
        (RandomizedResponse(0.5, 3), 10**10, "count is"),
        (Decay("step", 0.5, 10, Gaussian(1)), 2, "noise"),
    ],
    ids=str,
)
def test_a_group_that_is_not_protected_is_refused_with_the_reason(event: DpEvent, size: int, words: str) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        for_group(event, size)


def test_a_group_on_a_sample_is_rewritten_before_it_is_amplified() -> None:
    grouped = PoissonSampled(0.01, GroupPrivacy(4, GroupPrivacy(2, EpsilonDelta(0.1, 1e-9))))
    plain = PoissonSampled(0.01, EpsilonDelta(0.8, 1e-9 * expm1(0.8) / expm1(0.1)))
    ours, expected = event_curve(grouped, REPLACE_SPECIAL), event_curve(plain, REPLACE_SPECIAL)
    assert ours.nats() == pytest.approx(expected.nats(), rel=1e-12)
    assert ours.delta_value() == pytest.approx(expected.delta_value(), rel=1e-12)
