"""Checks of MindSpore's data sets and networks, by the names of their classes: nothing here imports MindSpore."""

from typing import Any

from epsilon_ledger._run.mindspore_pipelines import reason_against_pipeline
from epsilon_ledger._wire.errors import LedgerError


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
