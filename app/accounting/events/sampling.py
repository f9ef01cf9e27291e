"""Events that ran on a sample of the data."""

from dataclasses import dataclass

from app.accounting.events.additive_noise import AdaptiveClipping, DiscreteGaussian, Gaussian, Laplace
from app.accounting.events.base import (
    MAX_COUNT,
    PROBABILITIES,
    DpEvent,
    check_event,
    check_whole,
    curve_count,
    inside,
    set_real,
    wire_type,
)
from app.accounting.events.composite import Composed, GroupPrivacy, SelfComposed


@wire_type("poisson_sampled")
@dataclass(frozen=True, slots=True)
class PoissonSampled(DpEvent):
    """A mechanism run on a Poisson sample: every record is taken independently with the same probability.

    To a noisy sum, a record that is not taken contributes what a missing or a special one does. Of any other mechanism
    the output may show who was taken: sampling then amplifies under `add_or_remove_one` only.

    Args:
        sampling_probability: probability with which each record is taken, in (0, 1].
        event: what happened to the sample.

    Raises:
        InvalidEventError: the probability is out of bounds or `event` is not an event.
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
    """A mechanism run on a batch of a fixed number of records, every such batch being as likely as any other.

    Args:
        source_dataset_size: number n of records, in 1 ... 1e9; public, as neighbours replace a record.
        sample_size: number of records in the batch, in 1 ... n.
        event: what happened to the batch.

    Raises:
        InvalidEventError: a number is out of bounds or `event` is not an event.
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
    """Check whether an event is the release of one noisy sum, or of several Gaussian ones composed."""
    if isinstance(event, GroupPrivacy):
        return is_noisy_sum(event.event)
    return isinstance(event, Laplace | DiscreteGaussian) or _is_gaussian_sum(event)


def _is_gaussian_sum(event: DpEvent) -> bool:
    if isinstance(event, Composed | SelfComposed | GroupPrivacy):
        return all(map(_is_gaussian_sum, inside(event)))
    return isinstance(event, Gaussian | AdaptiveClipping)
