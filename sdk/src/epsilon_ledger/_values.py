"""What the ledger tells, as frozen values; members that a newer ledger adds are left out."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from epsilon_ledger._events import Event, EventCount

NeighboringRelation: TypeAlias = Literal["add_or_remove_one", "replace_one", "replace_special"]
PrivacyFilter: TypeAlias = Literal["adaptive", "declared"]


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


@dataclass(frozen=True, slots=True)
class RunState:
    """A training run as the ledger last described it."""

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


@dataclass(frozen=True, slots=True)
class Admission:
    """Permission for `count` steps from `first_step`: charged, unless `dry_run`.

    `epsilon` is what has been spent after these steps, at `delta`, against `epsilon_limit`.
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


@dataclass(frozen=True, slots=True)
class HistoryPoint:
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
    at: datetime
    events_truncated: bool | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A page of a run's decisions, thinned out; `decisions` counts them all, `next_cursor` leads to later ones."""

    run: str
    points: tuple[HistoryPoint, ...]
    decisions: int
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class EpsilonEstimate:
    """What events cost together; `epsilon` is `math.inf` where no order of the grid is finite."""

    epsilon: float
    delta: float
    optimal_order: float | None
    warnings: tuple[str, ...]
