"""Experiments: sweeps of runs, and how they are charged."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.accounting.events import (
    Composed,
    DpEvent,
    RepeatAndSelect,
    SelfComposed,
)
from app.ledger.query_parameters import parameter
from app.ledger.step_events import StepEvent


class ChargingMode(StrEnum):
    """How a sweep is charged."""

    EACH_RUN = "each_run"
    """Each run individually: all may be inspected and released, and selection is free."""

    REPEAT_AND_SELECT = "repeat_and_select"
    """Once, in advance: the number of runs is random and secret, and only the best may be inspected or released."""


def sweep_event(trial: Sequence[StepEvent], mean: float, shape: float | None) -> RepeatAndSelect:
    """Build the event of a whole sweep, to be charged once.

    `trial` has all steps of one trial, for all hyperparameters; a `shape` of None is Poisson.
    """
    parts: list[DpEvent] = [step.event if step.count == 1 else SelfComposed(step.event, step.count) for step in trial]
    return RepeatAndSelect(parts[0] if len(parts) == 1 else Composed(tuple(parts)), mean, shape)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A sweep.

    Its account is the budget of its runs, or the one run charged for all trials.
    """

    id: str
    account_id: str
    charging_mode: ChargingMode
    created_by: str
    created_at: datetime

    def facts(self) -> dict[str, object]:
        """Get the fields recorded in the audit chain."""
        return {"account": self.account_id, "charging_mode": str(self.charging_mode)}


@dataclass(frozen=True, slots=True)
class ExperimentFilter:
    """A filter of experiments; None: any."""

    budget: str | None = parameter(
        "Only experiments under this population or budget (id or path).",
        label="Population or budget",
        hint="mimic/icu-team",
        is_reference=True,
    )
