"""What the ledger tells, as frozen values; members that a newer ledger adds are left out."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from epsilon_ledger._wire.events import Event, EventCount

NeighboringRelation: TypeAlias = Literal["add_or_remove_one", "replace_one", "replace_special"]
PrivacyFilter: TypeAlias = Literal["adaptive", "declared"]
ReplacementAssumption: TypeAlias = Literal["stay_in_their_parts", "removal_is_bounded"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that an account may ever spend.

    Args:
        epsilon: above 0.
        delta: in [1e-30, 0.5), below 1 / size of the population.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Parts:
    """That the budgets beneath an account hold disjoint parts of its population: what counts is who lost most.

    Args:
        attestation: why they are disjoint, and chosen independently of the data.
        max_partitions_per_unit: in how many of them one privacy unit may lie.
        replacement_assumption: what becomes of a unit that is replaced; needed under replace_one, and said there only.
    """

    attestation: str
    max_partitions_per_unit: int = 1
    replacement_assumption: ReplacementAssumption | None = None


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What the people of a population have lost in all, whatever windows and blocks there were."""

    population: str
    population_path: str
    epsilon: float
    delta: float
    epsilon_limit: float


@dataclass(frozen=True, slots=True)
class Block:
    """The data that came in some time, from the first moment of it to the first behind it."""

    data_from: datetime
    data_to: datetime
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Population:
    """The people whose data is used, root of a budget tree; `epsilon` was spent, at the limit's delta."""

    id: str
    name: str
    path: str
    privacy_unit: str
    neighboring_relation: str
    size: int | None
    limit: Limit
    privacy_filter: str
    planned: tuple[EventCount, ...]
    epsilon: float
    epsilon_declared: float
    weights_frozen: bool
    created_at: datetime
    updated_at: datetime
    composition: str | None = None
    max_partitions_per_unit: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """A node under a population; `epsilon` is what was spent, at the limit's delta."""

    id: str
    name: str
    path: str
    parent: str
    population: str
    limit: Limit
    privacy_filter: str
    planned: tuple[EventCount, ...]
    epsilon: float
    epsilon_declared: float
    weights_frozen: bool
    created_at: datetime
    updated_at: datetime
    composition: str | None = None
    max_partitions_per_unit: int | None = None
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    block: Block | None = None
    lifetime: Lifetime | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """A training run as the ledger last described it; `reservation` is the plan that its steps are taken out of."""

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
    epsilon_declared: float | None
    delta: float
    epsilon_limit: float
    privacy_filter: str
    steps_remaining: int | None
    binding_account: str | None
    binding_account_path: str | None
    privacy_unit: str
    neighboring_relation: str
    created_at: datetime
    updated_at: datetime
    reservation: str | None = None
    budgets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Permission for `count` steps from `first_step`: charged, unless `dry_run`.

    `epsilon` is what has been spent after these steps, at `delta`, against `epsilon_limit`; if they were granted ahead,
    after all steps of their grant. `requested_count` is larger than `count` where the request was truncated, and
    `overdrawn` says of steps that were reported that they went over a limit.
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


@dataclass(frozen=True, slots=True)
class PlannedSteps:
    """How often an event is planned, and how many of these steps were authorised, or withdrawn by a lowered limit."""

    event: Event
    count: int
    authorized: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """A plan that is set aside, or how it ended; what is left of it is forfeited at `expires_at`."""

    id: str
    run: str
    attempt: int
    status: str
    plan: tuple[PlannedSteps, ...]
    steps_planned: int
    steps_authorized: int
    steps_withdrawn: int
    steps_executed: int | None
    lease_seconds: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """What the ledger says of a plan that it has just set aside.

    `epsilon` is the run's so far, `epsilon_planned` that once the plan is executed; `steps_remaining` fit besides.
    """

    id: str
    plan: tuple[PlannedSteps, ...]
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
    """A sweep, and what was spent on all of it.

    `account` is the budget beneath which its runs are registered, or the one run that pays for all trials: that is
    `run` then, and `event` what it pays for. `trials` is how many to run, told with the charge: by
    `declare_experiment`, or `charge_experiment` after an approval.
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
    """One decision on a run, admitted or refused.

    `events_truncated` says whether `events` are only the first of many, as in a page of many points; a ledger of an
    older version always gives all of them and leaves it at None.
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
class History:
    """A page of a run's decisions, thinned out; `decisions` counts them all, `next_cursor` leads to later ones."""

    run: str
    points: tuple[RunHistoryPoint, ...]
    decisions: int
    next_cursor: str | None
