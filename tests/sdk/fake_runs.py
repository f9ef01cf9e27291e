"""Runs in memory, as much of them as the adapters read, and a budget of the service."""

import uuid
from dataclasses import dataclass, field
from typing import Any, cast

from epsilon_ledger import BudgetExceededError, Event, LedgerClient, Limit, Problem, Run, gaussian
from tests.sdk.fake_ledger import REFUSAL

N, BATCH = 64, 8
STEPS_PER_EPOCH = N // BATCH
LEAST_NOISE = 1.3
OWN = gaussian(9.0)
"""Event of a CountingRun that is asked without one."""


def refusal() -> BudgetExceededError:
    return BudgetExceededError(Problem(403, "budget_exceeded", "", "", REFUSAL))


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

    step = next_step

    def authorize(self, count: int = 1, *, event: Event | None = None) -> None:
        assert (count, event is None) == (1, False)
        if len(self.asked) == self.capacity:
            raise refusal()
        self.asked.append(cast("Event", event))
        self.state.next_step += 1
        self.state.epsilon += 0.125

    def preview(self, count: int = 1, *, event: Event | None = None) -> FakeState:
        assert (count, event is None) == (STEPS_PER_EPOCH, False)
        if cast("Any", event)["event"]["noise_multiplier"] < LEAST_NOISE:
            raise refusal()
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
            raise refusal()
        self.counts.append(count)
        self.asked.extend([event or OWN] * count)


def open_budget(admin: LedgerClient, epsilon: float, relation: Any = "add_or_remove_one", **terms: Any) -> str:  # noqa: ANN401 - passed on
    """A budget of its own: its path."""
    name, limit = f"digits-{uuid.uuid4().hex[:8]}", Limit(100.0, 1e-5)
    admin.create_population(name, privacy_unit="record", neighboring_relation=relation, size=N, limit=limit)
    return admin.create_budget("team", parent=name, limit=Limit(epsilon, 1e-5), **terms).path
