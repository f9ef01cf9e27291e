"""Opacus with ghost clipping: the training of `opacus_cnn`."""

from collections.abc import Iterator

import torch

from benchmarks.adapters.opacus_cnn import RECORDS, network, train
from epsilon_ledger import Run


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    return train(run, network(), torch.randn(RECORDS, 1, 28, 28), "ghost")
