"""Epsilon against exact privacy losses, from dp_accounting's distributions rounded down and up.

By Rényi divergences it is never below the exact one. By loss distributions it lies between the two roundings.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial, reduce
from math import comb, exp, log, log1p, sqrt
from typing import Any, NamedTuple

import pytest
from dp_accounting import NeighboringRelation as Theirs
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Pld

from app.accounting import events as dp
from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import GRID_VERSION, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.random_batches import Truncation
from app.accounting.pld.accountant import pld_delta, pld_epsilon
from app.accounting.rdp import event_curve

ADD, REPLACE, SPECIAL = NeighboringRelation
Loss = Callable[[bool], Pld]
"""The privacy loss, by whether it is rounded up."""

CONNECTING_DOTS = (*(pld.from_gaussian_mechanism, pld.from_laplace_mechanism, pld.from_mixture_gaussian_mechanism),)


def _of(make: Callable[..., Pld], *of: Any, count: int = 1, interval: float = 1e-3, **given: Any) -> Loss:  # noqa: ANN401
    """Build the loss of so many runs of a mechanism of dp_accounting."""

    @cache
    def loss(is_up: bool) -> Pld:  # noqa: FBT001
        if make in CONNECTING_DOTS:
            given["use_connect_dots"] = is_up  # it has no lower estimate
        one = make(*of, pessimistic_estimate=is_up, value_discretization_interval=interval, **given)
        return one.self_compose(count)

    return loss


def gaussian(z: float, q: float, count: int) -> Loss:
    return _of(pld.from_gaussian_mechanism, z, sampling_prob=q, count=count)


def replaced(z: float, q: float, count: int) -> Loss:
    relation = Theirs.REPLACE_ONE
    return _of(pld.from_gaussian_mechanism, z, sampling_prob=q, count=count, neighboring_relation=relation)


def laplace(z: float, q: float, count: int) -> Loss:
    return _of(pld.from_laplace_mechanism, z, sampling_prob=q, count=count)


def discrete_laplace(parameter: float, distance: int, q: float, count: int) -> Loss:
    return _of(pld.from_discrete_laplace_mechanism, parameter, distance, sampling_prob=q, count=count)


def discrete_gaussian(sigma: float, distance: int, q: float, count: int) -> Loss:
    make = pld.from_discrete_gaussian_mechanism
    return _of(make, sigma, distance, sampling_prob=q, count=count, interval=2e-4)


def mixture(s: float, sizes: tuple[float, ...], shares: tuple[float, ...], count: int, interval: float) -> Loss:
    """Slow: dp_accounting searches for each place. A coarse interval and few steps leave as narrow a bracket."""
    return _of(pld.from_mixture_gaussian_mechanism, s, sizes, shares, count=count, interval=interval)


def answers(p: float, k: int, relation: NeighboringRelation, count: int) -> Loss:
    make = pld.from_randomized_response
    return _of(make, p, k, neighboring_relation=Theirs[relation.name], count=count, interval=1e-4)


def two_points(epsilon: float, q: float, count: int) -> Loss:
    """Binary randomized response on a Poisson sample: the worst of all epsilon-DP mechanisms."""
    high, low = -log1p(exp(-epsilon)), -epsilon - log1p(exp(-epsilon))
    mixed = {0: log((1 - q) * exp(low) + q * exp(high)), 1: log((1 - q) * exp(high) + q * exp(low))}
    make = pld.from_two_probability_mass_functions
    return _of(make, {0: low, 1: high}, mixed, symmetric=False, count=count, interval=1e-4)


def choice(epsilon: float, count: int) -> Loss:
    """The exponential mechanism with two candidates, whose scores a record can move apart and back."""
    high, low = -log1p(exp(-epsilon / 2)), -epsilon / 2 - log1p(exp(-epsilon / 2))
    make = pld.from_two_probability_mass_functions
    return _of(make, {0: low, 1: high}, {0: high, 1: low}, count=count, interval=1e-4)


def truncated(size: int, q: float, most: int, z: float, count: int) -> Loss:
    """Rounded down, one neighbour of a cut sample with all other records opposite, where the output shows a cut.

    Rounded up, dp_accounting's: it has one neighbour of the two, and replaces a record of a cut batch.
    """

    def loss(is_up: bool) -> Pld:  # noqa: FBT001
        if is_up:
            make = pld.from_truncated_subsampled_gaussian_mechanism
            return make(size, q, most, z, value_discretization_interval=1e-3).self_compose(count)
        cases = Truncation.of(size - 1, q, most)
        kept, left = gaussian(z / 2, cases.kept, 1)(is_up), gaussian(z, q, 1)(is_up)
        return kept.compute_mixture(left, cases.cut).self_compose(count)

    return loss


def with_replacement(size: int, places: int, z: float, count: int) -> Loss:
    """A record of a batch that is replaced by one that contributes nothing, as all others do."""
    shares = [comb(places, k) * (1 / size) ** k * (1 - 1 / size) ** (places - k) for k in range(places + 1)]
    return mixture(z, tuple(map(float, range(places + 1))), tuple(shares), count, 4e-3)


def together(*losses: Loss) -> Loss:
    return lambda is_up: reduce(Pld.compose, (loss(is_up) for loss in losses))


class Row(NamedTuple):
    """Events with counts, their exact privacy loss, and whether there is a loss distribution of ours.

    That may cost more than their upper rounding by a factor; 0: it is no upper bound.
    """

    events: Mapping[DpEvent, int]
    loss: Loss
    relation: NeighboringRelation = ADD
    room: float = 1.003
    has_pairs: bool = True


def one(event: DpEvent, count: int, loss: Loss, relation: NeighboringRelation = ADD, room: float = 1.003) -> Row:
    return Row({event: count}, loss, relation, room)


def _sampled(q: float, event: DpEvent, count: int, loss: Callable[[float, int], Loss]) -> Row:
    return one(dp.PoissonSampled(q, event), count, loss(q, count))


CLIPPING = dp.AdaptiveClipping(gradient_noise_multiplier=1.1, count_noise_stddev=12.8)
SIZES, SHARES = (0.0, 1.0, 2.0), (0.9, 0.09, 0.01)
TWO_DRAWS = (0.81, 0.18, 0.01)
SAMPLED = dp.PoissonSampled(0.01, dp.Gaussian(1.0))
GROUP_OF_DRAWN = dp.GroupPrivacy(2, dp.MixtureOfGaussians(4, (0, 1), (0.9, 0.1)))
MIXED = dp.MixtureOfGaussians(2.0, SIZES, SHARES)
DECAY = dp.Decay("time", 0.5, 3, dp.PoissonSampled(0.1, dp.Gaussian(2.0)))
CUT = dp.TruncatedPoissonSampled(1000, 0.05, 60, dp.Gaussian(2.0))
REPEATED = dp.SampledWithReplacement(3, 2, dp.Gaussian(20))
TWICE = dp.Composed((SAMPLED, dp.SelfComposed(dp.Laplace(30.0), 2)))

ROWS = [
    one(dp.Gaussian(0.5), 1, gaussian(0.5, 1, 1)),
    one(dp.Gaussian(30), 100, gaussian(30, 1, 100)),
    one(SAMPLED, 500, gaussian(1.0, 0.01, 500)),
    _sampled(0.05, dp.Composed((dp.Gaussian(4.0), dp.Gaussian(4.0))), 100, partial(gaussian, 4 / sqrt(2))),
    one(dp.PoissonSampled(0.01, dp.Gaussian(1.0)), 100, replaced(1.0, 0.01, 100), REPLACE),
    one(dp.PoissonSampled(0.5, dp.Gaussian(5.0)), 20, replaced(5.0, 0.5, 20), REPLACE),
    one(dp.MixtureOfGaussians(4.0, (2,), (1,)), 3, gaussian(1.0, 1, 3), REPLACE),
    one(dp.SelfComposed(dp.GroupPrivacy(2, dp.Gaussian(8)), 5), 2, gaussian(4, 1, 10)),
    one(dp.TreeAggregation(6, (100,)), 2, gaussian(6, 1, 14), SPECIAL),
    one(dp.Laplace(0.5), 1, laplace(0.5, 1, 1)),
    one(dp.Laplace(20.0), 100, laplace(20.0, 1.0, 100)),
    one(dp.Laplace(40.0), 100, laplace(20.0, 1.0, 100), REPLACE),
    _sampled(0.01, dp.Laplace(1.0), 1000, partial(laplace, 1.0)),
    _sampled(0.05, dp.Laplace(0.3), 3, partial(laplace, 0.3)),
    one(dp.DiscreteLaplace(0.02, 3), 100, discrete_laplace(0.02, 3, 1.0, 100)),
    one(dp.DiscreteLaplace(0.02, 3), 50, discrete_laplace(0.02, 6, 1.0, 50), REPLACE),
    _sampled(0.05, dp.DiscreteLaplace(0.3, 4), 200, partial(discrete_laplace, 0.3, 4)),
    one(dp.PermuteAndFlip(0.05), 100, laplace(20.0, 1.0, 100), REPLACE),
    _sampled(0.01, dp.PermuteAndFlip(1.0), 1000, partial(laplace, 1.0)),
    one(dp.DiscreteGaussian(20.0, 1), 30, discrete_gaussian(20.0, 1, 1.0, 30)),
    one(dp.DiscreteGaussian(10.0, 7), 20, discrete_gaussian(70.0, 14, 1.0, 20), REPLACE),
    one(dp.PoissonSampled(0.02, dp.DiscreteGaussian(2.0, 5)), 200, discrete_gaussian(10.0, 5, 0.02, 200), SPECIAL),
    _sampled(0.02, dp.GroupPrivacy(2, dp.DiscreteGaussian(4.0, 5)), 200, partial(discrete_gaussian, 20.0, 10)),
    one(dp.TruncatedPoissonSampled(1000, 0.01, 60, dp.Gaussian(1.0)), 500, gaussian(1.0, 0.01, 500)),
    one(dp.TruncatedPoissonSampled(100, 0.3, 30, dp.Gaussian(5.0)), 20, truncated(100, 0.3, 30, 5, 20), room=1.03),
    one(dp.EpsilonDelta(0.1), 100, two_points(0.1, 1, 100)),
    one(dp.EpsilonDelta(4), 2, two_points(4, 1, 2)),
    _sampled(0.7, dp.EpsilonDelta(1), 10, partial(two_points, 1)),
    _sampled(0.3, dp.GroupPrivacy(4, dp.EpsilonDelta(0.25)), 10, partial(two_points, 1)),
    one(dp.RandomizedResponse(0.9, 10), 10, answers(0.9, 10, REPLACE, 10), REPLACE),
    one(dp.RandomizedResponse(0.6, 5), 30, answers(0.6, 5, SPECIAL, 30), SPECIAL, room=0),
    Row({dp.Exponential(0.5): 2}, choice(0.5, 2), has_pairs=False),  # our pair is that of any bounded range
    one(TWICE, 100, together(gaussian(1.0, 0.01, 100), laplace(30.0, 1.0, 200))),
]
SLOW = [
    one(DECAY, 20, together(*(gaussian(z, 0.1, 20) for z in (2.0, 2 / 1.5, 1.0)))),
    one(CUT, 100, truncated(1000, 0.05, 60, 2, 100), room=1.03),
    one(MIXED, 6, mixture(2.0, SIZES, SHARES, 6, 8e-3), room=1.01),
    one(SAMPLED, 500, gaussian(1.0, 0.01, 500), SPECIAL),
    _sampled(256 / 60000, dp.Gaussian(0.7), 100, partial(gaussian, 0.7)),
    _sampled(0.9, dp.Gaussian(3), 5, partial(gaussian, 3)),
    one(dp.PoissonSampled(0.01, CLIPPING), 300, gaussian((1.1**-2 + 25.6**-2) ** -0.5, 0.01, 300)),
    _sampled(0.9, dp.Laplace(1), 2, partial(laplace, 1)),
    _sampled(0.3, dp.DiscreteGaussian(0.8, 1), 3, partial(discrete_gaussian, 0.8, 1)),
    one(dp.MixtureOfGaussians(20.0, (1, 2), (0.7, 0.3)), 100, mixture(20.0, (1, 2), (0.7, 0.3), 100, 4e-3), SPECIAL),
    one(dp.MixtureOfGaussians(2.0, (0, 2), (0.99, 0.01)), 500, gaussian(1.0, 0.01, 500)),
    _sampled(0.001, dp.EpsilonDelta(8), 200, partial(two_points, 8)),
    one(MIXED, 50, mixture(2.0, SIZES, SHARES, 50, 2e-3)),
    one(MIXED, 20, mixture(2.0, SIZES, SHARES, 20, 2e-3), SPECIAL),
    one(dp.PoissonSampled(0.3, MIXED), 6, mixture(2.0, SIZES, (0.97, 0.027, 0.003), 6, 4e-3), room=1.005),
    one(dp.GroupPrivacy(2, dp.PoissonSampled(0.1, dp.Gaussian(4.0))), 50, mixture(4, SIZES, TWO_DRAWS, 50, 2e-3)),
    one(GROUP_OF_DRAWN, 50, mixture(4, SIZES, TWO_DRAWS, 50, 2e-3)),
    Row({REPEATED: 10}, with_replacement(3, 2, 20, 10), REPLACE, has_pairs=False),
]


@pytest.mark.parametrize(
    "row", [*ROWS, *(pytest.param(row, marks=pytest.mark.soak) for row in SLOW)], ids=lambda row: str(row.events)[:90]
)
def test_epsilon_is_that_of_the_exact_loss_or_more(row: Row) -> None:
    spent = reduce(lambda a, b: a + b, (event_curve(each, row.relation).times(n) for each, n in row.events.items()))
    for delta in (1e-9, 1e-5):
        least = float(row.loss(False).get_epsilon_for_delta(delta))  # noqa: FBT003
        by_orders = epsilon_of_curve(orders(GRID_VERSION), spent, delta).epsilon
        assert least - 1e-9 <= by_orders <= 3 * least + 0.1  # or the comparison would say nothing
        if not row.has_pairs:
            continue
        found = pld_epsilon(row.events, row.relation, delta)
        assert least * 0.999 <= found <= by_orders * 1.001  # near a pure loss both are rounded up
        if row.room:
            assert found <= row.loss(True).get_epsilon_for_delta(delta) * row.room  # noqa: FBT003
        assert pld_delta(row.events, row.relation, found * 1.02) < 1.02 * delta
        assert pld_delta(row.events, row.relation, found * 0.98) > 0.98 * delta
