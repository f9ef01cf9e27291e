"""Populations and budgets on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from app.accounting.events import NeighboringRelation, event_to_dict
from app.api.schemas.common import (
    AccountOut,
    Body,
    Filter,
    Input,
    LimitIn,
    LimitOut,
    Moment,
    Name,
    Output,
    Reference,
    Relation,
    Statement,
)
from app.api.schemas.counted import CountedEvents, step_events_of
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_CURSOR, EXAMPLE_POPULATION_ID
from app.ledger.accounts import Account, StepEvent
from app.ledger.composition import MAX_PARTS
from app.ledger.filters import FilterKind
from app.ledger.windows import ALWAYS, Window
from app.persistence.repositories.accounts import Population
from app.persistence.repositories.parts import Block
from app.service.budgets import Terms
from app.service.numbers import finite
from app.service.parts import AccountView, Parallel
from app.service.planning.setting import about_limit

_ACCOUNT = {
    "filter": "adaptive",
    "planned": [],
    "weights_frozen": True,
    "epsilon_declared": 1.2539,
    "epsilon_declared_infinite": False,
    "own_delta": 0.0,
    "warnings": [],
    "composition": "sequential",
    "max_partitions_per_unit": None,
    "attestation": None,
    "lifetime": {
        "population": EXAMPLE_POPULATION_ID,
        "population_path": "mimic",
        "epsilon": 2.0904,
        "epsilon_infinite": False,
        "delta": 1e-5,
        "epsilon_limit": 8.0,
    },
    "created_at": "2026-11-21T09:00:00Z",
    "updated_at": "2026-11-21T09:30:00Z",
}
BLOCK_EXAMPLE: dict[str, Any] = {
    "data_from": "2026-11-01T00:00:00Z",
    "data_to": "2026-12-01T00:00:00Z",
    "label": "november",
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
    "opens_at": None,
    "closes_at": "2027-01-01T00:00:00Z",
    "block": None,
    **_ACCOUNT,
}
_OF_PARTS: dict[str, object] = {
    "composition": "sequential",
    **dict.fromkeys(
        ("attestation", "max_partitions_per_unit", "replaced_units", "opens_at", "closes_at", "block"),
    ),
}
"""What came later to the body of a request, and what it is if it is left out."""


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


class ComposedIn(TermsIn):
    """What an account beneath which budgets lie may be opened with besides."""

    composition: Literal["sequential", "parallel"] = Field(
        default="sequential",
        description="`sequential`: what the children spend adds up. `parallel`: the children are budgets that hold "
        "disjoint parts of the population, and what counts is the part that lost most.",
    )
    attestation: Statement | None = Field(
        default=None,
        description="Needed for parallel composition: why the parts are disjoint and chosen independently of the data.",
    )
    max_partitions_per_unit: Annotated[int, Field(ge=1, le=MAX_PARTS)] | None = Field(
        default=None,
        description="In how many parts one privacy unit may lie (1 if left out); so many of those that lost most are "
        "added up, and twice as many under replace_one.",
    )
    replaced_units: Literal["stay_in_their_parts", "removal_is_bounded"] | None = Field(
        default=None,
        description="Needed for parallel composition under replace_one: what becomes of a unit that is replaced.",
    )

    @model_validator(mode="after")
    def _parts_are_parallel(self) -> Self:
        said = (self.attestation, self.max_partitions_per_unit, self.replaced_units)
        if self.composition == "sequential" and said != (None, None, None):
            raise ValueError(
                "`attestation`, `max_partitions_per_unit` and `replaced_units` are said of parts: "
                'send "composition": "parallel" with them'
            )
        return self

    @model_serializer(mode="wrap")
    def _as_before_parts(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An account without them is the request that it was before there were parts, also to its key."""
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if name not in _OF_PARTS or value != _OF_PARTS[name]}

    def parallel(self) -> Parallel | None:
        """What is said of the children, if they are disjoint parts."""
        if self.composition == "sequential":
            return None
        return Parallel(self.max_partitions_per_unit or 1, self.attestation, self.replaced_units)


class PopulationIn(ComposedIn):
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
        planned = step_events_of(self.planned)
        return Terms(self.name, self.limit.domain(), self.filter_kind(), planned, self.parallel())

    def population(self) -> Population:
        """What a population has besides its account."""
        return Population(self.privacy_unit, NeighboringRelation(self.neighboring_relation), self.size)


class BlockIn(Input):
    """The data that came in some time."""

    model_config = ConfigDict(json_schema_extra={"examples": [BLOCK_EXAMPLE]})

    data_from: Moment = Field(description="The first moment of it.")
    data_to: Moment = Field(description="The first moment behind it.")
    label: Name | None = Field(default=None, description="What you call it.")

    @model_validator(mode="after")
    def _holds_a_moment(self) -> Self:
        if self.data_from >= self.data_to:
            raise ValueError("`data_to` must come after `data_from`")
        return self


