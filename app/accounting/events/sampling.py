"""Events that run on a sample of the data."""

from dataclasses import dataclass

from app.accounting.events.additive_noise import AdaptiveClipping, DiscreteGaussian, Gaussian, Laplace
from app.accounting.events.base import (
    MAX_COUNT,
    PROBABILITIES,
    DpEvent,
    check_event,
    check_whole,
    child_events,
    curve_count,
    set_real,
    wire_type,
)
from app.accounting.events.composite import Composed, GroupPrivacy, SelfComposed


@wire_type("poisson_sampled")
@dataclass(frozen=True, slots=True)
class PoissonSampled(DpEvent):
    """A mechanism on a Poisson sample, which includes each record independently.

    To a noisy sum, an unsampled record contributes the same as a missing or special one. The output of other mechanisms
    may show who was sampled: they are amplified under `add_or_remove_one` only.

    Args:
        sampling_probability: in (0, 1].
        event: the mechanism that runs on the sample.
    """

    sampling_probability: float
    event: DpEvent

    def __post_init__(self) -> None:
        """Check the bounds."""
        set_real(
            self,
            "sampling_probability",
            PROBABILITIES,
            "the probability with which each record is taken, independently of the others",
        )
        check_event(self.event, "happened to the sample")


@wire_type("sampled_without_replacement")
@dataclass(frozen=True, slots=True)
class SampledWithoutReplacement(DpEvent):
    """A mechanism on a batch of fixed size, drawn uniformly without replacement.

    Args:
        source_dataset_size: number n of records, 1 to 1e9; public, since neighbours replace a record.
        sample_size: number of records in the batch, 1 to n.
        event: the mechanism that runs on the batch.
    """

    source_dataset_size: int
    sample_size: int
    event: DpEvent

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_whole("source_dataset_size", self.source_dataset_size, 1, MAX_COUNT, "the number of records")
        check_whole("sample_size", self.sample_size, 1, self.source_dataset_size, "the records of one batch")
        check_event(self.event, "happened to the batch")


@curve_count.register
def _(event: PoissonSampled | SampledWithoutReplacement) -> int:
    return curve_count(event.event)


def is_noisy_sum(event: DpEvent) -> bool:
    """Check whether an event releases one noisy sum, or several Gaussian ones composed."""
    if isinstance(event, GroupPrivacy):
        return is_noisy_sum(event.event)
    return isinstance(event, Laplace | DiscreteGaussian) or _is_gaussian_sum(event)


def _is_gaussian_sum(event: DpEvent) -> bool:
    if isinstance(event, Composed | SelfComposed | GroupPrivacy):
        return all(map(_is_gaussian_sum, child_events(event)))
    return isinstance(event, Gaussian | AdaptiveClipping)
