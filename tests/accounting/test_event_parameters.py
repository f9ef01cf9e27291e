"""The one noise multiplier and the one sampling probability of an event, found and replaced."""

import pytest

from app.accounting.errors import InvalidEventError, UnsupportedEventError
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
    noise_multiplier,
    sampling_probability,
    with_noise_multiplier,
    with_sampling_probability,
)


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(1.5, "microbatch"),
        Laplace(1.5),
        DiscreteGaussian(1.5),
        TreeAggregation(1.5, (3, 4)),
        AdaptiveClipping(1.5),
        PoissonSampled(0.01, Gaussian(1.5)),
        SampledWithoutReplacement(10, 2, Gaussian(1.5)),
        SampledWithReplacement(10, 2, Gaussian(1.5)),
        TruncatedPoissonSampled(10, 0.3, 2, GroupPrivacy(2, Gaussian(1.5))),
        SelfComposed(PoissonSampled(0.01, Gaussian(1.5)), 3),
        RepeatAndSelect(Gaussian(1.5), 3, None),
        GroupPrivacy(3, Gaussian(1.5)),
        Decay("time", 0.1, 5, PoissonSampled(0.01, AdaptiveClipping(1.5)), 3),
    ],
    ids=str,
)
def test_the_one_noise_multiplier_is_found_and_replaced(event: DpEvent) -> None:
    assert noise_multiplier(event) == 1.5
    noisier = with_noise_multiplier(event, 2)
    assert noise_multiplier(noisier) == 2
    assert with_noise_multiplier(noisier, 1.5) == event
    with pytest.raises(InvalidEventError):
        with_noise_multiplier(event, 0)


@pytest.mark.parametrize(
    "event",
    [
        RandomizedResponse(0.5, 2),
        Exponential(1),
        DiscreteLaplace(1, 2),
        PermuteAndFlip(1),
        MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5)),
        PoissonSampled(0.1, MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5))),
        Zcdp(1),
        EpsilonDelta(1),
        AdaptiveClipping(gradient_noise_multiplier=1, count_noise_stddev=1),
        Composed((Gaussian(1), Gaussian(1))),
        PoissonSampled(0.1, Exponential(1)),
        SelfComposed(Composed((Gaussian(1),)), 2),
    ],
    ids=str,
)
def test_an_event_without_one_noise_multiplier_says_so(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
        noise_multiplier(event)
    with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
        with_noise_multiplier(event, 2)


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampled(0.25, Composed((Gaussian(1), Gaussian(2)))),
        PoissonSampled(0.25, MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5))),
        PoissonSampled(0.25, DiscreteLaplace(1, 2)),
        TruncatedPoissonSampled(10, 0.25, 2, Gaussian(1)),
        SelfComposed(PoissonSampled(0.25, Laplace(1)), 3),
        RepeatAndSelect(PoissonSampled(0.25, Laplace(1)), 3, 1),
        GroupPrivacy(3, PoissonSampled(0.25, Gaussian(1))),
        Decay("exp", 0.1, 5, PoissonSampled(0.25, Gaussian(1))),
    ],
    ids=str,
)
def test_the_one_sampling_probability_is_found_and_replaced(event: DpEvent) -> None:
    assert sampling_probability(event) == 0.25
    rarer = with_sampling_probability(event, 0.125)
    assert sampling_probability(rarer) == 0.125
    assert with_sampling_probability(rarer, 0.25) == event
    with pytest.raises(InvalidEventError):
        with_sampling_probability(event, 0)


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(1),
        MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5)),
        SampledWithoutReplacement(10, 2, Gaussian(1)),
        SampledWithReplacement(10, 2, Gaussian(1)),
        Composed((PoissonSampled(0.1, Gaussian(1)),)),
    ],
    ids=str,
)
def test_an_event_without_one_sampling_probability_says_so(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
        sampling_probability(event)
    with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
        with_sampling_probability(event, 0.5)
