"""The public size of the data, where the number of records is private.

Opacus derives three numbers from `len(dataset)`: the sample rate, the steps of an epoch, and the expected batch size by
which each noisy sum is divided. Under add_or_remove_one a neighbour has another number of records, so that all three
may differ, and the divisor shows in every released gradient. DP-SGD takes them as fixed. Here they are derived in the
same way from a size that is public.

Source: Opacus' trackers 571 and 819; Abadi et al. 2016 (arXiv 1607.00133), algorithm 1 with a fixed lot size.
"""

import math
from collections.abc import Sized
from typing import Any, Final

from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import DataLoader

from epsilon_ledger import Run, Trial
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.loaders import sampler_of
from epsilon_ledger._opacus.ranks import workers

_MOST_APART: Final = 2
"""Factor between a declared size and the number of records, from which the one no longer describes the other."""


def public_size_of(run: Run | Trial, dataset: Sized, given: int | None) -> int | None:
    """Find the size from which a training's numbers are derived; None: from the number of records, which is public.

    Args:
        run: to charge; its population may declare a size.
        dataset: of the training.
        given: by the user, or None.

    Raises:
        UnsupportedTrainingError: the number of records is private, and no public one is known.
    """
    if given is not None or run.state.neighboring_relation != "add_or_remove_one":
        return given
    size = run.state.population_size
    if size is None:
        raise UnsupportedTrainingError(
            "The population is under add_or_remove_one, so the number of records is private. Opacus derives the "
            "sample rate, the steps of an epoch and the divisor of each noisy sum from it, and so releases it. Declare "
            "the population's size, or give public_size=..., from which they are derived then: len(dataset) only if "
            "that number is public."
        )
    records = len(dataset)
    if not size <= records * _MOST_APART <= size * _MOST_APART**2:
        raise UnsupportedTrainingError(
            f"The population declares {size} units, but this dataset has {records} records: batches would have "
            f"{records / size:.3g} times the wanted size. Give public_size=..., the public number of records in this "
            f"training's part of the data."
        )
    return size


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
