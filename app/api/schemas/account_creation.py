"""What populations, budgets and runs are opened with, on the wire."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from app.accounting.events import NeighboringRelation
from app.api.schemas.common import (
    AttestationText,
    Body,
    Filter,
    Input,
    LimitInput,
    Name,
    Reference,
    Relation,
    Timestamp,
)
from app.api.schemas.event_counts import EventCounts, step_events_of
from app.ledger.composition import MAX_PARTS
from app.ledger.filters import FilterKind
from app.ledger.windows import ALWAYS, Window
from app.persistence.repositories.accounts import Population
from app.persistence.repositories.partitions import Block
from app.service.accounts.partitions import ParallelSpec
from app.service.accounts.spec import AccountSpec

BLOCK_EXAMPLE: dict[str, Any] = {
    "data_from": "2026-11-01T00:00:00Z",
    "data_to": "2026-12-01T00:00:00Z",
    "label": "november",
}


_OF_PARTS: dict[str, object] = {
    "composition": "sequential",
    **dict.fromkeys(
        ("attestation", "max_partitions_per_unit", "replacement_assumption", "opens_at", "closes_at", "block"),
    ),
}
"""What came later to the body of a request, and what it is if it is left out."""


class CreateAccount(Body):
    """What every new account is opened with."""

    name: Name
    filter: Filter = "adaptive"
    planned: EventCounts = Field(
        default=[],
        description="The workload that an adaptive filter is tuned for; empty: the first event charged.",
    )

    def filter_kind(self) -> FilterKind:
        """The filter as the ledger knows it."""
        return FilterKind(self.filter)


class CreateComposedAccount(CreateAccount):
    """What an account beneath which budgets lie may be opened with besides."""

    composition: Literal["sequential", "parallel"] = Field(
        default="sequential",
        description="`sequential`: what the children spend adds up. `parallel`: the children are budgets that hold "
        "disjoint parts of the population, and what counts is the part that lost most.",
    )
    attestation: AttestationText | None = Field(
        default=None,
        description="Needed for parallel composition: why the parts are disjoint and chosen independently of the data.",
    )
    max_partitions_per_unit: Annotated[int, Field(ge=1, le=MAX_PARTS)] | None = Field(
        default=None,
        description="In how many parts one privacy unit may lie (1 if left out); so many of those that lost most are "
        "added up, and twice as many under replace_one.",
    )
    replacement_assumption: Literal["stay_in_their_parts", "removal_is_bounded"] | None = Field(
        default=None,
        description="Needed for parallel composition under replace_one. `stay_in_their_parts`: the place of a unit "
        "fixes its part. `removal_is_bounded`: a replaced unit may leave its part, and its replacement enter another; "
        "randomized_response, tree_aggregation and sampled_without_replacement are refused under this account, since a "
        "missing record shows there, and guarantees that are stated must hold for removal as well.",
    )

    @model_validator(mode="after")
    def _parts_are_parallel(self) -> Self:
        said = (self.attestation, self.max_partitions_per_unit, self.replacement_assumption)
        if self.composition == "sequential" and said != (None, None, None):
            raise ValueError(
                "`attestation`, `max_partitions_per_unit` and `replacement_assumption` are said of parts: "
                'send "composition": "parallel" with them'
            )
        return self

    @model_serializer(mode="wrap")
    def _as_before_parts(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An account without them is the request that it was before there were parts, also to its key."""
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if name not in _OF_PARTS or value != _OF_PARTS[name]}

    def parallel(self) -> ParallelSpec | None:
        """What is said of the children, if they are disjoint parts."""
        if self.composition == "sequential":
            return None
        return ParallelSpec(self.max_partitions_per_unit or 1, self.attestation, self.replacement_assumption)


class CreatePopulation(CreateComposedAccount):
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
    limit: LimitInput

    def terms(self) -> AccountSpec:
        """What the account is opened with."""
        planned = step_events_of(self.planned)
        return AccountSpec(self.name, self.limit.domain(), self.filter_kind(), planned, self.parallel())

    def population(self) -> Population:
        """What a population has besides its account."""
        return Population(self.privacy_unit, NeighboringRelation(self.neighboring_relation), self.size)


class DataBlockInput(Input):
    """The data that came in some time."""

    model_config = ConfigDict(json_schema_extra={"examples": [BLOCK_EXAMPLE]})

    data_from: Timestamp = Field(description="The first moment of it.")
    data_to: Timestamp = Field(description="The first moment behind it.")
    label: Name | None = Field(default=None, description="What you call it.")

    @model_validator(mode="after")
    def _holds_a_moment(self) -> Self:
        if self.data_from >= self.data_to:
            raise ValueError("`data_to` must come after `data_from`")
        return self


class CreateBudget(CreateComposedAccount):
    """A new budget beneath a population or another budget."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "icu-team", "parent": "mimic", "limit": {"epsilon": 3.0, "delta": 1e-5}}]
        }
    )

    parent: Reference
    limit: LimitInput
    opens_at: Timestamp | None = Field(default=None, description="Nothing is taken from it before.")
    closes_at: Timestamp | None = Field(default=None, description="Nothing is taken from it from then on.")
    block: DataBlockInput | None = Field(
        default=None,
        description="The data that the budget stands for; its parent is parallel, and no other block overlaps it.",
    )

    def terms(self) -> AccountSpec:
        """What the account is opened with.

        Raises:
            InvalidInputError: its window holds no moment.
        """
        sent = self.block
        block = None if sent is None else Block(sent.data_from, sent.data_to, sent.label)
        window = Window(self.opens_at, self.closes_at) if self.opens_at or self.closes_at else ALWAYS
        planned = step_events_of(self.planned)
        return AccountSpec(self.name, self.limit.domain(), self.filter_kind(), planned, self.parallel(), window, block)
