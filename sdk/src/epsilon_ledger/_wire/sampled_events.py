"""Events on random samples of the data: their types and factories, with errors as in `events`."""

from typing import Literal, TypedDict

from epsilon_ledger._wire.coercion import real, whole
from epsilon_ledger._wire.events import Event


class PoissonSampledEvent(TypedDict):
    """An event on a Poisson sample."""

    type: Literal["poisson_sampled"]
    sampling_probability: float
    event: Event


def poisson_sampled(sampling_probability: float, event: Event) -> PoissonSampledEvent:
    """Describe an event on a Poisson sample, which includes each record independently.

    Gaussian and Laplace noise on a sample, continuous or discrete, and a mixture_of_gaussians are the noisy sum alone.
    If the server sees each client's noisy answer, describe it as zcdp, under `replace_one` or `replace_special`.

    Args:
        sampling_probability: of each record, in [0, 1]; not the batch size over n of a shuffled loader. At 0 nothing
            is released, at no cost.
        event: on the sample.

    Returns:
        The event for the wire.
    """
    return {
        "type": "poisson_sampled",
        "sampling_probability": real("sampling_probability", sampling_probability, 0.0, 1.0),
        "event": event,
    }


class SampledWithoutReplacementEvent(TypedDict):
    """An event on a batch of fixed size."""

    type: Literal["sampled_without_replacement"]
    source_dataset_size: int
    sample_size: int
    event: Event


def sampled_without_replacement(
    source_dataset_size: int, sample_size: int, event: Event
) -> SampledWithoutReplacementEvent:
    """Describe an event on a random batch of fixed size, for populations under `replace_one`.

    Args:
        source_dataset_size: number of records.
        sample_size: number of records in the batch.
        event: on the batch.

    Returns:
        The event for the wire.
    """
    return {
        "type": "sampled_without_replacement",
        "source_dataset_size": whole("source_dataset_size", source_dataset_size),
        "sample_size": whole("sample_size", sample_size),
        "event": event,
    }


class TruncatedPoissonSampledEvent(TypedDict):
    """An event on a Poisson sample that is cut to a largest size."""

    type: Literal["truncated_poisson_sampled"]
    source_dataset_size: int
    sampling_probability: float
    truncated_batch_size: int
    event: Event


def truncated_poisson_sampled(
    source_dataset_size: int, sampling_probability: float, truncated_batch_size: int, event: Event
) -> TruncatedPoissonSampledEvent:
    """Describe an event on a Poisson sample that is cut to a largest size: of more records, an even choice is kept.

    Args:
        source_dataset_size: number of records.
        sampling_probability: of each record, in [0, 1], before the batch is cut.
        truncated_batch_size: the most records that are kept.
        event: on the batch.

    Returns:
        The event for the wire.
    """
    return {
        "type": "truncated_poisson_sampled",
        "source_dataset_size": whole("source_dataset_size", source_dataset_size),
        "sampling_probability": real("sampling_probability", sampling_probability, 0.0, 1.0),
        "truncated_batch_size": whole("truncated_batch_size", truncated_batch_size),
        "event": event,
    }


class SampledWithReplacementEvent(TypedDict):
    """An event on a batch in which a record may occur several times."""

    type: Literal["sampled_with_replacement"]
    source_dataset_size: int
    sample_size: int
    event: Event


def sampled_with_replacement(source_dataset_size: int, sample_size: int, event: Event) -> SampledWithReplacementEvent:
    """Describe an event on a batch, each place of which holds any of the records, for populations under `replace_one`.

    Args:
        source_dataset_size: number of records.
        sample_size: number of places in the batch; a record may be in several.
        event: on the batch.

    Returns:
        The event for the wire.
    """
    return {
        "type": "sampled_with_replacement",
        "source_dataset_size": whole("source_dataset_size", source_dataset_size),
        "sample_size": whole("sample_size", sample_size),
        "event": event,
    }
