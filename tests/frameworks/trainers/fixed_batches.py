"""Epochs of a shuffled torch loader, each charged once.

A charge pays for one release of each batch of an epoch. So its event is journaled with the first batch's release.
"""

from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, LedgerClient, gaussian
from tests.reliability.trainers import TrainingFolder, run_trainer

RECORDS, BATCH, NOISE = 24, 8, 120.0


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    loader = DataLoader(TensorDataset(torch.randn(RECORDS, 4)), BATCH, shuffle=True)
    weights = torch.zeros(4)
    with suppress(BudgetExceededError), run:
        while (run.step or 0) < asked["steps"]:
            journaled = False
            for (features,) in run.track_epoch(loader, gaussian(NOISE)):
                clipped = features / features.norm(dim=1, keepdim=True).clamp(min=1.0)
                weights -= 0.1 * (clipped.sum(dim=0) + NOISE * torch.randn(4)) / BATCH
                if not journaled:
                    folder.released(gaussian(NOISE))
                    journaled = True
            folder.save(run)


if __name__ == "__main__":
    run_trainer(train)
