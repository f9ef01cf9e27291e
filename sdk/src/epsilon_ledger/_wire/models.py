"""Values from the ledger; members of newer versions are ignored."""

from dataclasses import dataclass, field
from datetime import date, datetime
from math import inf
from typing import Literal, TypeAlias, cast

from epsilon_ledger._wire.decoding import ABSENT
from epsilon_ledger._wire.events import Event, PlannedEventCount
from epsilon_ledger._wire.metadata import AccountMetadata
from epsilon_ledger._wire.origins import ModelOrigin, RunOrigin

NeighboringRelation: TypeAlias = Literal["add_or_remove_one", "replace_one", "replace_special"]
CalendarPeriod: TypeAlias = Literal["week", "month", "quarter"]
ReplacementAssumption: TypeAlias = Literal["stay_in_their_parts", "removal_is_bounded"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Privacy limit of an account, in one unit: `Limit(3.0, 1e-5)`, `Limit(1.0, 0)`, `Limit(rho=0.5)`, `Limit(mu=1.0)`.

    Args:
        epsilon: above 0; infinite if the limit is in another unit. It needs `delta`.
        delta: in [1e-30, 0.5), below 1 / size of the population; 0 for pure differential privacy. With `rho` it is the
            most that mechanisms' own deltas may sum to, 0 by default.
        rho: of zero-concentrated differential privacy; infinite if the limit is in another unit.
        mu: of Gaussian differential privacy; infinite if the limit is in another unit.

    Raises:
        TypeError: it has an epsilon and no delta.
    """

    epsilon: float = field(default=inf, metadata={ABSENT: inf})
    delta: float = field(default=cast("float", None), metadata={ABSENT: 0.0})
    rho: float = field(default=inf, metadata={ABSENT: inf})
    mu: float = field(default=inf, metadata={ABSENT: inf})

    def __post_init__(self) -> None:
        """Require a delta for epsilon."""
        if cast("float | None", self.delta) is None:
            if self.epsilon < inf:
                raise TypeError(
                    "Limit needs delta with epsilon, as in Limit(3.0, 1e-5); 0 is pure differential privacy."
                )
            object.__setattr__(self, "delta", 0.0)

    def __str__(self) -> str:
        """Write the unit with its value, and delta if it has one."""
        named = {"epsilon": self.epsilon, "rho": self.rho, "mu": self.mu}
        value = ", ".join(f"{name} {each:g}" for name, each in named.items() if each < inf)
        return f"{value} at delta {self.delta:g}" if self.delta or self.epsilon < inf else value


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
    """Total privacy loss of a population, over all windows and blocks; `used` is the share of its `limit`."""

    population: str
    population_path: str
    epsilon: float
    delta: float
    limit: Limit
    used: float


@dataclass(frozen=True, slots=True)
class AvailableShare:
    """What can still be taken: the least share that the limits along a path leave, and of whose capacity it is."""

    share: float
    account: str
    account_path: str


@dataclass(frozen=True, slots=True)
class DataBlock:
    """Data of a time range, from `data_from` to before `data_to`."""

    data_from: datetime
    data_to: datetime
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Attestation:
    """The attestation that an account's budgets are disjoint."""

    text: str
    replacement_assumption: str | None
    attested_by: str
    attested_at: datetime


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first deviation of its kind and direction from what a run declared."""

    kind: str
    declared: object
    observed: object
    first_step: int


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
        steps_remaining: neither used nor reserved.
        items: the planned events, in order.
    """

    state: str
    share: float
    delta: float
    steps: int
    steps_used: int
    steps_reserved: int
    steps_remaining: int
    items: tuple[PlanItem, ...]


@dataclass(frozen=True, slots=True)
class _LimitedAccount(AccountMetadata):
    """What populations and budgets have in common.

    `epsilon` is of all that was charged, at `delta`: as the tightest accountant for releases that were fixed in advance
    computes it. `used` is the share of the capacity that is spent, above 1 if the limit is exceeded. `plan` is what the
    limit allows of `planned`.
    """

    id: str
    name: str
    path: str
    limit: Limit
    planned: tuple[PlannedEventCount, ...]
    epsilon: float
    delta: float
    used: float
    weights_frozen: bool
    created_at: datetime
    updated_at: datetime
    plan: Plan | None = None
    composition: str | None = None
    max_partitions_per_unit: int | None = None
    lifetime: LifetimeSpend | None = None
    used_including_reserved: float | None = None
    available: AvailableShare | None = None
    own_delta: float | None = None
    warnings: tuple[str, ...] | None = None
    attestation: Attestation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Population(_LimitedAccount):
    """A population, the root of a budget tree."""

    privacy_unit: str
    neighboring_relation: str
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(_LimitedAccount):
    """A budget under a population."""

    parent: str
    population: str
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    block: DataBlock | None = None


@dataclass(frozen=True, slots=True)
class CreatedBlocks:
    """Budgets of consecutive data blocks, the earliest first."""

    items: tuple[Budget, ...]


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """The template of data blocks that open by themselves, one for each period from the one with `start`.

    Args:
        period: "week", "month" or "quarter", in UTC; weeks are those of ISO 8601.
        start: a day of the first period.
        limit: of each block.
        prefix: begins their names, which end with the period: 2026-W01, 2026-01 or 2026-Q1.
    """

    period: str
    start: date
    limit: Limit
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class AccountBlockSchedule:
    """The block schedule of an account; `schedule` None: it has none.

    `next_opens_at` is when the next period begins. `failure` is why a block is missing; None: none is missing. `etag`
    is for `replace_block_schedule` and `remove_block_schedule`.
    """

    account: str
    path: str
    schedule: BlockSchedule | None
    next_opens_at: datetime | None
    failure: str | None
    etag: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RunState(AccountMetadata):
    """State of a training run; its steps are taken from `reservation`, if any.

    `epsilon` is of all that it was charged, at `delta`, as the tightest accountant for releases that were fixed in
    advance computes it. `used` is the share of the capacity of the account that leaves the fewest steps. `plan` is that
    of the run's own limit, as of the last request for the state. `url` is its page, `number` tells apart the runs at
    one path, from 1 in the order of their creation. `end_reason` is "finished", "budget_exhausted", "aborted", "lost",
    or "not_granted": its reservation has waited in vain. A run whose `status` is "waiting" waits for its reservation,
    `waiting_reservation`. `population_size` is what the population declares, and public. `starts_from` is what its
    training starts from, as it was declared; None: it was not.
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
    delta: float
    used: float
    steps_remaining: int | None
    binding_account: str | None
    binding_account_path: str | None
    privacy_unit: str
    neighboring_relation: str
    created_at: datetime
    updated_at: datetime
    reservation: str | None = None
    waiting_reservation: str | None = None
    budgets: tuple[str, ...] | None = None
    plan: Plan | None = None
    path: str | None = None
    weights_frozen: bool | None = None
    number: int | None = None
    limit: Limit | None = None
    planned: tuple[PlannedEventCount, ...] | None = None
    own_delta: float | None = None
    warnings: tuple[str, ...] | None = None
    declared_steps_per_hour: float | None = None
    deviations: tuple[Deviation, ...] | None = None
    url: str | None = None
    expected_steps: int | None = None
    ended_at: datetime | None = None
    end_reason: str | None = None
    population_size: int | None = None
    starts_from: tuple[RunOrigin | ModelOrigin, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """A parameter of a step that differs from the most similar planned event; `type` if the kinds differ."""

    parameter: str
    planned: float | str | None
    sent: float | str | None


@dataclass(frozen=True, slots=True)
class EndedPlan:
    """A plan that steps have ended since it does not cover them, its steps that are given up, and the cause.

    Without `differences` the steps are planned, but more than are left.
    """

    account: str
    account_path: str
    steps_given_up: int
    differences: tuple[PlanDifference, ...]

    def __str__(self) -> str:
        """Describe what ended the plan."""
        causes = [f"{each.parameter} is {each.sent}, planned {each.planned}" for each in self.differences]
        cause = "; ".join(causes) or "more steps than it had left"
        return f"These steps ended the plan of {self.account_path}, which gives up {self.steps_given_up:,}: {cause}."


# Not frozen, which would make its creation the longest part of an authorization from a grant.
@dataclass(slots=True)
class StepAuthorization:
    """Permission for `count` steps from `first_step`: charged, unless `dry_run`.

    `epsilon` is the run's after these steps, or after all steps of their grant, at `delta`; at most 0.5 % above what is
    read, or more after more than six different events. `used` is the share of the capacity of `binding_account`, which
    leaves the fewest steps: `steps_remaining`. `requested_count` exceeds `count` if the request was truncated.
    `overdrawn` is set if reported steps exceeded a limit. `ended_plans` are the accounts' plans that these steps end.
    `warnings` name accounts that lose steps of the run, because their filters were fixed for others.
    """

    decision: str
    run: str
    first_step: int
    count: int
    next_step: int
    epsilon: float
    delta: float
    used: float
    steps_remaining: int | None
    binding_account: str | None
    binding_account_path: str | None
    dry_run: bool
    reservation: str | None = None
    requested_count: int | None = None
    overdrawn: bool | None = None
    ended_plans: tuple[EndedPlan, ...] | None = None
    warnings: tuple[str, ...] | None = None
