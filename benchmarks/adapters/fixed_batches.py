"""Epochs of a shuffled torch loader: a step of a linear layer, and a charge with each first batch."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import Run, gaussian

RECORDS, BATCH, NOISE = 1_000, 10, 400.0
RELATION = "replace_one"


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(RECORDS, 64)), BATCH, shuffle=True)
    weights = torch.zeros(64)
    while True:
        for (features,) in loader if run is None else run.track_epoch(loader, gaussian(NOISE)):
            clipped = features / features.norm(dim=1, keepdim=True).clamp(min=1.0)
            weights -= 0.1 * (clipped.sum(dim=0) + NOISE * torch.randn(64)) / BATCH
            yield
