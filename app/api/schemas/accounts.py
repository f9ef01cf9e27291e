"""Response schemas of populations and budgets."""

from datetime import datetime
from typing import Any

from pydantic import Field

from app.accounting.events import NeighboringRelation, event_to_dict
from app.api.schemas.common import (
    Account,
    Composition,
    ExtendedNumber,
    Limit,
    Output,
    Page,
)
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_POPULATION_ID, example
from app.ledger.accounts import Account as DomainAccount
from app.ledger.accounts import StepEvent
from app.service.accounts.partitions import AccountView
from app.service.json_values import json_finite
from app.service.planning.assumptions import about_limit, about_loss

_ACCOUNT = {
    "epsilon_including_reserved": 2.3187,
    "filter": "adaptive",
    "planned": [],
    "weights_frozen": True,
    "epsilon_declared": 1.2539,
    "own_delta": 0.0,
    "warnings": [],
    "composition": "sequential",
    "max_partitions_per_unit": None,
    "attestation": None,
    "lifetime": {
        "population": EXAMPLE_POPULATION_ID,
        "population_path": "mimic",
        "epsilon": 2.0904,
        "delta": 1e-5,
        "epsilon_limit": 8.0,
    },
    "created_at": "2026-11-21T09:00:00Z",
    "updated_at": "2026-11-21T09:30:00Z",
}
POPULATION_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_POPULATION_ID,
    "name": "mimic",
    "path": "mimic",
    "privacy_unit": "patient",
    "neighboring_relation": "add_or_remove_one",
    "size": 46520,
    "epsilon": 2.0904,
    "limit": {"epsilon": 8.0, "delta": 1e-5},
    **_ACCOUNT,
}
BUDGET_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_BUDGET_ID,
    "name": "icu-team",
    "path": "mimic/icu-team",
    "parent": EXAMPLE_POPULATION_ID,
    "population": EXAMPLE_POPULATION_ID,
    "epsilon": 1.6477,
    "limit": {"epsilon": 3.0, "delta": 1e-5},
    "opens_at": None,
    "closes_at": "2027-01-01T00:00:00Z",
    "block": None,
    **_ACCOUNT,
}


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
    def of(cls, population: DomainAccount) -> "LifetimeSpend":
        """Convert from the domain."""
        assert population.limit is not None, "populations have limits"
        return cls(
            population=population.id,
            population_path=population.path,
            **json_finite(epsilon=population.epsilon()),
            delta=population.limit.delta,
            epsilon_limit=population.limit.epsilon,
        )


class ComposedAccount(Account):
    """Common fields of populations and budgets."""

    composition: Composition
    max_partitions_per_unit: int | None = None
    epsilon_including_reserved: ExtendedNumber = Field(
        description="Epsilon including reserved steps, by the same filter."
    )
    attestation: Attestation | None = None
    lifetime: LifetimeSpend = Field(description="The total privacy loss of the population, which never decreases.")


class Population(ComposedAccount):
    """A population and its spending."""

    model_config = example(POPULATION_EXAMPLE)

    privacy_unit: str
    neighboring_relation: NeighboringRelation
    size: int | None
    limit: Limit

    @classmethod
    def of(cls, view: AccountView) -> "Population":
        """Convert from the domain."""
        record = view.record
        return cls(
            **shared(view),
            privacy_unit=record.population.privacy_unit,
            neighboring_relation=record.population.relation,
            size=record.population.size,
        )


class Budget(ComposedAccount):
    """A budget and its spending."""

    model_config = example(BUDGET_EXAMPLE)

    parent: str
    population: str
    limit: Limit
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    block: DataBlock | None = None

    @classmethod
    def of(cls, view: AccountView) -> "Budget":
        """Convert from the domain."""
        account, block = view.record.account, view.block
        assert account.parent_id is not None, "a budget has a parent"
        return cls(
            **shared(view),
            parent=account.parent_id,
            population=account.population_id,
            opens_at=account.window.opens_at,
            closes_at=account.window.closes_at,
            block=block and DataBlock(data_from=block.data_from, data_to=block.data_to, label=block.label),
        )


class PopulationPage(Page[Population]):
    """Populations, newest first."""


class BudgetPage(Page[Budget]):
    """Budgets, newest first."""


def shared(view: AccountView) -> dict[str, Any]:
    """Convert the fields of an account with a limit."""
    record, account, said = view.record, view.record.account, view.attestation
    assert account.limit is not None, "populations and budgets have limits"
    return {
        "id": account.id,
        "name": account.name,
        "path": account.path,
        "filter": account.filter,
        "planned": counted(account.planned),
        "weights_frozen": account.weights_frozen,
        **json_finite(
            epsilon=account.epsilon(),
            epsilon_including_reserved=account.epsilon(account.spent + account.held),
            epsilon_declared=account.epsilon_declared(account.limit.delta),
        ),
        "limit": Limit(epsilon=account.limit.epsilon, delta=account.limit.delta),
        "own_delta": account.spent.delta_value(),
        "warnings": [
            *about_limit(account.limit, account.filter),
            *about_loss(account.epsilon(), account.limit.epsilon),
        ],
        "composition": "sequential" if account.partitions_per_unit is None else "parallel",
        "max_partitions_per_unit": account.partitions_per_unit,
        "attestation": said
        and Attestation(
            text=said.text,
            replacement_assumption=said.replacement_assumption,
            attested_by=said.attested_by,
            attested_at=said.attested_at,
        ),
        "lifetime": LifetimeSpend.of(view.population),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def counted(steps: tuple[StepEvent, ...]) -> list[dict[str, Any]]:
    """Convert step events."""
    return [{"event": event_to_dict(step.event), "count": step.count} for step in steps]
