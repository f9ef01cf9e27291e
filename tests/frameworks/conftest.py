"""Small trainings with the real frameworks, charged to a run in memory or to the real service."""

import os
import random
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger._opacus import generators
from tests.sdk.conftest import admin, trainer, wire
from tests.sdk.fake_ledger import BATCH, FakeRun, N

__all__ = ["admin", "trainer", "wire"]

# `test_flower` runs them where Flower can be imported.
collect_ignore_glob = ["test_flower_*.py"]

# Read when JAX and Keras are imported.
os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}

# One core is what a test gets, and for models this small threads only wait for each other.
torch.set_num_threads(1)

IGNORED: list[tuple[str, type[Warning]]] = [
    # torch says so of every model whose first layer has hooks and whose data needs no gradients: of all of Opacus.
    ("Full backward hook is firing when gradients are computed", UserWarning),
    # Lightning walks trees as torch did before 2.13, and has advice for trainings that are not as small as these.
    (".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning),
    ("The 'train_dataloader' does not have many workers", UserWarning),
    # Transformers itself looks at a property that it has renamed, and jax-privacy 2.0 calls what the newest optax does.
    ("`is_gradient_checkpointing` is deprecated", FutureWarning),
    ("optax.global_norm is deprecated", DeprecationWarning),
    # Keras' variables know numpy 1.
    ("__array__ implementation doesn't accept a copy keyword", DeprecationWarning),
]

Q = BATCH / N  # a power of 2, which random floats meet exactly
STEP = poisson_sampled(Q, gaussian(1.0))
ADAPTIVE: dict[str, Any] = {"clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2}
ADAPTIVE |= {"max_clipbound": 1e6, "min_clipbound": 1e-6, "unclipped_num_std": 2.0}


@pytest.fixture(autouse=True)
def _seeded_and_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    # The entropy of Opacus' noise and samples: the same in each run of a test, and never twice within one.
    monkeypatch.setattr(generators, "token_bytes", random.Random(7).randbytes)  # noqa: S311 - to do the same again
    for message, category in IGNORED:
        warnings.filterwarnings("ignore", message, category)


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


def small_loader(
    *, records: int = N, batch_size: int = BATCH, shuffle: bool = False, workers: int = 0
) -> DataLoader[Any]:
    x = torch.randn(records, 4)
    return DataLoader(TensorDataset(x, (x.sum(dim=1) > 0).long()), batch_size, shuffle=shuffle, num_workers=workers)


def new_engine(accountant: str = "rdp") -> PrivacyEngine:
    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        return PrivacyEngine(accountant=accountant)


@pytest.fixture
def engine() -> PrivacyEngine:
    return new_engine()


@dataclass
class Training:
    """What `make_private` made, and the loop that every Opacus script has."""

    model: nn.Module
    optimizer: DPOptimizer
    loader: DataLoader[Any]
    criterion: Any = field(default_factory=nn.CrossEntropyLoss)
    before: list[torch.Tensor] = field(default_factory=list)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        # What a step that is refused must leave as it is.
        self.before = self.parameters()
        x, y = batch
        self.optimizer.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.optimizer.step()

    def epoch(self, loader: DataLoader[Any] | None = None) -> int:
        steps = 0
        for batch in loader or self.loader:
            self.step(batch)
            steps += 1
        return steps

    def is_unchanged(self) -> bool:
        """Whether the parameters are, bit by bit, what they were before the last step."""
        return all(map(torch.equal, self.before, self.parameters()))

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def make_private(
    engine: PrivacyEngine, loader: DataLoader[Any] | None = None, make: str = "make_private", **terms: object
) -> Training:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given: dict[str, Any] = {"noise_multiplier": 1.0} if make == "make_private" else {}
    given |= {"max_grad_norm": 1.0, "data_loader": loader or small_loader()} | terms
    made = getattr(engine, make)(module=model, optimizer=sgd, **given)
    return Training(made[0], made[1], made[-1], *made[2:-1])
