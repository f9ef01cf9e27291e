"""Checks of MindSpore's data sets and networks, by the names of their classes: nothing here imports MindSpore."""

from typing import Any, Final

from epsilon_ledger._wire.errors import LedgerError

_ONE_TO_ONE: Final = frozenset({"MapDataset", "ProjectDataset", "RenameDataset", "ShuffleDataset"})
"""Operations that hand on each record once, and no part of another one."""

_ONCE: Final = frozenset({"SequentialSampler", "RandomSampler"})


class UnsupportedTrainingError(LedgerError, ValueError):
    """A training with MindSpore that cannot be accounted for."""


def require_records_once(dataset: Any) -> Any:  # noqa: ANN401 - a data set of MindSpore
    """Require that a pass through a data set has each record at most once, in one batch.

    Args:
        dataset: whose last operation is `batch`.

    Returns:
        The data set under the batches.

    Raises:
        UnsupportedTrainingError: an operation might hand on a record twice, or mix records.
    """
    batches = type(dataset).__name__
    if batches != "BatchDataset" or getattr(dataset, "per_batch_map", None) is not None:
        raise UnsupportedTrainingError(
            f"The last operation of the data set is {batches}, but it must be batch() without per_batch_map: an "
            "operation on batches can mix records. Map records before they are batched."
        )
    (records,) = dataset.children
    at = records
    while at.children:
        name = type(at).__name__
        if name not in _ONE_TO_ONE or len(at.children) != 1:
            raise UnsupportedTrainingError(
                f"{name} may hand on a record twice, or let one record decide about others. Before its batches, a "
                f"data set may have {', '.join(sorted(_ONE_TO_ONE))}."
            )
        (at,) = at.children
    _require_once(getattr(at, "sampler", None))
    if (getattr(at, "num_shards", None) or 1) != 1:
        raise UnsupportedTrainingError("The data set is one shard of several: train on one device, with all records.")
    return records


def _require_once(sampler: Any) -> None:  # noqa: ANN401 - a sampler of MindSpore
    if sampler is None:
        return
    name = type(sampler).__name__
    if name not in _ONCE or getattr(sampler, "replacement", False) or getattr(sampler, "child_sampler", None):
        raise UnsupportedTrainingError(
            f"{name} may draw a record several times in a pass, or leave some out: shuffle without replacement, as "
            "shuffle=True does."
        )


def require_no_batch_statistics(network: Any) -> None:  # noqa: ANN401 - a cell of MindSpore
    """Require a network that keeps no statistics of its batches, which would be released without noise.

    Raises:
        UnsupportedTrainingError: it has a layer that does.
    """
    for name, cell in network.cells_and_names():
        if "BatchNorm" in type(cell).__name__:
            raise UnsupportedTrainingError(
                f"The layer {name} is {type(cell).__name__}, whose moving averages are of the records, without noise: "
                "take GroupNorm or LayerNorm."
            )
