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
from app.ledger.accounts.account import Account as DomainAccount
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata
from app.ledger.admission.admission import Reading, reading_of
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
    epsilon: ExtendedNumber = Field(description="Of the population, by its filter at its delta.")
    delta: float
    epsilon_limit: float

    @classmethod
    def of(cls, population: DomainAccount) -> Self:
        """Convert from the domain."""
        return cls(population=population.id, population_path=population.path, **reading_of([population])._asdict())


class AvailableEpsilon(Output):
    """Epsilon that can still be taken: the least that the limits along the path leave."""

    epsilon: float = Field(
        description="At the limit of the named account, by its filter, with reservations taken off; at least 0. "
        "Windows and policies are not considered."
    )
    account: str = Field(
        description="The account that limits it: this one, or one above it. With epsilon 0, its limit is used up, or "
        "it is in quarantine."
    )
    account_path: str

    @classmethod
    def of(cls, available: Available) -> Self:
        """Convert from the domain."""
        return cls(epsilon=available.epsilon, account=available.account_id, account_path=available.account_path)


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
    epsilon: ExtendedNumber = Field(description="Spent so far, by the account's filter at its delta.")
    epsilon_rdp: ExtendedNumber = Field(
        description="What an in-process RDP accountant would print: the best of all orders at the whole delta. It is a "
        "bound only if all events were fixed in advance."
    )
    own_delta: float = Field(description="Part of the limit's delta that was spent on mechanisms with their own delta.")
    warnings: list[str] = Field(description="Warnings about the limit.")
    created_at: datetime
    updated_at: datetime


class ComposedAccount(Account):
    """Common fields of populations and budgets."""

    composition: Composition
    max_partitions_per_unit: int | None = None
    epsilon_including_reserved: ExtendedNumber = Field(
        description="The same with all reserved steps. Some of them may have been released already: `epsilon` of "
        "an account above their run has them once the reservation is closed."
    )
    available: AvailableEpsilon
    attestation: Attestation | None = None
    lifetime: LifetimeSpend = Field(description="The total privacy loss of the population, which never decreases.")

    @classmethod
    def of(cls, view: AccountView) -> Self:
        """Convert from the domain; a population and a budget each take the members that they have."""
        account = view.record.account
        return cls(
            **account_members(view.record, reading_of([account]), view.about),
            parent=account.parent_id,
            size=view.record.population.size,
            composition="sequential" if account.partitions_per_unit is None else "parallel",
            max_partitions_per_unit=account.partitions_per_unit,
            epsilon_including_reserved=account.epsilon(account.spent + account.held),
            available=AvailableEpsilon.of(view.available),
            attestation=view.attestation,
            lifetime=LifetimeSpend.of(view.population),
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


def account_members(record: AccountRecord, reading: Reading, about: AccountMetadata) -> dict[str, Any]:
    """Convert the common fields of accounts, with the delta and the epsilon of the governing limit."""
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
        **reading._asdict(),
        "epsilon_rdp": account.epsilon_rdp(reading.delta),
        "own_delta": account.spent.delta_value(),
        "warnings": [*warnings, *about_loss(reading.epsilon, reading.epsilon_limit)],
        **metadata_members(about),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
