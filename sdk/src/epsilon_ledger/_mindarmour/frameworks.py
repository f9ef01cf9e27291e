"""Networks, parameters and data: of numpy, or of MindSpore where the job has imported it.

Nothing here imports MindSpore: a job that has objects of it has imported it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger._mindspore.pipelines import require_no_batch_statistics, require_records_once
from epsilon_ledger._wire.coercion import whole

Array = NDArray[Any]


class Network(Protocol):
    """A network of arrays."""

    def gradients(self, data: Array, label: Array) -> Sequence[Array]:
        """Return the gradients of the mean loss on some records, shaped as the optimizer's parameters."""
        ...


@dataclass(frozen=True)
class Records:
    """The records of a training.

    Args:
        data: (n, ...).
        label: (n, ...).
        batch_size: expected number of records in a batch.
    """

    data: Array
    label: Array
    batch_size: int

    def __len__(self) -> int:
        """Count the records."""
        return int(self.data.shape[0])


def is_of_mindspore(value: object) -> bool:
    """Whether a value is a cell, optimizer, parameter or data set of MindSpore."""
    return any(kind.__module__.partition(".")[0] == "mindspore" for kind in type(value).__mro__)


def of_mindspore(optimizer: str) -> Callable[..., Any]:
    """Return MindSpore's optimizer of a name."""
    found: Callable[..., Any] = getattr(sys.modules["mindspore"].nn, optimizer)
    return found


def gradients_of(network: Any, loss_fn: Any, optimizer: Any) -> Callable[[Array, Array], list[Array]]:  # noqa: ANN401 - as below
    """Return the function that computes gradients of the mean loss on some records.

    Args:
        network: a `Network`, or a cell of MindSpore.
        loss_fn: MindSpore's; None if the network has its own.
        optimizer: whose parameters the gradients are of.

    Raises:
        ValueError: network and loss do not fit together.
    """
    if not is_of_mindspore(network):
        if loss_fn is not None or not callable(getattr(network, "gradients", None)):
            raise ValueError(
                "A network of arrays computes its own loss: give an object with gradients(data, label), which returns "
                "the gradients of the mean loss, and no loss_fn. loss_fn is for cells of MindSpore."
            )
        return lambda data, label: [np.asarray(part) for part in network.gradients(data, label)]
    require_no_batch_statistics(network)
    mindspore = sys.modules["mindspore"]

    def loss(data: Any, label: Any) -> Any:  # noqa: ANN401 - tensors
        return network(data, label) if loss_fn is None else loss_fn(network(data), label)

    differentiated = mindspore.grad(loss, grad_position=None, weights=optimizer.parameters)

    def gradients(data: Array, label: Array) -> list[Array]:
        network.set_train()
        found = differentiated(mindspore.Tensor(data), mindspore.Tensor(label))
        return [part.asnumpy() for part in found]

    return gradients


def shapes_of(optimizer: Any) -> list[tuple[int, ...]]:  # noqa: ANN401 - of either
    """Return the shapes of an optimizer's parameters."""
    params = optimizer.parameters if is_of_mindspore(optimizer) else optimizer.params
    return [tuple(part.shape) for part in params]


def move(optimizer: Any, gradients: Sequence[Array]) -> None:  # noqa: ANN401 - of either
    """Let an optimizer move its parameters."""
    if is_of_mindspore(optimizer):
        tensor = sys.modules["mindspore"].Tensor
        types = [sys.modules["mindspore"].dtype_to_nptype(part.dtype) for part in optimizer.parameters]
        gradients = tuple(tensor(part.astype(kind)) for part, kind in zip(gradients, types, strict=True))
    optimizer(gradients)


def records_of(dataset: Any, batch_size: int | None) -> Records:  # noqa: ANN401 - of either
    """Read the records of a data set.

    Args:
        dataset: arrays (data, label), or a data set of MindSpore with batches of two columns.
        batch_size: records in a batch; None: of the data set.

    Raises:
        TypeError: it is neither.
        ValueError: there is no batch size, or the columns differ in their number of records.
    """
    if is_of_mindspore(dataset):
        # From under the batches: dropping the last one would let a record decide about others.
        rows = list(require_records_once(dataset).create_tuple_iterator(num_epochs=1, output_numpy=True))
        data, label = (np.stack(column) for column in zip(*rows, strict=True))
        batch_size = dataset.get_batch_size() if batch_size is None else batch_size
    else:
        if not isinstance(dataset, tuple | list) or len(dataset) != 2:  # noqa: PLR2004 - records and labels
            raise TypeError(
                f"train_dataset must be arrays (data, label), or a data set of MindSpore, not {type(dataset).__name__}."
            )
        data, label = (np.asarray(column) for column in dataset)
    if batch_size is None:
        raise ValueError("How many records has a batch? Give batch_size to the DPModel.")
    whole("batch_size", batch_size)
    if len(data) != len(label) or not len(data):
        raise ValueError(f"There are {len(data)} records with {len(label)} labels: each record has a label.")
    return Records(data, label, batch_size)
