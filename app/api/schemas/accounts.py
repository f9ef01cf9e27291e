"""Populations and budgets on the wire."""

from typing import Any

from pydantic import ConfigDict, Field

from app.accounting.events import NeighboringRelation, event_to_dict
from app.api.schemas.common import (
    AccountOut,
    Body,
    Filter,
    LimitIn,
    LimitOut,
    Name,
    Output,
    Reference,
    Relation,
)
from app.api.schemas.counted import CountedEvents, step_events_of
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_CURSOR, EXAMPLE_POPULATION_ID
from app.ledger.accounts import StepEvent
from app.ledger.filters import FilterKind
from app.persistence.repositories.accounts import AccountRecord, Population
from app.service.budgets import Terms
from app.service.numbers import finite
from app.service.planning.setting import about_limit

_ACCOUNT = {
    "filter": "adaptive",
    "planned": [],
    "weights_frozen": True,
    "epsilon_declared": 1.2539,
    "epsilon_declared_infinite": False,
    "own_delta": 0.0,
    "warnings": [],
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
    "epsilon_infinite": False,
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
    "epsilon_infinite": False,
    "limit": {"epsilon": 3.0, "delta": 1e-5},
    **_ACCOUNT,
}


class TermsIn(Body):
    """What every new account is opened with."""

    name: Name
    filter: Filter = "adaptive"
    planned: CountedEvents = Field(
        default=[],
        description="The workload that an adaptive filter is tuned for; empty: the first event charged.",
    )

    def filter_kind(self) -> FilterKind:
        """The filter as the ledger knows it."""
        return FilterKind(self.filter)


class PopulationIn(TermsIn):
    """A new population."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "mimic",
                    "privacy_unit": "patient",
                    "neighboring_relation": "add_or_remove_one",
                    "size": 46520,
                    "limit": {"epsilon": 8.0, "delta": 1e-5},
                }
            ]
        }
    )

    privacy_unit: Name = Field(description="Who is protected: one record, one user, one client device.")
    neighboring_relation: Relation
    size: int | None = Field(default=None, ge=1, le=10**12, description="How many privacy units, if known.")
    limit: LimitIn

    def terms(self) -> Terms:
        """What the account is opened with."""
        return Terms(self.name, self.limit.domain(), self.filter_kind(), step_events_of(self.planned))

    def population(self) -> Population:
        """What a population has besides its account."""
        return Population(self.privacy_unit, NeighboringRelation(self.neighboring_relation), self.size)


class BudgetIn(TermsIn):
    """A new budget beneath a population or another budget."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 3.0, "delta": 1e-5}}]
        }
    )

    parent: Reference
    limit: LimitIn

    def terms(self) -> Terms:
        """What the account is opened with."""
        return Terms(self.name, self.limit.domain(), self.filter_kind(), step_events_of(self.planned))


class PopulationOut(AccountOut):
    """A population and what was spent on it."""

    model_config = ConfigDict(json_schema_extra={"examples": [POPULATION_EXAMPLE]})

    privacy_unit: str
    neighboring_relation: NeighboringRelation
    size: int | None
    limit: LimitOut

    @classmethod
    def of(cls, record: AccountRecord) -> "PopulationOut":
        """A population as it is read."""
        return cls(
            **shared(record),
            privacy_unit=record.population.privacy_unit,
            neighboring_relation=record.population.relation,
            size=record.population.size,
        )


class BudgetOut(AccountOut):
    """A budget and what was spent on it."""

    model_config = ConfigDict(json_schema_extra={"examples": [BUDGET_EXAMPLE]})

    parent: str
    population: str
    limit: LimitOut

    @classmethod
    def of(cls, record: AccountRecord) -> "BudgetOut":
        """A budget as it is read."""
        assert record.account.parent_id is not None, "a budget lies beneath an account"
        return cls(**shared(record), parent=record.account.parent_id, population=record.account.population_id)


class PopulationPage(Output):
    """Populations in the order of their creation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [POPULATION_EXAMPLE], "next": EXAMPLE_CURSOR}]})

    items: list[PopulationOut]
    next: str | None


class BudgetPage(Output):
    """Budgets in the order of their creation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [BUDGET_EXAMPLE], "next": EXAMPLE_CURSOR}]})

    items: list[BudgetOut]
    next: str | None


def shared(record: AccountRecord) -> dict[str, Any]:
    """The fields of an account that has a limit."""
    account = record.account
    assert account.limit is not None, "populations and budgets have limits"
    return {
        "id": account.id,
        "name": account.name,
        "path": account.path,
        "filter": account.filter,
        "planned": counted(account.planned),
        "weights_frozen": account.weights_frozen,
        **finite(epsilon=account.epsilon(), epsilon_declared=account.epsilon_declared(account.limit.delta)),
        "limit": LimitOut(epsilon=account.limit.epsilon, delta=account.limit.delta),
        "own_delta": account.spent.delta_value(),
        "warnings": about_limit(account.limit, account.filter),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def counted(steps: tuple[StepEvent, ...]) -> list[dict[str, Any]]:
    """Step events as they go over the wire."""
    return [{"event": event_to_dict(step.event), "count": step.count} for step in steps]
