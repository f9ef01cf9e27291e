"""Epsilon against exact privacy losses, from dp_accounting's distributions rounded down: never below them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import comb, exp, log, log1p

import pytest
from dp_accounting import NeighboringRelation as Theirs
from dp_accounting.pld import privacy_loss_distribution as pld

from app.accounting import events as dp
from app.accounting.conversion import epsilon_from_rdp
from app.accounting.curves import GRID_VERSION, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.random_batches import Truncation
from app.accounting.rdp import event_curve
from tests.soak import thinned

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

GRID = orders(GRID_VERSION)
MNIST = 256 / 60000
COARSE = 2e-3
"""The interval of mixtures: dp_accounting searches for each of its places."""


def two_points(epsilon: float, q: float) -> pld.PrivacyLossDistribution:
    """Binary randomized response on a Poisson sample: the worst of all epsilon-DP mechanisms."""
    high, low = -log1p(exp(-epsilon)), -epsilon - log1p(exp(-epsilon))
    without = {0: low, 1: high}
    with_record = {0: log((1 - q) * exp(low) + q * exp(high)), 1: log((1 - q) * exp(high) + q * exp(low))}
    return pld.from_two_probability_mass_functions(
        without, with_record, pessimistic_estimate=False, value_discretization_interval=1e-4, symmetric=False
    )


def gaussian_loss(z: float, q: float = 1.0) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        z, pessimistic_estimate=False, value_discretization_interval=1e-4, sampling_prob=q, use_connect_dots=False
    )


def laplace_loss(z: float, q: float = 1.0) -> pld.PrivacyLossDistribution:
    return pld.from_laplace_mechanism(
        z, pessimistic_estimate=False, value_discretization_interval=1e-4, sampling_prob=q, use_connect_dots=False
    )


def discrete_loss(z: float, q: float = 1.0) -> pld.PrivacyLossDistribution:
    return pld.from_discrete_gaussian_mechanism(
        z, pessimistic_estimate=False, value_discretization_interval=1e-4, sampling_prob=q
    )


def whole_loss(c: float, distance: int, q: float = 1.0) -> pld.PrivacyLossDistribution:
    return pld.from_discrete_laplace_mechanism(
        c, distance, pessimistic_estimate=False, value_discretization_interval=1e-4, sampling_prob=q
    )


@cache
def mixture_loss(deviation: float, sizes: tuple[float, ...], shares: tuple[float, ...]) -> pld.PrivacyLossDistribution:
    return pld.from_mixture_gaussian_mechanism(
        deviation,
        sizes,
        shares,
        pessimistic_estimate=False,
        value_discretization_interval=COARSE,
        use_connect_dots=False,
    )


def cut_loss(size: int, q: float, most: int, z: float) -> pld.PrivacyLossDistribution:
    """One neighbour of a cut sample with all other records opposite to the one added, where the output shows a cut."""
    cases = Truncation.of(size - 1, q, most)
    return gaussian_loss(z / 2, cases.kept).compute_mixture(gaussian_loss(z, q), cases.cut)


def occurrences_loss(size: int, places: int, z: float) -> pld.PrivacyLossDistribution:
    """A record of a batch with replacement that is replaced by one that contributes nothing, as all others do."""
    shares = [comb(places, k) * (1 / size) ** k * (1 - 1 / size) ** (places - k) for k in range(places + 1)]
    return mixture_loss(z, tuple(map(float, range(places + 1))), tuple(shares))


def answers_loss(p: float, k: int, relation: NeighboringRelation) -> pld.PrivacyLossDistribution:
    return pld.from_randomized_response(
        p,
        k,
        pessimistic_estimate=False,
        value_discretization_interval=1e-4,
        neighboring_relation=Theirs[relation.name],
    )


def choice_loss(epsilon: float) -> pld.PrivacyLossDistribution:
    """The exponential mechanism with two candidates, whose scores a record can move apart and back."""
    high, low = -log1p(exp(-epsilon / 2)), -epsilon / 2 - log1p(exp(-epsilon / 2))
    return pld.from_two_probability_mass_functions(
        {0: low, 1: high}, {0: high, 1: low}, pessimistic_estimate=False, value_discretization_interval=1e-4
    )


def two_together() -> pld.PrivacyLossDistribution:
    return gaussian_loss(2, 0.1).self_compose(20).compose(laplace_loss(5).self_compose(10))


@dataclass(frozen=True)
class Floor:
    """A mechanism and its exact privacy loss, every rounding of which makes it smaller.

    Args:
        event: the mechanism.
        count: how often it runs.
        loss: builds the privacy loss of one run, or of a part of one.
        parts: how many such parts a run has.
        relation: which data sets are neighbours.
    """

    event: DpEvent
    count: int
    loss: Callable[[], pld.PrivacyLossDistribution]
    parts: int = 1
    relation: NeighboringRelation = ADD_OR_REMOVE

    def __str__(self) -> str:
        return f"{self.count} x {self.event} {self.relation}"


GAUSSIANS = ((0.5, 1), (1, 3), (5, 1), (5, 40), (30, 100))
LAPLACES = ((0.5, 1), (1, 5), (4, 1), (4, 30), (20, 100))
DISCRETE_GAUSSIANS = ((1, 1), (2, 3), (5, 20), (8, 100))
SAMPLED_GAUSSIANS = ((MNIST, 1.1, 468), (MNIST, 0.7, 100), (0.01, 4, 1000), (0.05, 1, 10), (0.3, 2, 30), (0.9, 3, 5))
SAMPLED_LAPLACES = ((0.01, 0.5, 100), (0.01, 1, 300), (0.05, 0.3, 3), (0.1, 2, 50), (0.5, 5, 20), (0.9, 1, 2))
SAMPLED_DISCRETE = ((0.01, 1, 100), (0.05, 2, 50), (0.3, 4, 10), (0.8, 1, 2))
WHOLE = ((0.5, 2, 5, 1.0), (0.1, 1, 100, 1.0), (0.01, 100, 10, 1.0), (0.5, 3, 100, 0.02), (0.1, 10, 20, 0.3))
MIXTURES = (
    ((2.0, (0, 1, 2), (0.9, 0.09, 0.01)), 50, ADD_OR_REMOVE),
    ((2.0, (0, 1, 2), (0.9, 0.09, 0.01)), 20, REPLACE_SPECIAL),
    ((20.0, (1, 2), (0.7, 0.3)), 30, ADD_OR_REMOVE),
    ((1.5, (0, 0.5, 1), (0.9, 0.05, 0.05)), 30, REPLACE_SPECIAL),
)
CUT = (((1000, 0.05, 60), 4.0, 50), ((100, 0.3, 30), 8.0, 10), ((60, 0.3, 20), 5.0, 20))
SAMPLED_PURE = ((0.1, 0.5, 50), (0.01, 2, 100), (0.001, 8, 200), (0.7, 1, 10))
ANSWERS = ((0.5, 2, 5), (0.2, 10, 1), (0.9, 100, 10), (0.6, 5, 30))

FLOORS = [
    *(Floor(dp.Gaussian(z), count, partial(gaussian_loss, z)) for z, count in GAUSSIANS),
    *(Floor(dp.Laplace(z), count, partial(laplace_loss, z)) for z, count in LAPLACES),
    *(Floor(dp.DiscreteGaussian(z), count, partial(discrete_loss, z)) for z, count in DISCRETE_GAUSSIANS),
    *(Floor(dp.PoissonSampled(q, dp.Gaussian(z)), n, partial(gaussian_loss, z, q)) for q, z, n in SAMPLED_GAUSSIANS),
    *(Floor(dp.PoissonSampled(q, dp.Laplace(z)), n, partial(laplace_loss, z, q)) for q, z, n in SAMPLED_LAPLACES),
    *(
        Floor(dp.PoissonSampled(q, dp.DiscreteGaussian(z)), n, partial(discrete_loss, z, q))
        for q, z, n in SAMPLED_DISCRETE
    ),
    *(
        Floor(
            dp.DiscreteLaplace(c, s) if q == 1 else dp.PoissonSampled(q, dp.DiscreteLaplace(c, s)),
            n,
            partial(whole_loss, c, s, q),
        )
        for c, s, n, q in WHOLE
    ),
    Floor(dp.DiscreteLaplace(0.1, 2), 20, partial(whole_loss, 0.1, 4), relation=REPLACE_ONE),
    Floor(dp.PermuteAndFlip(0.5), 5, partial(laplace_loss, 2)),  # two candidates, whose scores move apart and back
    Floor(dp.PoissonSampled(0.1, dp.PermuteAndFlip(1.0)), 30, partial(laplace_loss, 1, 0.1)),
    *(
        Floor(dp.MixtureOfGaussians(*mixed), n, partial(mixture_loss, *mixed), relation=each)
        for mixed, n, each in MIXTURES
    ),
    Floor(
        dp.PoissonSampled(0.3, dp.MixtureOfGaussians(2, (0, 1, 2), (0.9, 0.09, 0.01))),
        50,
        partial(mixture_loss, 2, (0, 1, 2), (0.97, 0.027, 0.003)),
    ),
    Floor(
        dp.GroupPrivacy(2, dp.MixtureOfGaussians(4, (0, 1), (0.9, 0.1))),
        50,
        partial(mixture_loss, 4, (0, 1, 2), (0.81, 0.18, 0.01)),
    ),
    *(Floor(dp.TruncatedPoissonSampled(*cut, dp.Gaussian(z)), n, partial(cut_loss, *cut, z)) for cut, z, n in CUT),
    *(
        Floor(
            dp.SampledWithReplacement(size, places, dp.Gaussian(z)),
            n,
            partial(occurrences_loss, size, places, z),
            relation=REPLACE_ONE,
        )
        for size, places, z, n in ((3, 2, 20, 10), (2, 3, 30, 20))
    ),
    *(Floor(dp.PoissonSampled(q, dp.EpsilonDelta(e)), n, partial(two_points, e, q)) for q, e, n in SAMPLED_PURE),
    *(Floor(dp.EpsilonDelta(e), n, partial(two_points, e, 1)) for e, n in ((0.1, 100), (1, 5), (4, 2))),
    *(
        Floor(dp.RandomizedResponse(p, k), n, partial(answers_loss, p, k, relation), relation=relation)
        for p, k, n in ANSWERS
        for relation in (REPLACE_ONE, REPLACE_SPECIAL)
    ),
    Floor(dp.PoissonSampled(0.3, dp.GroupPrivacy(4, dp.EpsilonDelta(0.25))), 10, partial(two_points, 1, 0.3)),
    Floor(
        dp.Composed((dp.SelfComposed(dp.PoissonSampled(0.1, dp.Gaussian(2)), 20), dp.SelfComposed(dp.Laplace(5), 10))),
        1,
        two_together,
    ),
    Floor(dp.SelfComposed(dp.GroupPrivacy(2, dp.Gaussian(8)), 5), 2, partial(gaussian_loss, 4), parts=5),
    Floor(dp.PoissonSampled(0.1, dp.Composed((dp.Gaussian(3), dp.Gaussian(4)))), 20, partial(gaussian_loss, 2.4, 0.1)),
    Floor(dp.TreeAggregation(6, (100,)), 2, partial(gaussian_loss, 6), parts=7, relation=REPLACE_SPECIAL),
    Floor(dp.Exponential(0.5), 2, partial(choice_loss, 0.5)),
]


def test_there_are_at_least_40_exact_losses() -> None:
    assert len({(floor.event, floor.count, floor.relation) for floor in FLOORS}) == len(FLOORS) >= 40


@pytest.mark.parametrize("floor", thinned(FLOORS, 3), ids=str)
def test_epsilon_is_never_below_the_exact_one(floor: Floor) -> None:
    curve = event_curve(floor.event, floor.relation).times(floor.count)
    loss = floor.loss().self_compose(floor.parts * floor.count)
    for delta in (1e-3, 1e-6, 1e-9):
        found = epsilon_from_rdp(GRID, curve.nats(), delta).epsilon
        exact = float(loss.get_epsilon_for_delta(delta))
        assert found >= exact - 1e-9
        assert found <= 3 * exact + 0.1  # or the comparison would say nothing
