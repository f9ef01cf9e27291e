"""Small trainings with the real frameworks, charged to a run in memory or to a real server."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.sdk.conftest import admin, client, clock, fake_run, ledger, run, trainer, whole_ledger, wire
from tests.sdk.fake_runs import BATCH, N

__all__ = ["admin", "client", "clock", "fake_run", "ledger", "run", "trainer", "whole_ledger", "wire"]

# Read when MLflow is imported: tests tell nobody that they ran.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Read when JAX and Keras are imported.
os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}

# One core is what a test gets, and for models this small threads only wait for each other.
torch.set_num_threads(1)

# torch says so of every model whose first layer has hooks and whose data needs no gradients: of all that Opacus trains.
HOOKS_WARN = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")
# Opacus tries noise, from far too much to far too little, until it meets the target.
SEARCH_WARNS = pytest.mark.filterwarnings("ignore:Optimal order is the:UserWarning")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def small_loader(*, batch_size: int = BATCH, shuffle: bool = False, workers: int = 0) -> DataLoader[Any]:
    x = torch.randn(N, 4)
    return DataLoader(TensorDataset(x, (x.sum(dim=1) > 0).long()), batch_size, shuffle=shuffle, num_workers=workers)


@pytest.fixture
def engine() -> PrivacyEngine:
    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        return PrivacyEngine(accountant="rdp")


@dataclass
class Training:
    """What `make_private` made, and the loop that every Opacus script has."""

    model: nn.Module
    optimizer: DPOptimizer
    loader: DataLoader[Any]
    criterion: Any = field(default_factory=nn.CrossEntropyLoss)
    before: list[torch.Tensor] = field(default_factory=list)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        x, y = batch
        self.optimizer.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.optimizer.step()

    def epoch(self, loader: DataLoader[Any] | None = None) -> int:
        steps = 0
        for batch in loader or self.loader:
            # What a step that is refused must leave as it is.
            self.before = self.parameters()
            self.step(batch)
            steps += 1
        return steps

    def is_unchanged(self) -> bool:
        """Whether the parameters are, bit by bit, what they were before the last step of an epoch."""
        return all(map(torch.equal, self.before, self.parameters()))

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def make_private(engine: PrivacyEngine, loader: DataLoader[Any] | None = None, **terms: object) -> Training:
    arguments: dict[str, Any] = {"noise_multiplier": 1.0} | terms
    return _made_private(engine.make_private, loader, arguments)


def make_private_with_epsilon(
    engine: PrivacyEngine, loader: DataLoader[Any] | None = None, **terms: object
) -> Training:
    arguments: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 2} | terms
    return _made_private(engine.make_private_with_epsilon, loader, arguments)


def _made_private(make: Callable[..., Any], loader: DataLoader[Any] | None, arguments: dict[str, Any]) -> Training:
    model = small_model()
    made = make(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        data_loader=loader or small_loader(),
        **{"max_grad_norm": 1.0} | arguments,
    )
    if len(made) == 4:
        module, optimizer, criterion, private = made
        return Training(module, optimizer, private, criterion)
    return Training(*made)
