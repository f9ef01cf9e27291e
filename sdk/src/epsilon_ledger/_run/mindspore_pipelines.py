"""Data sets of MindSpore whose batches may hold a record twice, by the names of their classes, without importing it."""

from typing import Any, Final

_ONE_TO_ONE: Final = frozenset({"MapDataset", "ProjectDataset", "RenameDataset", "ShuffleDataset"})
"""Operations that hand on each record once, and no part of another one."""

_ONCE: Final = frozenset({"SequentialSampler", "RandomSampler"})


def reason_against_pipeline(dataset: Any) -> str | None:  # noqa: ANN401 - a data set of MindSpore
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
