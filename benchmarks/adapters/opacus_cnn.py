"""Opacus: its example's convolutional network for MNIST, one DP-SGD step of a Poisson sample of about 64 images."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import Run
from epsilon_ledger.opacus import attach

RECORDS, BATCH, NOISE = 66, 64, 10.0
"""Nearly all records are in each sample, so that steps are of nearly one size."""
EPOCH: Final = 100
"""Steps of an epoch."""


def steps(run: Run | None) -> Iterator[None]:
    """Train with flat clipping, and yield after each step."""
    return train(run, network(), torch.randn(RECORDS, 1, 28, 28), "hooks")


def train(run: Run | None, model: nn.Module, images: torch.Tensor, mode: str) -> Iterator[None]:
    """Train a model, and yield after each step.

    Args:
        run: to charge; None: train without the adapter.
        model: of ten classes.
        images: the records.
        mode: of the gradients: "hooks" or "ghost".
    """
    torch.set_num_threads(1)
    engine = PrivacyEngine()
    if run is not None:
        attach(engine, run, public_size=len(images))
    criterion: Any = nn.CrossEntropyLoss()
    model, optimizer, *others, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(images, torch.arange(len(images)) % 10), batch_size=1),
        criterion=criterion,
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    (criterion,) = others or (criterion,)
    optimizer.expected_batch_size = len(images) * BATCH / RECORDS
    sampler = loader.batch_sampler
    sampler.sample_rate, sampler.num_batches = BATCH / RECORDS, EPOCH
    while True:
        for features, labels in loader:
            optimizer.zero_grad()
            criterion(model(features), labels).backward()
            optimizer.step()
            yield


def network() -> nn.Module:
    """Make the network of Opacus' example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
