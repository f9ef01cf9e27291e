"""Response schemas of populations and budgets."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field, field_validator

from app.accounting.events import NeighboringRelation
from app.api.schemas.common import (
    AnsweredEvent,
    Composition,
    ExtendedNumber,
    Limit,
    Output,
)
from app.api.schemas.metadata import MetadataMembers, metadata_members
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata
from app.ledger.governance.steps_lost import StepsLost
from app.ledger.plan.plans import PlanState
from app.ledger.scheduling.availability import Available
from app.ledger.step_events import MAX_COUNT
from app.planning.assumptions import about_limit, about_loss
from app.service.accounts.lookup import AccountView


class Attestation(Output):
    """Attestation that the children are disjoint, with its author."""

    text: str
    replacement_assumption: str | None = None
    attested_by: str = Field(description="The key that created the account.")
    attested_at: datetime


class DataBlock(Output):
    """The data of a budget."""

    data_from: datetime
    data_to: datetime
    label: str | None = None


class LifetimeSpend(Output):
    """Total privacy loss of a population, over all windows and blocks."""

    population: str
    population_path: str
    epsilon: ExtendedNumber = Field(description="Of the population.")
    delta: float
    limit: Limit
    used: float = Field(description="Used share of the population's limit.")

    @classmethod
    def of(cls, view: AccountView) -> Self:
        """Convert from the domain."""
        population = view.population
        assert population.limit is not None, "a population has a limit"
        return cls(
            population=population.id,
            population_path=population.path,
            epsilon=view.lifetime,
            delta=population.limit.shown_delta,
            limit=population.limit,
            used=population.used(),
        )


class AvailableShare(Output):
    """What can still be taken: the least that the limits along the path leave."""

    share: float = Field(
        ge=0,
        le=1,
        description="Share of the capacity of the named account that is neither used nor reserved. Windows and "
        "policies are not considered.",
    )
    account: str = Field(
        description="The fullest account: this one, or one above it. With share 0, its limit is used up, or it is in "
        "quarantine."
    )
    account_path: str

    @classmethod
    def of(cls, available: Available) -> Self:
        """Convert from the domain."""
        return cls(share=available.share, account=available.account_id, account_path=available.account_path)


class PlanItem(Output):
    """Planned repetitions of one event."""

    event: AnsweredEvent
    count: int | None = Field(description="As declared; null: as many as the limit allows.")
    steps: int = Field(description="Number of repetitions that the limit allows.")
    steps_used: int


class Plan(Output):
    """What a limit allows of an account's planned events.

    Charges may use them in any order. What is used is the shortest beginning of the plan that holds all charges.
    """

    state: PlanState = Field(
        description="`active`: it admits charges that it covers. `exhausted`: it is used up. `ended`: an event that it "
        "does not cover was charged or is reserved, so that the Rényi orders alone decide."
    )
    share: float = Field(description="Share of the limit's delta for the plan.")
    delta: float = Field(description="Part of the limit's delta for the plan.")
    steps: int = Field(description="Number of planned steps that the limit allows, from the first.")
    steps_used: int
    steps_reserved: int
    steps_remaining: int
    items: list[PlanItem]


class AnsweredPlannedEvent(Output):
    """A planned event, with the number of its repetitions."""

    event: AnsweredEvent
    count: int | None = Field(description="Null: as many repetitions as the limit allows.")

    @field_validator("count", mode="before")
    @classmethod
    def _without_end(cls, count: int) -> int | None:
        return None if count == MAX_COUNT else count


class _Named(Output):
    id: str
    name: str
    path: str


class Account(MetadataMembers, _Named):
    """Common fields of accounts."""

    planned: list[AnsweredPlannedEvent]
    plan: Plan | None = Field(
        default=None, description="What the limit allows of the planned events, and how much of it is used."
    )
    weights_frozen: bool = Field(
        description="Whether the filter's weights are fixed, as they are from the first charge on. A run without "
        "its own limit has none."
    )
    epsilon: ExtendedNumber = Field(
        description="Of all that was charged so far, at `delta`: as the tightest accountant for releases that were "
        "fixed in advance computes it. It depends on the charges alone, and is at most the limit unless that is "
        "exceeded. What is guaranteed under adaptive choices is the limit."
    )
    delta: float = Field(description="Of the account's limit; of a run without one, of the account's above.")
    used: float = Field(
        description="Share of the capacity that is spent, at most 1 unless the limit is exceeded. Of a run, that of "
        "the account that leaves the fewest steps."
    )
    own_delta: float = Field(description="Part of the limit's delta that was spent on mechanisms with their own delta.")
    warnings: list[str] = Field(
        description="Warnings about the limit, and about a filter that is not tuned to the steps of registered runs."
    )
    created_at: datetime
    updated_at: datetime


class ComposedAccount(Account):
    """Common fields of populations and budgets."""

    composition: Composition
    max_partitions_per_unit: int | None = None
    used_including_reserved: float = Field(
        description="`used` with all reserved steps. Some of them may have been released already: `epsilon` of an "
        "account above their run has them once the reservation is closed."
    )
    available: AvailableShare
    attestation: Attestation | None = None
    lifetime: LifetimeSpend = Field(description="The total privacy loss of the population, which never decreases.")

    @classmethod
    def of(cls, view: AccountView) -> Self:
        """Convert from the domain; a population and a budget each take the members that they have."""
        account = view.record.account
        assert account.limit is not None, "populations and budgets have limits"
        return cls(
            **account_members(
                view.record, view.epsilon, account.limit.shown_delta, account.used(), view.about, view.lost
            ),
            parent=account.parent_id,
            size=view.record.population.size,
            composition="sequential" if account.partitions_per_unit is None else "parallel",
            max_partitions_per_unit=account.partitions_per_unit,
            used_including_reserved=max(account.used(), account.used(account.spent + account.held)),
            available=AvailableShare.of(view.available),
            attestation=view.attestation,
            lifetime=LifetimeSpend.of(view),
            opens_at=account.window.opens_at,
            closes_at=account.window.closes_at,
            block=view.block,
        )


class Population(ComposedAccount):
    """A population and its spending."""

    privacy_unit: str
    neighboring_relation: NeighboringRelation
    size: int | None
    limit: Limit


class Budget(ComposedAccount):
    """A budget and its spending."""

    parent: str
    population: str
    limit: Limit
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    block: DataBlock | None = None


class CreatedBlocks(Output):
    """Budgets of consecutive data blocks, the earliest first."""

    items: list[Budget]


def account_members(
    record: AccountRecord,
    epsilon: float,
    delta: float,
    used: float,
    about: AccountMetadata,
    lost: StepsLost | None = None,
) -> dict[str, Any]:
    """Convert the common fields of accounts, with their epsilon at the delta of the governing limit."""
    account = record.account
    warnings = [] if account.limit is None else about_limit(account.limit)
    return {
        "id": account.id,
        "name": account.name,
        "path": account.path,
        "population": account.population_id,
        "privacy_unit": record.population.privacy_unit,
        "neighboring_relation": record.population.relation,
        "planned": account.planned,
        "plan": account.plan_status,
        "weights_frozen": account.weights_frozen,
        "limit": account.limit,
        "epsilon": epsilon,
        "delta": delta,
        "used": used,
        "own_delta": account.spent.delta_value(),
        "warnings": [*warnings, *about_loss(used), *([] if lost is None else [lost.warning])],
        **metadata_members(about),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
