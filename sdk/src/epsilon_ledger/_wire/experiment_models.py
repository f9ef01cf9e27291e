"""Experiments: sweeps of many trainings."""

from dataclasses import dataclass
from datetime import datetime

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class Experiment:
    """A sweep and its total cost.

    `account` is the budget of its runs, or `run`, the run that pays for all trials with `event`. `epsilon` is of all of
    them together, `used` the share of the fullest account that they are charged to. `trials` is the number to run,
    returned with the charge only: by `create_experiment`, or by `charge_experiment` after an approval.
    """

    id: str
    name: str
    path: str
    charging_mode: str
    account: str
    budget: str
    population: str
    run: str | None
    status: str | None
    event: Event | None
    runs: int
    epsilon: float
    delta: float
    used: float
    created_by: str
    created_at: datetime
    trials: int | None = None
