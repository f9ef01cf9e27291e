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
    reason = reason_against_pipeline(dataset)
    if reason is not None:
        raise UnsupportedTrainingError(f"This data set cannot be accounted for: {reason}.")
    (records,) = dataset.children
    return records


def reason_against_pipeline(dataset: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why a record may be in several batches of a pass, or change other records or their batches.

    Only operations that are known by their code are accepted.

    Args:
        dataset: of MindSpore.

    Returns:
        The reason, with advice; None if there is none.
    """
    batches = type(dataset).__name__
    if batches == "RepeatDataset":
        return "repeat() has each record several times; leave it out, and iterate over the data set for each epoch"
    if batches != "BatchDataset" or getattr(dataset, "per_batch_map", None) is not None:
        return (
            f"its last operation is {batches}, but it must be batch() without per_batch_map, since an operation on "
            "batches can mix records; map records before they are batched"
        )
    if getattr(dataset, "batch_size_func", None) is not None:
        return "a function decides the size of each batch, so that it is not known; give a number"
    (at,) = dataset.children
    while at.children:
        name = type(at).__name__
        if name not in _ONE_TO_ONE or len(at.children) != 1:
            return (
                f"{name} may hand on a record twice, or let one record decide about others; before its batches, a data "
                f"set may have {', '.join(sorted(_ONE_TO_ONE))}"
            )
        (at,) = at.children
    if (getattr(at, "num_shards", None) or 1) != 1:
        return "shards are filled up with repeated records until all have equally many; use one shard"
    return _reason_against_sampler(getattr(at, "sampler", None))


def _reason_against_sampler(sampler: Any) -> str | None:  # noqa: ANN401 - a sampler of MindSpore
    name = type(sampler).__name__
    if sampler is None or (
        name in _ONCE and not getattr(sampler, "replacement", False) and not getattr(sampler, "child_sampler", None)
    ):
        return None
    return (
        f"{name} may draw a record several times in a pass, or leave some out; shuffle without replacement, as "
        "shuffle=True does"
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
