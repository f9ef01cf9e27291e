"""Poisson samples of a Trainer's records, split into physical batches."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import DataLoader

_WORDS: Final = slice(24, 24 + 8 * 624)
"""Bytes of a CPU generator's state that hold the twister's words of 32 bits, each in 64."""


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
        A loader of draws, whose length is that of an epoch.
    """
    records = len(plain.dataset)
    steps = max(1, round(1 / sampling_probability))
    # The Trainer seeds torch's own generator with a public number, and restores it from a checkpoint.
    generator = fresh_generator(torch.device("cpu"))
    sampler: Any = (
        UniformWithReplacementSampler(
            num_samples=records, sample_rate=sampling_probability, generator=generator, steps=steps
        )
        if workers == 1
        else DistributedUniformWithReplacementSampler(
            total_size=records, sample_rate=sampling_probability, generator=generator, steps=steps
        )
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


def fresh_generator(device: torch.device) -> torch.Generator:
    """Make a generator whose state nobody knows and no checkpoint keeps."""
    generator = torch.Generator(device)
    if device.type != "cpu":
        generator.manual_seed(secrets.randbits(63))
        return generator
    # Of a seed torch's Mersenne Twister uses 32 bits, which can be tried out: fill all of its state.
    state = generator.get_state()
    words = state[_WORDS].view(torch.int64)
    words.copy_(torch.tensor([secrets.randbits(32) for _ in range(len(words))]))
    generator.set_state(state)
    return generator
