"""The parameters that a calibration may change: noise multiplier and sampling probability.

An event without exactly one such parameter raises UnsupportedEventError.
"""

from dataclasses import replace
from functools import singledispatch

from app.accounting.errors import UnsupportedEventError
from app.accounting.events.additive_noise import AdaptiveClipping, DiscreteGaussian, Gaussian, Laplace, TreeAggregation
from app.accounting.events.base import DpEvent, type_name
from app.accounting.events.composite import GroupPrivacy, RepeatAndSelect, SelfComposed
from app.accounting.events.sampling import PoissonSampled, SampledWithoutReplacement
from app.accounting.events.schedule import Decay


@singledispatch
def noise_multiplier(event: DpEvent) -> float:
    """Get the noise multiplier of an event, for a decay at step 0."""
    raise UnsupportedEventError(f"{type_name(event)} has no single noise multiplier.")


@singledispatch
def with_noise_multiplier(event: DpEvent, z: float) -> DpEvent:
    """Copy an event with another noise multiplier, in [1e-3, 1e6]."""
    raise UnsupportedEventError(f"{type_name(event)} has no single noise multiplier that could be replaced by {z:g}.")


@singledispatch
def sampling_probability(event: DpEvent) -> float:
    """Get the only Poisson sampling probability inside an event."""
    raise UnsupportedEventError(f"{type_name(event)} has no single sampling probability.")


@singledispatch
def with_sampling_probability(event: DpEvent, q: float) -> DpEvent:
    """Copy an event with another Poisson sampling probability, in (0, 1]."""
    raise UnsupportedEventError(
        f"{type_name(event)} has no single sampling probability that could be replaced by {q:g}."
    )


@noise_multiplier.register
def _(event: Gaussian | Laplace | DiscreteGaussian | TreeAggregation) -> float:
    return event.noise_multiplier


@with_noise_multiplier.register
def _(event: Gaussian | Laplace | DiscreteGaussian | TreeAggregation, z: float) -> DpEvent:
    return replace(event, noise_multiplier=z)


@noise_multiplier.register
def _(event: AdaptiveClipping) -> float:
    if event.noise_multiplier is None:
        raise UnsupportedEventError("adaptive_clipping with two noises has no single noise multiplier.")
    return event.noise_multiplier


@with_noise_multiplier.register
def _(event: AdaptiveClipping, z: float) -> DpEvent:
    if event.noise_multiplier is None:
        raise UnsupportedEventError(
            f"adaptive_clipping with two noises has no single noise multiplier that could be replaced by {z:g}."
        )
    return replace(event, noise_multiplier=z)


@noise_multiplier.register
def _(
    event: PoissonSampled | SampledWithoutReplacement | SelfComposed | RepeatAndSelect | GroupPrivacy | Decay,
) -> float:
    return noise_multiplier(event.event)


@with_noise_multiplier.register
def _(
    event: PoissonSampled | SampledWithoutReplacement | SelfComposed | RepeatAndSelect | GroupPrivacy | Decay,
    z: float,
) -> DpEvent:
    return replace(event, event=with_noise_multiplier(event.event, z))


@sampling_probability.register
def _(event: PoissonSampled) -> float:
    return event.sampling_probability


@with_sampling_probability.register
def _(event: PoissonSampled, q: float) -> DpEvent:
    return replace(event, sampling_probability=q)


@sampling_probability.register
def _(event: SelfComposed | RepeatAndSelect | GroupPrivacy | Decay) -> float:
    return sampling_probability(event.event)


@with_sampling_probability.register
def _(event: SelfComposed | RepeatAndSelect | GroupPrivacy | Decay, q: float) -> DpEvent:
    return replace(event, event=with_sampling_probability(event.event, q))
