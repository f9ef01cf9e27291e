"""Loaders whose batches may hold a record twice, found without importing any framework."""

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sized
from types import ModuleType
from typing import Any, Final

from epsilon_ledger._run.mindspore_pipelines import reason_against_pipeline


def reason_against(batches: object) -> str | None:
    """Return why a record may be in several batches of a pass, or decide about the batches of others.

    Args:
        batches: any iterable. Loaders of torch and datasets of MindSpore are examined; the caller knows all others.

    Returns:
        The reason, with advice; None if there is none.
    """
    if isinstance(batches, itertools.cycle):
        return "a cycle repeats them; give the loader itself, for each epoch"
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(batches, torch_data.DataLoader):
        return _against_loader(batches, torch_data)
    if any(kind.__module__.startswith("mindspore.dataset") for kind in type(batches).__mro__):
        pipeline: Any = batches
        return reason_against_pipeline(pipeline if hasattr(pipeline, "children") else pipeline.dataset)
    return None


def _against_loader(loader: Any, torch_data: ModuleType) -> str | None:  # noqa: ANN401 - torch's
    """Examine a loader of torch."""
    if isinstance(loader.dataset, torch_data.IterableDataset):
        if loader.num_workers > 1:
            return (
                f"each of the {loader.num_workers} workers reads the whole IterableDataset, unless it divides the "
                "records itself; use one worker"
            )
        return None
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while type(sampler) is torch_data.BatchSampler:
        sampler = sampler.sampler
    return _against_sampler(sampler, torch_data) or reason_against_dataset(loader.dataset)


def _against_sampler(sampler: Any, torch_data: ModuleType) -> str | None:  # noqa: ANN401 - torch's
    """Examine a sampler of torch; only classes that are known by their code are accepted."""
    kind = type(sampler)
    if getattr(torch_data, kind.__name__, None) is kind and kind.__name__ in _TORCH_SAMPLERS:
        return _TORCH_SAMPLERS[kind.__name__](sampler)
    if "UniformWithReplacement" in kind.__name__:
        return f"{kind.__name__} draws Poisson samples; authorize each step with track"
    return f"the order of {kind.__module__}.{kind.__name__} is unknown"


def _against_random(sampler: Any) -> str | None:  # noqa: ANN401 - torch's
    if sampler.replacement:
        return "RandomSampler(replacement=True) may draw a record several times; leave replacement=False"
    if sampler.num_samples > len(sampler.data_source):
        return f"RandomSampler draws {sampler.num_samples} of {len(sampler.data_source)} records; lower num_samples"
    return None


def _against_distributed(sampler: Any) -> str | None:  # noqa: ANN401 - torch's
    if sampler.total_size > len(sampler.dataset):
        return "DistributedSampler repeats records until all ranks have equally many; set drop_last=True"
    return None


_TORCH_SAMPLERS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "SequentialSampler": lambda _: None,
    "RandomSampler": _against_random,
    "SubsetRandomSampler": lambda sampler: (
        None if _distinct(sampler.indices) else "SubsetRandomSampler has an index twice"
    ),
    "WeightedRandomSampler": lambda _: (
        "the weights of a WeightedRandomSampler decide how often a record is drawn; shuffle instead"
    ),
    "DistributedSampler": _against_distributed,
}


def reason_against_dataset(dataset: Any) -> str | None:  # noqa: ANN401 - torch's, or any other
    """Return why a dataset of torch has a record at several indices; None if it is not known to have one."""
    torch_data = sys.modules["torch.utils.data"]
    if type(dataset) is torch_data.Subset:
        if not _distinct(dataset.indices):
            return "the Subset has an index twice"
        return reason_against_dataset(dataset.dataset)
    if type(dataset) is torch_data.ConcatDataset:
        if not _distinct(map(id, dataset.datasets)):
            return "the ConcatDataset has a dataset twice"
        return next(filter(None, map(reason_against_dataset, dataset.datasets)), None)
    return None


def _distinct(indices: Iterable[Any]) -> bool:
    """Return whether no index occurs twice; tensors are compared by value."""
    listed = [int(index) for index in indices] if isinstance(indices, Sized) else list(indices)
    return len(set(listed)) == len(listed)
