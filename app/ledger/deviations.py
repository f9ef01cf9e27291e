"""Compare a run's steps with its declaration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from app.accounting.events import (
    DpEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    child_events,
    mechanisms_in,
    type_name,
)
from app.ledger.accounts import StepEvent
from app.ledger.event_inspection import smallest_noise


class DeviationKind(StrEnum):
    """The aspect in which steps differ."""

    SAMPLER = "sampler"
    SAMPLING_PROBABILITY = "sampling_probability"
    MECHANISM = "mechanism"
    NOISE_MULTIPLIER = "noise_multiplier"
    EVENT = "event"
    STEPS = "steps"
    STEPS_PER_HOUR = "steps_per_hour"


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first step that differs from its run's declaration in one aspect."""

    kind: DeviationKind
    declared: float | str | None
    observed: float | str | None
    first_step: int


@dataclass(frozen=True, slots=True)
class Declared:
    """A run's declaration; None: not declared.

    `event` is the default step event, `planned` has further ones.
    """

    event: DpEvent | None
    planned: Sequence[StepEvent] = ()
    steps: int | None = None
    steps_per_hour: float | None = None


LEAST_HOURS: Final = 1.0
"""A run that has just begun may take an hour's steps immediately."""


def deviations(declared: Declared, next_step: int, steps: Iterable[StepEvent], hours: float) -> tuple[Deviation, ...]:
    """Find the first deviation of each kind, `hours` after the run was registered."""
    found: dict[DeviationKind, Deviation] = {}
    at = next_step
    for step in steps:
        if step.event != declared.event and all(step.event != planned.event for planned in declared.planned):
            usual = declared.event or next((planned.event for planned in declared.planned), None)
            for kind, expected, seen in () if usual is None else _differences(usual, step.event):
                found.setdefault(kind, Deviation(kind, expected, seen, at))
        at += step.count
    if declared.steps is not None and at > declared.steps:
        first = max(next_step, declared.steps)
        found[DeviationKind.STEPS] = Deviation(DeviationKind.STEPS, declared.steps, at, first)
    if declared.steps_per_hour is not None and at > declared.steps_per_hour * max(hours, LEAST_HOURS):
        rate = at / max(hours, LEAST_HOURS)
        kind = DeviationKind.STEPS_PER_HOUR
        found[kind] = Deviation(kind, declared.steps_per_hour, rate, next_step)
    return tuple(found.values())


def merge_deviations(before: tuple[Deviation, ...], found: tuple[Deviation, ...]) -> tuple[Deviation, ...]:
    """Keep the first deviation of each kind."""
    kinds = {each.kind for each in before}
    further = tuple(each for each in found if each.kind not in kinds)
    return (*before, *further) if further else before


_Difference = tuple[DeviationKind, float | str | None, float | str | None]


@lru_cache(maxsize=4096)
def _differences(declared: DpEvent, observed: DpEvent) -> tuple[_Difference, ...]:
    usual, seen = _traits(declared), _traits(observed)
    found = tuple((kind, usual[kind], seen[kind]) for kind in usual if usual[kind] != seen[kind])
    return found or ((DeviationKind.EVENT, type_name(declared), type_name(observed)),)


def _traits(event: DpEvent) -> dict[DeviationKind, float | str | None]:
    """List the main traits of an event: sampler, sampling rate, mechanisms and noise."""
    sampler, probability = _sampling(event)
    return {
        DeviationKind.SAMPLER: sampler,
        DeviationKind.SAMPLING_PROBABILITY: probability,
        DeviationKind.MECHANISM: ", ".join(sorted({type_name(leaf) for leaf in mechanisms_in(event)})),
        DeviationKind.NOISE_MULTIPLIER: smallest_noise(event),
    }


def _sampling(event: DpEvent) -> tuple[str, float]:
    """Get the sampler in an event with the largest rate, and its rate."""
    if isinstance(event, PoissonSampled):
        return type_name(event), event.sampling_probability
    if isinstance(event, SampledWithoutReplacement):
        return type_name(event), event.sample_size / event.source_dataset_size
    sampled = [_sampling(each) for each in child_events(event)]
    return max(sampled, key=lambda found: found[1]) if sampled else ("none", 1.0)
