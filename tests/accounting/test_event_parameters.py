"""The one noise multiplier and the one sampling probability of an event, found and replaced."""

import pytest

from app.accounting import events as dp
from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events import DpEvent


@pytest.mark.parametrize(
    "event",
    [
        dp.Gaussian(1.5, "microbatch"),
        dp.Laplace(1.5),
        dp.DiscreteGaussian(1.5),
        dp.TreeAggregation(1.5, (3, 4)),
        dp.AdaptiveClipping(1.5),
        dp.PoissonSampled(0.01, dp.Gaussian(1.5)),
        dp.SampledWithoutReplacement(10, 2, dp.Gaussian(1.5)),
        dp.SampledWithReplacement(10, 2, dp.Gaussian(1.5)),
        dp.TruncatedPoissonSampled(10, 0.3, 2, dp.GroupPrivacy(2, dp.Gaussian(1.5))),
        dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.5)), 3),
        dp.RepeatAndSelect(dp.Gaussian(1.5), 3, None),
        dp.GroupPrivacy(3, dp.Gaussian(1.5)),
        dp.Decay("time", 0.1, 5, dp.PoissonSampled(0.01, dp.AdaptiveClipping(1.5)), 3),
    ],
    ids=str,
)
def test_the_one_noise_multiplier_is_found_and_replaced(event: DpEvent) -> None:
    assert dp.noise_multiplier(event) == 1.5
    noisier = dp.with_noise_multiplier(event, 2)
    assert dp.noise_multiplier(noisier) == 2
    assert dp.with_noise_multiplier(noisier, 1.5) == event
    with pytest.raises(InvalidEventError):
        dp.with_noise_multiplier(event, 0)


@pytest.mark.parametrize(
    "event",
    [
        dp.RandomizedResponse(0.5, 2),
        dp.Exponential(1),
        dp.DiscreteLaplace(1, 2),
        dp.PermuteAndFlip(1),
        dp.MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5)),
        dp.PoissonSampled(0.1, dp.MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5))),
        dp.Zcdp(1),
        dp.EpsilonDelta(1),
        dp.AdaptiveClipping(gradient_noise_multiplier=1, count_noise_stddev=1),
        dp.Composed((dp.Gaussian(1), dp.Gaussian(1))),
        dp.PoissonSampled(0.1, dp.Exponential(1)),
        dp.SelfComposed(dp.Composed((dp.Gaussian(1),)), 2),
    ],
    ids=str,
)
def test_an_event_without_one_noise_multiplier_says_so(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
        dp.noise_multiplier(event)
    with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
        dp.with_noise_multiplier(event, 2)


@pytest.mark.parametrize(
    "event",
    [
        dp.PoissonSampled(0.25, dp.Composed((dp.Gaussian(1), dp.Gaussian(2)))),
        dp.PoissonSampled(0.25, dp.MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5))),
        dp.PoissonSampled(0.25, dp.DiscreteLaplace(1, 2)),
        dp.TruncatedPoissonSampled(10, 0.25, 2, dp.Gaussian(1)),
        dp.SelfComposed(dp.PoissonSampled(0.25, dp.Laplace(1)), 3),
        dp.RepeatAndSelect(dp.PoissonSampled(0.25, dp.Laplace(1)), 3, 1),
        dp.GroupPrivacy(3, dp.PoissonSampled(0.25, dp.Gaussian(1))),
        dp.Decay("exp", 0.1, 5, dp.PoissonSampled(0.25, dp.Gaussian(1))),
    ],
    ids=str,
)
def test_the_one_sampling_probability_is_found_and_replaced(event: DpEvent) -> None:
    assert dp.sampling_probability(event) == 0.25
    rarer = dp.with_sampling_probability(event, 0.125)
    assert dp.sampling_probability(rarer) == 0.125
    assert dp.with_sampling_probability(rarer, 0.25) == event
    with pytest.raises(InvalidEventError):
        dp.with_sampling_probability(event, 0)


@pytest.mark.parametrize(
    "event",
    [
        dp.Gaussian(1),
        dp.MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5)),
        dp.SampledWithoutReplacement(10, 2, dp.Gaussian(1)),
        dp.SampledWithReplacement(10, 2, dp.Gaussian(1)),
        dp.Composed((dp.PoissonSampled(0.1, dp.Gaussian(1)),)),
    ],
    ids=str,
)
def test_an_event_without_one_sampling_probability_says_so(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
        dp.sampling_probability(event)
    with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
        dp.with_sampling_probability(event, 0.5)
