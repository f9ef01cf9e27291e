"""What Opacus derives from the number of records, derived from a public size instead.

Source: Opacus' trackers 571 and 819.
"""

import math
from collections.abc import Sized
from typing import Any

from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import DataLoader

from epsilon_ledger import Run, Trial
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.loaders import sampler_of
from epsilon_ledger._opacus.ranks import workers
from epsilon_ledger._run.public_size import choose_public_size


def public_size_of(run: Run | Trial, dataset: Sized, given: int | None) -> int | None:
    """Find the size from which a training's numbers are derived; None: from the number of records, which is public.

    Args:
        run: to charge; its population may declare a size.
        dataset: of the training.
        given: by the user, or None.

    Raises:
        UnsupportedTrainingError: the number of records is private, and no public one is known.
    """
    return choose_public_size(run, len(dataset), given, UnsupportedTrainingError)


def steps_per_epoch(loader: DataLoader, size: int | None) -> int:
    """Compute the number of batches that a loader's batch size makes of a public number of records.

    Args:
        loader: before `make_private`, or after it, where its number of batches is taken as it is.
        size: from `public_size_of`.
    """
    if size is None or loader.batch_size is None:
        batches: int = len(loader)
        return batches
    steps: float = size / loader.batch_size
    return max(1, math.floor(steps) if loader.drop_last else math.ceil(steps))


def use_public_size(optimizer: DPOptimizer, loader: DataLoader, size: int, *, original: DataLoader | None) -> None:
    """Replace what Opacus derived from the number of records.

    Args:
        optimizer: whose expected batch size is set.
        loader: from `make_private`, whose sampler gets the sample rate and the steps of an epoch.
        size: public number of records.
        original: loader that `make_private` was given; None: unknown, and with it the batch size, so that the sample
            rate stays.
    """
    sampler: Any = sampler_of(loader)
    if isinstance(sampler, UniformWithReplacementSampler | DistributedUniformWithReplacementSampler):
        steps = len(sampler) if original is None else steps_per_epoch(original, size)
        if steps != len(sampler):
            sampler.sample_rate = 1 / steps
            name = "steps" if isinstance(sampler, UniformWithReplacementSampler) else "num_batches"
            setattr(sampler, name, steps)
        rate = sampler.sample_rate
    else:
        rate = 1 / len(loader)
    if optimizer.expected_batch_size is not None:
        # As Opacus computes it from the number of records, which rounding may bring to 0.
        optimizer.expected_batch_size = max(1, int(size * rate)) / workers(optimizer)
