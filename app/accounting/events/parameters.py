"""Noise multipliers and sampling probabilities: those that a calibration or a schedule changes, and the smallest noise.

They are the fields of these names of an event, or of the one inside it. An event without exactly one such field raises
UnsupportedEventError.
"""

from dataclasses import replace
from math import hypot
from typing import Literal, TypeAlias, TypeGuard

import numpy as np

from app.accounting.errors import UnsupportedEventError
from app.accounting.events.base import DpEvent, child_events, type_name
from app.accounting.events.composite import GROUP_KNOTS, Batch, Decay, GroupPrivacy, PoissonSampled, Wrapper
from app.accounting.events.mechanisms import AdaptiveClipping, DiscreteLaplace, Laplace, MixtureOfGaussians
from app.accounting.formulas.noise_schedules import (
    EXACT_STEPS,
    KNOTS,
    DecayMode,
    least_noise_segments,
    scheduled_noise,
    segments,
)

Parameter: TypeAlias = Literal["noise_multiplier", "sampling_probability"]


def noise_multiplier(event: DpEvent) -> float:
    """Get the noise multiplier of an event, for a decay at step 0."""
    return _get(event, "noise_multiplier")


def with_noise_multiplier(event: DpEvent, z: float) -> DpEvent:
    """Copy an event with another noise multiplier, in [1e-3, 1e6]."""
    return _replace(event, "noise_multiplier", z)


def sampling_probability(event: DpEvent) -> float:
    """Get the only Poisson sampling probability inside an event."""
    return _get(event, "sampling_probability")


def with_sampling_probability(event: DpEvent, q: float) -> DpEvent:
    """Copy an event with another Poisson sampling probability, in (0, 1]."""
    return _replace(event, "sampling_probability", q)


def scheduled_events(event: Decay) -> list[tuple[DpEvent, int]]:
    """Reduce a schedule to events with counts of half steps, that together cost no less."""
    if isinstance(event.event, GroupPrivacy):  # that its cost is below a straight line between two steps is not proven
        return [(step, 2 * count) for step, count in least_noise_events(event)]
    found = segments(*_schedule(event))
    return [(with_noise_multiplier(event.event, z), halves) for z, halves in found]


def least_noise_events(event: Decay) -> list[tuple[DpEvent, int]]:
    """Reduce a schedule to events with counts of steps, none of which has more noise."""
    is_group = isinstance(event.event, GroupPrivacy)
    exact, most = (GROUP_KNOTS, GROUP_KNOTS) if is_group else (EXACT_STEPS, KNOTS)
    found = least_noise_segments(*_schedule(event), exact=exact, most=most)
    return [(with_noise_multiplier(event.event, z), count) for z, count in found]


def _schedule(event: Decay) -> tuple[DecayMode, float, float, int, int]:
    return event.mode, noise_multiplier(event.event), event.decay_rate, event.first_step, event.steps


def _get(event: DpEvent, name: Parameter) -> float:
    if _is_inside(event, name):
        return _get(event.event, name)
    value: float | None = getattr(event, name, None)
    if value is None:
        raise UnsupportedEventError(f"{_without(event, name)}.")
    return value


def _replace(event: DpEvent, name: Parameter, value: float) -> DpEvent:
    if _is_inside(event, name):
        return replace(event, event=_replace(event.event, name, value))
    if getattr(event, name, None) is None:
        raise UnsupportedEventError(f"{_without(event, name)} that could be replaced by {value:g}.")
    return replace(event, **{name: value})


def _is_inside(event: DpEvent, name: Parameter) -> TypeGuard[Wrapper]:
    is_sample = isinstance(event, PoissonSampled | Batch)
    return isinstance(event, Wrapper) and not (is_sample and name == "sampling_probability")


def _without(event: DpEvent, name: Parameter) -> str:
    form = ""
    if hasattr(event, name):  # adaptive_clipping and laplace may have a noise multiplier
        form = " with an epsilon" if isinstance(event, Laplace) else " with two noises"
    return f"{type_name(event)}{form} has no single {name.replace('_', ' ')}"


def smallest_noise(event: DpEvent) -> float | None:
    """Find the smallest noise multiplier in an event; None if no part has one.

    For adaptive clipping it is that of gradients and count together (arXiv 1905.03871, Theorem 1), for a decay its
    last, for Laplace noise of an epsilon 1 / epsilon, for discrete Laplace noise 1 / c over the sensitivity, for a
    mixture that of the largest sensitivity.
    """
    if isinstance(event, Decay):
        first = smallest_noise(event.event)
        assert first is not None, "a decay holds a mechanism with noise"
        last = np.array([event.first_step + event.steps - 1])
        return float(scheduled_noise(event.mode, first, event.decay_rate, last)[0])
    if isinstance(event, AdaptiveClipping) and event.noise_multiplier is None:
        assert event.gradient_noise_multiplier is not None
        assert event.count_noise_stddev is not None
        return 1 / hypot(1 / event.gradient_noise_multiplier, 1 / (2 * event.count_noise_stddev))
    parts = child_events(event)
    if parts:
        return min((least for each in parts if (least := smallest_noise(each)) is not None), default=None)
    match event:
        case DiscreteLaplace():
            noise: float | None = 1 / (event.noise_parameter * event.sensitivity)
        case MixtureOfGaussians():
            noise = event.standard_deviation / event.largest
        case Laplace(epsilon=float(epsilon)):
            noise = 1 / epsilon
        case _:
            noise = getattr(event, "noise_multiplier", None)
    return noise
