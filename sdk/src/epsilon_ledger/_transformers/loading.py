"""Poisson samples of a Trainer's records, split into physical batches."""

from collections.abc import Callable, Sequence
from typing import Any

from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import DataLoader


class PhysicalBatches:
    """Collator of a draw: its physical batches, each with its number of records; none of an empty draw.

    Args:
        collate: the Trainer's own.
        size: largest number of records in a physical batch, at least 1.
    """

    def __init__(self, collate: Callable[[Sequence[Any]], Any], size: int) -> None:
        self.collate = collate
        self.size = size

    def __call__(self, records: Sequence[Any]) -> list[tuple[int, Any]]:
        """Collate each physical batch by itself, so that padding is that of its own records."""
        parts = [records[start : start + self.size] for start in range(0, len(records), self.size)]
        return [(len(part), self.collate(part)) for part in parts]


def private_loader(plain: DataLoader, *, sampling_probability: float, size: int, workers: int) -> DataLoader:
    """Make the Poisson loader of a Trainer's loader.

    Args:
        plain: of the Trainer, with its records, collator and worker processes.
        sampling_probability: of each record, in (0, 1].
        size: largest number of records in a physical batch.
        workers: processes that train together, each of which draws from its own part of the records.

    Returns:
        A loader of draws, whose length is that of an epoch. `attach` gives it its random numbers.
    """
    records = len(plain.dataset)
    steps = max(1, round(1 / sampling_probability))
    sampler: Any = (
        UniformWithReplacementSampler(num_samples=records, sample_rate=sampling_probability, steps=steps)
        if workers == 1
        else DistributedUniformWithReplacementSampler(total_size=records, sample_rate=sampling_probability, steps=steps)
    )
    return DataLoader(
        plain.dataset,
        batch_sampler=sampler,
        collate_fn=PhysicalBatches(plain.collate_fn, size),
        num_workers=plain.num_workers,
        pin_memory=plain.pin_memory,
        timeout=plain.timeout,
        worker_init_fn=plain.worker_init_fn,
        multiprocessing_context=plain.multiprocessing_context,
        prefetch_factor=plain.prefetch_factor,
        persistent_workers=plain.persistent_workers,
        in_order=plain.in_order,
    )
