"""A training with Opacus."""

from contextlib import suppress
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.opacus import attach
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, BATCH, NOISE = 64, 16, 20.0


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    model = nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    # Opacus calls it after the noise: here the parameters have moved.
    sgd.register_step_post_hook(lambda *_: folder.released(poisson_sampled(BATCH / RECORDS, gaussian(NOISE))))
    engine = PrivacyEngine()
    attach(engine, run, public_size=RECORDS)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=sgd,
        data_loader=DataLoader(TensorDataset(torch.randn(RECORDS, 4)), batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
    )
    with suppress(BudgetExceededError), run:
        while True:
            for (features,) in loader:
                if (run.step or 0) >= asked["steps"]:
                    return
                optimizer.zero_grad()
                model(features).sum().backward()
                optimizer.step()
                if run.next_step % CHECKPOINT_STEPS == 0:
                    folder.save(run)


if __name__ == "__main__":
    run_trainer(train)
