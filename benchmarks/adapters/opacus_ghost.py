"""Opacus with ghost clipping: a linear layer, one step of a Poisson sample of about 10 records."""

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.adapters.opacus_cnn import train
from epsilon_ledger import Run


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    return train(run, nn.Linear(64, 10), torch.randn(10, 64), "ghost")
