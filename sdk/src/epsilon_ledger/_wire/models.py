"""Values from the ledger, frozen; members of newer versions are ignored."""

import typing
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from epsilon_ledger._wire.events import Event, EventCount, PlannedEventCount
from epsilon_ledger._wire.frames import data_frame

if typing.TYPE_CHECKING:
    import pandas as pd

NeighboringRelation: TypeAlias = Literal["add_or_remove_one", "replace_one", "replace_special"]
ReplacementAssumption: TypeAlias = Literal["stay_in_their_parts", "removal_is_bounded"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Privacy limit of an account.

    Args:
        epsilon: above 0.
        delta: in [1e-30, 0.5), below 1 / size of the population.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class ParallelComposition:
    """Declaration that an account's budgets are disjoint, so that the largest loss counts.

    Args:
        attestation: why they are disjoint, and chosen independently of the data.
        max_partitions_per_unit: maximum number of them that contain one privacy unit.
        replacement_assumption: assumption about a replaced unit; required under replace_one, and only there.
    """

    attestation: str
    max_partitions_per_unit: int = 1
    replacement_assumption: ReplacementAssumption | None = None


@dataclass(frozen=True, slots=True)
class LifetimeSpend:
    """Total privacy loss of a population, over all windows and blocks."""

    population: str
    population_path: str
    epsilon: float
    delta: float
    epsilon_limit: float


@dataclass(frozen=True, slots=True)
class DataBlock:
    """Data of a time range, from `data_from` to before `data_to`."""

    data_from: datetime
    data_to: datetime
    label: str | None = None


@dataclass(frozen=True, slots=True)
class PlanItem:
    """Planned repetitions of one event.

    Args:
        event: the planned event.
        count: as planned; None: as many as the limit allows.
        steps: number of repetitions that the limit allows.
        steps_used: of these.
    """

    event: Event
    count: int | None
    steps: int
    steps_used: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a limit allows of an account's planned events, which charges may use in any order.

    Args:
        state: `active`: it admits what it covers. `exhausted`: it is used up. `ended`: an event that it does not cover
            was charged or is reserved, so that the Rényi orders alone decide.
        share: of the limit's delta, for the plan.
        delta: part of the limit's delta, for the plan.
        steps: number of planned steps that the limit allows, from the first.
        steps_used: by charges: the fewest of these steps, from the first, that hold all of them.
        steps_reserved: by active reservations.
        steps_left: neither used nor reserved.
        items: the planned events, in order.
    """

    state: str
    share: float
    delta: float
    steps: int
    steps_used: int
    steps_reserved: int
    steps_left: int
    items: tuple[PlanItem, ...]


@dataclass(frozen=True, slots=True)
class Population:
    """A population, the root of a budget tree.

    `epsilon` is spent, at the limit's delta. `epsilon_rdp` is what an in-process RDP accountant would print: a bound
    only if all events were fixed in advance. `plan` is what the limit allows of `planned`.
    """

    id: str
    name: str
    path: str
    privacy_unit: str
    neighboring_relation: str
    size: int | None
    limit: Limit
    planned: tuple[PlannedEventCount, ...]
    epsilon: float
    epsilon_rdp: float
    weights_frozen: bool
    created_at: datetime
    updated_at: datetime
    plan: Plan | None = None
    composition: str | None = None
    max_partitions_per_unit: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget under a population; `epsilon`, `epsilon_rdp` and `plan` as of a population."""

    id: str
    name: str
    path: str
    parent: str
    population: str
    limit: Limit
    planned: tuple[PlannedEventCount, ...]
    epsilon: float
    epsilon_rdp: float
    weights_frozen: bool
    created_at: datetime
    updated_at: datetime
    plan: Plan | None = None
    composition: str | None = None
    max_partitions_per_unit: int | None = None
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    block: DataBlock | None = None
    lifetime: LifetimeSpend | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a training run; its steps are taken from `reservation`, if any.

    `plan` is that of the run's own limit; it and `epsilon_rdp` are as of the last request for the state.
    """

    id: str
    name: str
    budget: str
    budget_path: str
    population: str
    status: str
    attempt: int
    next_step: int
    event: Event | None
    epsilon: float
    epsilon_rdp: float | None
    delta: float
    epsilon_limit: float
    steps_remaining: int | None
    binding_account: str | None
    binding_account_path: str | None
    privacy_unit: str
    neighboring_relation: str
    created_at: datetime
    updated_at: datetime
    reservation: str | None = None
    budgets: tuple[str, ...] | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class EndedPlan:
    """A plan that steps have ended since it does not cover them, and its steps that are given up."""

    account: str
    account_path: str
    steps_given_up: int


@dataclass(frozen=True, slots=True)
class StepAuthorization:
    """Permission for `count` steps from `first_step`: charged, unless `dry_run`.

    `epsilon` is spent after these steps, or after all steps of their grant, at `delta`, against `epsilon_limit`.
    `requested_count` exceeds `count` if the request was truncated. `overdrawn` is set if reported steps exceeded a
    limit. `ended_plans` are the accounts' plans that these steps end.
    """

    decision: str
    run: str
    first_step: int
    count: int
    next_step: int
    epsilon: float
    delta: float
    epsilon_limit: float
    steps_remaining: int | None
    binding_account: str | None
    binding_account_path: str | None
    dry_run: bool
    reservation: str | None = None
    requested_count: int | None = None
    overdrawn: bool | None = None
    ended_plans: tuple[EndedPlan, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """An event's planned count, and the steps authorized or removed by a lowered limit."""

    event: Event
    count: int
    authorized: int
    revoked: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved plan or its end; an active one's remainder is forfeited at `expires_at`."""

    id: str
    run: str
    attempt: int
    status: str
    plan: tuple[PlannedEvent, ...]
    steps_planned: int
    steps_authorized: int
    steps_revoked: int
    steps_executed: int | None
    lease_seconds: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CreatedReservation:
    """Response to a new reservation.

    `epsilon` is the run's so far, `epsilon_planned` after the plan; `steps_remaining` fit in addition.
    """

    id: str
    plan: tuple[PlannedEvent, ...]
    steps_planned: int
    lease_seconds: int
    expires_at: datetime
    next_step: int
    epsilon: float
    epsilon_planned: float
    delta: float
    epsilon_limit: float
    steps_remaining: int
    binding_account: str
    binding_account_path: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A sweep and its total cost.

    `account` is the budget of its runs, or `run`, the run that pays for all trials with `event`. `trials` is the number
    to run, returned with the charge only: by `create_experiment`, or by `charge_experiment` after an approval.
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
    epsilon_limit: float
    created_by: str
    created_at: datetime
    trials: int | None = None


@dataclass(frozen=True, slots=True)
class RunHistoryPoint:
    """One decision on a run.

    `events_truncated`: `events` are only the first of many, as in a page of many points.
    """

    position: int
    decision: str
    first_step: int
    count: int
    next_step: int
    epsilon: float
    delta: float
    events: tuple[EventCount, ...]
    accounts: tuple[str, ...]
    created_at: datetime
    events_truncated: bool | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A page of a run's decisions, thinned out; `decisions` is their total, `next_cursor` the next page."""

    run: str
    points: tuple[RunHistoryPoint, ...]
    decisions: int
    next_cursor: str | None

    def to_pandas(self) -> "pd.DataFrame":
        """Build a data frame of the points.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame(self.points, RunHistoryPoint)
