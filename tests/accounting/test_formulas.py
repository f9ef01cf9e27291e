"""Sensitivities: what an event costs under each relation, relative to an event whose cost is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.base_rdp import gaussian_noise, rdp
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.discrete_laplace import discrete_laplace_rdp
from app.accounting.formulas.gaussian_mixture import Mixture, gaussian_mixture_rdp, replaced_mixture_rdp
from app.accounting.formulas.mechanisms import bounded_range_rdp, gaussian_rdp, laplace_rdp, randomized_response_rdp
from tests.each import for_each

ADD_OR_REMOVE, REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation

ORDERS = np.array([1.0625, 1.5, 2.0, 7.25, 64.0])
MIXTURE = (1.7, (0.0, 1.0, 2.0), (0.9, 0.09, 0.01))
BATCHES = dp.TruncatedPoissonSampled(10, 0.3, 2, dp.Gaussian(1)), dp.SampledWithReplacement(10, 2, dp.Gaussian(1))


@pytest.mark.parametrize(
    ("event", "added", "special", "replaced"),
    [
        (dp.Gaussian(6), 6, 6, 3),
        (dp.Gaussian(6, "microbatch"), 3, 3, 3),
        (dp.AdaptiveClipping(6), 6, 6, 3),
        # The gradients' noise is 5 and the count's 2 * 10/3: 1/25 + 9/400 = 1/16.
        (dp.AdaptiveClipping(gradient_noise_multiplier=5, count_noise_stddev=10 / 3), 4, 4, 2),
        (dp.Composed((dp.Gaussian(5), dp.Gaussian(20 / 3))), 4, 4, 2),
        (dp.Composed((dp.Gaussian(10, "microbatch"), dp.Gaussian(20 / 3))), 4, 4, 1 / (1 / 25 + 9 / 100) ** 0.5),
        (dp.SelfComposed(dp.Gaussian(6), 9), 2, 2, 1),
        (dp.GroupPrivacy(3, dp.Gaussian(6)), 2, 2, 1),
        (dp.GroupPrivacy(2, dp.SelfComposed(dp.Gaussian(6), 9)), 1, 1, 0.5),
    ],
    ids=str,
)
def test_a_gaussian_release_has_this_noise_under_each_relation(
    event: DpEvent, added: float, special: float, replaced: float
) -> None:
    found = [gaussian_noise(event, relation) for relation in (ADD_OR_REMOVE, REPLACE_SPECIAL, REPLACE_ONE)]
    assert found == pytest.approx([added, special, replaced], rel=1e-14)


@given(z=st.floats(1e-3, 1e6))
def test_a_single_noise_multiplier_is_not_rounded(z: float) -> None:
    # Curves are stored: the noise of one Gaussian must not pass through a square root.
    assert gaussian_noise(dp.Gaussian(z), ADD_OR_REMOVE) == z
    assert gaussian_noise(dp.AdaptiveClipping(z), REPLACE_SPECIAL) == z
    assert gaussian_noise(dp.Gaussian(z), REPLACE_ONE) == z / 2


@for_each(
    [
        *(dp.Laplace(1), dp.DiscreteGaussian(1), dp.DiscreteLaplace(1, 1), dp.PermuteAndFlip(1), dp.Zcdp(1)),
        *(dp.MixtureOfGaussians(1, (0, 1), (0.5, 0.5)), dp.EpsilonDelta(1), *BATCHES),
        dp.Composed((dp.Gaussian(1), dp.Laplace(1))),
    ]
)
def test_noise_of_other_events_than_gaussian_releases_is_refused(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="is no Gaussian release"):
        gaussian_noise(event, ADD_OR_REMOVE)


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE, REPLACE_SPECIAL])
def test_a_missing_record_moves_a_sum_by_one_norm(relation: NeighboringRelation) -> None:
    assert np.array_equal(rdp(dp.Gaussian(1.7), ORDERS, relation), gaussian_rdp(1.7, ORDERS))
    assert np.array_equal(rdp(dp.DiscreteGaussian(1.7), ORDERS, relation), gaussian_rdp(1.7, ORDERS))
    assert np.array_equal(rdp(dp.Laplace(1.7), ORDERS, relation), laplace_rdp(1.7, ORDERS))
    assert np.array_equal(rdp(dp.DiscreteLaplace(0.3, 4), ORDERS, relation), discrete_laplace_rdp(0.3, 4, ORDERS))
    drawn = gaussian_mixture_rdp(Mixture.of(*MIXTURE), ORDERS)
    assert np.array_equal(rdp(dp.MixtureOfGaussians(*MIXTURE), ORDERS, relation), drawn)


def test_another_record_moves_a_sum_by_two_norms() -> None:
    assert rdp(dp.Gaussian(1.7), ORDERS, REPLACE_ONE) == pytest.approx(4 * gaussian_rdp(1.7, ORDERS), rel=1e-15)
    assert rdp(dp.DiscreteGaussian(1.7), ORDERS, REPLACE_ONE) == pytest.approx(4 * gaussian_rdp(1.7, ORDERS), rel=1e-15)
    assert np.array_equal(rdp(dp.Laplace(1.7), ORDERS, REPLACE_ONE), laplace_rdp(0.85, ORDERS))
    assert np.array_equal(rdp(dp.DiscreteLaplace(0.3, 4), ORDERS, REPLACE_ONE), discrete_laplace_rdp(0.3, 8, ORDERS))
    certain = dp.MixtureOfGaussians(3.4, (2.0,), (1.0,))
    assert rdp(certain, ORDERS, REPLACE_ONE) == pytest.approx(4 * gaussian_rdp(1.7, ORDERS), rel=1e-12)
    drawn = replaced_mixture_rdp(Mixture.of(*MIXTURE), ORDERS)
    assert np.array_equal(rdp(dp.MixtureOfGaussians(*MIXTURE), ORDERS, REPLACE_ONE), drawn)
    tree = dp.TreeAggregation(1.7, (100,))
    assert rdp(tree, ORDERS, REPLACE_ONE) == pytest.approx(4 * rdp(tree, ORDERS, REPLACE_SPECIAL), rel=1e-15)


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_a_stated_guarantee_is_the_relations_own(relation: NeighboringRelation) -> None:
    assert np.array_equal(rdp(dp.Exponential(0.7), ORDERS, relation), bounded_range_rdp(0.7, ORDERS))
    assert np.array_equal(rdp(dp.PermuteAndFlip(0.7), ORDERS, relation), laplace_rdp(1 / 0.7, ORDERS))
    assert rdp(dp.Zcdp(0.5, 0.25), ORDERS, relation) == pytest.approx(0.25 + 0.5 * ORDERS, rel=1e-15)


def test_an_answer_is_compared_with_another_one_or_with_an_even_one() -> None:
    event = dp.RandomizedResponse(0.4, 5)
    another, even = (randomized_response_rdp(0.4, 5, ORDERS, special=special) for special in (False, True))
    assert np.array_equal(rdp(event, ORDERS, REPLACE_ONE), another)
    assert np.array_equal(rdp(event, ORDERS, REPLACE_SPECIAL), even)
    assert np.all(even < another)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp.RandomizedResponse(0.5, 2), "replace_one, or replace_special where a missing record answers evenly"),
        (dp.TreeAggregation(1, (8,)), "Declare replace_special, where a missing record contributes zero"),
        (dp.SelfComposed(dp.Gaussian(1), 2), "no single formula for self_composed"),
        (BATCHES[0], "no single formula for truncated_poisson_sampled"),
        (BATCHES[1], "no single formula for sampled_with_replacement"),
    ],
    ids=str,
)
def test_event_without_a_formula_is_refused_with_the_alternative(event: DpEvent, words: str) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        rdp(event, ORDERS, ADD_OR_REMOVE)
