"""Small trainings with the real frameworks, charged to a run in memory or to a real server."""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilon_ledger import BudgetExceededError, Event, LedgerClient, Limit, Problem, Run, gaussian
from tests.sdk.fake_ledger import REFUSAL

# Read when MLflow is imported: tests tell nobody that they ran.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Read when JAX and Keras are imported.
os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}

# One core is what a test gets, and for models this small threads only wait for each other.
torch.set_num_threads(1)

N = 64
BATCH = 8
STEPS_PER_EPOCH = N // BATCH
LEAST_NOISE = 1.3

# torch says so of every model whose first layer has hooks and whose data needs no gradients: of all that Opacus trains.
HOOKS_WARN = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")
# Opacus tries noise, from far too much to far too little, until it meets the target.
SEARCH_WARNS = pytest.mark.filterwarnings("ignore:Optimal order is the:UserWarning")


OWN = gaussian(9.0)
"""Event of a CountingRun that is asked without one."""


@dataclass
class FakeState:
    """As much of a RunState as the adapters read."""

    event: Event | None = None
    delta: float = 1e-5
    epsilon: float = 0.0
    epsilon_rdp: float | None = None
    next_step: int = 0
    neighboring_relation: str = "add_or_remove_one"
    population_size: int | None = N
    attempt: int = 1
    id: str = "run_1"
    plan: None = None


@dataclass
class FakeRun:
    """A run that admits `capacity` steps, previews an epoch by its noise, and remembers what it was asked."""

    capacity: int = 1_000
    id: str = "run_1"
    asked: list[Event] = field(default_factory=list)
    state: FakeState = field(default_factory=FakeState)
    expected_steps: int | None = None
    refusal: BudgetExceededError | None = None

    @property
    def next_step(self) -> int:
        return len(self.asked)

    @property
    def step(self) -> int:
        return len(self.asked)

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        assert (count, event is None) == (1, False)
        if len(self.asked) == self.capacity:
            raise BudgetExceededError(Problem(403, "budget_exceeded", "", "", REFUSAL))
        assert event is not None
        self.asked.append(event)
        self.state.next_step += 1
        self.state.epsilon += 0.125

    def preview(self, count: int = 1, *, event: Event | None = None) -> FakeState:
        assert (count, event is None) == (STEPS_PER_EPOCH, False)
        if cast("Any", event)["event"]["noise_multiplier"] < LEAST_NOISE:
            raise BudgetExceededError(Problem(403, "budget_exceeded", "", "", REFUSAL))
        return FakeState(epsilon=1.0)

    @property
    def epsilon(self) -> float:
        return self.state.epsilon

    def refresh(self) -> FakeState:
        return self.state

    @property
    def as_run(self) -> Run:
        return cast("Run", self)


@dataclass
class CountingRun(FakeRun):
    """A FakeRun that is asked for several steps at once, or for its own event."""

    counts: list[int] = field(default_factory=list)

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        if len(self.asked) + count > self.capacity:
            raise BudgetExceededError(Problem(403, "budget_exceeded", "", "", REFUSAL))
        self.counts.append(count)
        self.asked.extend([event or OWN] * count)


@pytest.fixture
def fake_run() -> FakeRun:
    return FakeRun()


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


def open_budget(admin: LedgerClient, epsilon: float) -> str:
    population = admin.create_population(
        f"digits-{uuid.uuid4().hex[:8]}",
        privacy_unit="record",
        neighboring_relation="add_or_remove_one",
        size=N,
        limit=Limit(100.0, 1e-5),
    )
    return admin.create_budget("team", parent=population.path, limit=Limit(epsilon, 1e-5)).path