class BudgetIn(ComposedIn):
    """A new budget beneath a population or another budget."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 3.0, "delta": 1e-5}}]
        }
    )

    parent: Reference
    limit: LimitIn
    opens_at: Moment | None = Field(default=None, description="Nothing is taken from it before.")
    closes_at: Moment | None = Field(default=None, description="Nothing is taken from it from then on.")
    block: BlockIn | None = Field(
        default=None,
        description="The data that the budget stands for; its parent is parallel, and no other block overlaps it.",
    )

    def terms(self) -> Terms:
        """What the account is opened with.

        Raises:
            InvalidInputError: its window holds no moment.
        """
        sent = self.block
        block = None if sent is None else Block(sent.data_from, sent.data_to, sent.label)
        window = Window(self.opens_at, self.closes_at) if self.opens_at or self.closes_at else ALWAYS
        planned = step_events_of(self.planned)
        return Terms(self.name, self.limit.domain(), self.filter_kind(), planned, self.parallel(), window, block)


class AttestationOut(Output):
    """Why the children are disjoint parts, and who has said so."""

    text: str
    replaced_units: str | None = None
    attested_by: str = Field(description="The key that opened the account.")
    attested_at: datetime


class BlockOut(Output):
    """The data that a budget stands for."""

    data_from: datetime
    data_to: datetime
    label: str | None = None


class LifetimeOut(Output):
    """What the people of a population have lost in all, whatever windows and blocks there were."""

    population: str
    population_path: str
    epsilon: float | None = Field(
        default=None, description="Of the population, by its filter at its delta; null if infinite."
    )
    epsilon_infinite: bool
    delta: float
    epsilon_limit: float

    @classmethod
    def of(cls, population: Account) -> "LifetimeOut":
        """A population's odometer."""
        assert population.limit is not None, "populations have limits"
        return cls(
            population=population.id,
            population_path=population.path,
            **finite(epsilon=population.epsilon()),
            delta=population.limit.delta,
            epsilon_limit=population.limit.epsilon,
        )


class ComposedOut(AccountOut):
    """What an account beneath which budgets lie shows besides."""

    composition: Literal["sequential", "parallel"]
    max_partitions_per_unit: int | None = None
    attestation: AttestationOut | None = None
    lifetime: LifetimeOut = Field(
        description="The odometer of the population: it never goes back, whatever opens or closes."
    )


class PopulationOut(ComposedOut):
    """A population and what was spent on it."""

    model_config = ConfigDict(json_schema_extra={"examples": [POPULATION_EXAMPLE]})

    privacy_unit: str
    neighboring_relation: NeighboringRelation
    size: int | None
    limit: LimitOut

    @classmethod
    def of(cls, view: AccountView) -> "PopulationOut":
        """A population as it is read."""
        record = view.record
        return cls(
            **shared(view),
            privacy_unit=record.population.privacy_unit,
            neighboring_relation=record.population.relation,
            size=record.population.size,
        )


class BudgetOut(ComposedOut):
    """A budget and what was spent on it."""

    model_config = ConfigDict(json_schema_extra={"examples": [BUDGET_EXAMPLE]})

    parent: str
    population: str
    limit: LimitOut
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    block: BlockOut | None = None

    @classmethod
    def of(cls, view: AccountView) -> "BudgetOut":
        """A budget as it is read."""
        account, block = view.record.account, view.block
        assert account.parent_id is not None, "a budget lies beneath an account"
        return cls(
            **shared(view),
            parent=account.parent_id,
            population=account.population_id,
            opens_at=account.window.opens_at,
            closes_at=account.window.closes_at,
            block=block and BlockOut(data_from=block.data_from, data_to=block.data_to, label=block.label),
        )


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


def shared(view: AccountView) -> dict[str, Any]:
    """The fields of an account that has a limit."""
    record, account, said = view.record, view.record.account, view.attestation
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
        "composition": "sequential" if account.partitions_per_unit is None else "parallel",
        "max_partitions_per_unit": account.partitions_per_unit,
        "attestation": said
        and AttestationOut(
            text=said.text,
            replaced_units=said.replaced_units,
            attested_by=said.attested_by,
            attested_at=said.attested_at,
        ),
        "lifetime": LifetimeOut.of(view.population),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def counted(steps: tuple[StepEvent, ...]) -> list[dict[str, Any]]:
    """Step events as they go over the wire."""
    return [{"event": event_to_dict(step.event), "count": step.count} for step in steps]
