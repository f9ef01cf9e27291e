"""Opacus: a linear layer, one DP-SGD step of a Poisson sample."""

from collections.abc import Iterator

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import Run
from epsilon_ledger.opacus import attach

RECORDS, BATCH, NOISE = 1_000, 10, 10.0


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    torch.set_num_threads(1)
    model = nn.Linear(64, 10)
    engine = PrivacyEngine()
    if run is not None:
        attach(engine, run, public_size=RECORDS)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.randn(RECORDS, 64)), batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
    )
    while True:
        for (features,) in loader:
            optimizer.zero_grad()
            model(features).sum().backward()
            optimizer.step()
            yield
