"""Deviations of steps from what their run declared."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from app.accounting.events import (
    DpEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SampledWithReplacement,
    TruncatedPoissonSampled,
    child_events,
    mechanisms_in,
    smallest_noise,
    type_name,
)
from app.ledger.event_differences import differing_parameters


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

    @property
    def is_weaker(self) -> bool:
        """Whether the steps may protect less than declared: more noise and rarer sampling protect more."""
        if not isinstance(self.declared, float | int) or not isinstance(self.observed, float | int):
            return True  # a number that is stored may be whole
        if self.kind is DeviationKind.NOISE_MULTIPLIER:
            return self.observed < self.declared
        return self.kind is not DeviationKind.SAMPLING_PROBABILITY or self.observed > self.declared

    @property
    def respect(self) -> tuple[DeviationKind, bool]:
        """What only the first deviation is kept of: its kind and direction."""
        return self.kind, self.is_weaker


_Difference = tuple[DeviationKind, float | str | None, float | str | None]


def merge_deviations(before: tuple[Deviation, ...], found: tuple[Deviation, ...]) -> tuple[Deviation, ...]:
    """Keep the first deviation of each kind and direction: less noise is not hidden by more noise before."""
    known = {each.respect for each in before}
    further = tuple(each for each in found if each.respect not in known)
    return (*before, *further) if further else before


@lru_cache(maxsize=4096)
def differences(declared: DpEvent, observed: DpEvent) -> tuple[_Difference, ...]:
    """List the traits in which an event differs from the declared one: kind, declared and observed value.

    There is none if its parameters differ in the last place only.
    """
    if not any(differing_parameters(declared, observed)):
        return ()
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
    """Get the sampler in an event with the largest rate, and its rate: how often it takes a record on average."""
    if isinstance(event, PoissonSampled | TruncatedPoissonSampled):
        return type_name(event), event.sampling_probability
    if isinstance(event, SampledWithoutReplacement | SampledWithReplacement):
        return type_name(event), event.sample_size / event.source_dataset_size
    sampled = [_sampling(each) for each in child_events(event)]
    return max(sampled, key=lambda found: found[1]) if sampled else ("none", 1.0)
