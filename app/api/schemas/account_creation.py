"""Request schemas that create populations and budgets."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import TypeAliasType

from app.api.schemas.common import (
    AttestationText,
    Body,
    Composition,
    Day,
    Input,
    LimitInput,
    Name,
    Reference,
    Relation,
    Timestamp,
    valid_name,
)
from app.api.schemas.events import PlannedEvents, planned_events_of
from app.api.schemas.metadata import MetadataInput
from app.ledger.accounts.account_records import Block, Population
from app.ledger.accounts.calendar import BlockSchedule, CalendarPeriod
from app.ledger.admission.composition import MAX_PARTITIONS
from app.ledger.filter.filters import check_delta
from app.ledger.names import MAX_PREFIX_LENGTH
from app.ledger.settings.windows import ALWAYS, Window
from app.service.accounts.spec import AccountSpec, ParallelSpec

ReplacementAssumption = TypeAliasType("ReplacementAssumption", Literal["stay_in_their_parts", "removal_is_bounded"])


class CreateAccount(MetadataInput):
    """Common fields of a new account."""

    name: Name
    planned: PlannedEvents = Field(
        default=[],
        description="The plan: what will be released, in order, fixed before the first release. Charges that it covers "
        "are admitted as tightly as privacy loss distributions allow. Empty: the filter is tuned for the first charged "
        "event.",
    )


class CreateComposedAccount(CreateAccount):
    """Common fields of a new population or budget."""

    composition: Composition = Field(
        default="sequential",
        description="`sequential`: the spending of the children adds up. `parallel`: the children are budgets on "
        "disjoint parts of the population, and the largest loss counts.",
    )
    attestation: AttestationText | None = Field(
        default=None,
        description="Required for parallel composition: why the parts are disjoint and chosen independently of the "
        "data.",
    )
    max_partitions_per_unit: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)] | None = Field(
        default=None,
        description="Maximum number of parts that contain one privacy unit (default 1). As many of the largest "
        "losses are added up, and twice as many under replace_one.",
    )
    replacement_assumption: ReplacementAssumption | None = Field(
        default=None,
        description="Required for parallel composition under replace_one. `stay_in_their_parts`: a replacement "
        "stays in the part of its unit. `removal_is_bounded`: a replacement may be in another part; "
        "randomized_response, tree_aggregation and batches out of a known number of records are then refused under "
        "this account, because they reveal a missing record, and stated guarantees must hold for removal as well.",
    )

    @model_validator(mode="after")
    def _parts_are_parallel(self) -> Self:
        said = (self.attestation, self.max_partitions_per_unit, self.replacement_assumption)
        if self.composition == "sequential" and said != (None, None, None):
            raise ValueError(
                "`attestation`, `max_partitions_per_unit` and `replacement_assumption` need parts: "
                'send "composition": "parallel" with them'
            )
        return self

    def parallel(self) -> ParallelSpec | None:
        """Return the attestation of disjoint children, or None."""
        if self.composition == "sequential":
            return None
        return ParallelSpec(self.max_partitions_per_unit or 1, self.attestation, self.replacement_assumption)


class CreatePopulation(CreateComposedAccount):
    """A new population."""

    privacy_unit: Name = Field(description="The protected unit: one record, one user, one client device.")
    neighboring_relation: Relation
    size: int | None = Field(default=None, ge=1, le=10**12, description="Number of privacy units, if known.")
    limit: LimitInput

    @field_validator("limit", mode="before")
    @classmethod
    def _delta_below_inverse_size(cls, limit: object, info: ValidationInfo) -> object:
        """Name 1/size at once, not first the bound of every delta."""
        size, delta = info.data.get("size"), limit.get("delta") if isinstance(limit, dict) else None
        if size is not None and isinstance(delta, float) and 0.5 <= delta < 1:  # noqa: PLR2004 - within every bound
            check_delta(delta, size)
        return limit

    def terms(self) -> AccountSpec:
        """Convert to the account's specification."""
        planned, metadata = planned_events_of(self.planned), self.metadata()
        return AccountSpec(self.name, self.limit.domain(), planned, self.parallel(), metadata=metadata)

    def population(self) -> Population:
        """Convert to the fields that only populations have."""
        return Population(self.privacy_unit, self.neighboring_relation, self.size)


class DataBlockInput(Input):
    """Data of a time range."""

    data_from: Timestamp = Field(description="Start of the time range.")
    data_to: Timestamp = Field(description="End of the time range, exclusive.")
    label: Name | None = Field(default=None, description="Label for display.")

    @model_validator(mode="after")
    def _holds_a_moment(self) -> Self:
        if self.data_from >= self.data_to:
            raise ValueError("`data_to` must come after `data_from`")
        return self


class BudgetFields(CreateComposedAccount):
    """The fields of a new budget, except its parent."""

    limit: LimitInput
    opens_at: Timestamp | None = Field(default=None, description="The budget is closed before.")
    closes_at: Timestamp | None = Field(default=None, description="The budget is closed from then on.")
    block: DataBlockInput | None = Field(
        default=None, description="The budget's data; requires a parallel parent, and blocks must not overlap."
    )

    def terms(self) -> AccountSpec:
        """Convert to the account's specification.

        Raises:
            InvalidInputError: its window is empty.
        """
        block = None if self.block is None else Block(**dict(self.block))
        window = Window(self.opens_at, self.closes_at) if self.opens_at or self.closes_at else ALWAYS
        planned = planned_events_of(self.planned)
        parallel, metadata = self.parallel(), self.metadata()
        return AccountSpec(self.name, self.limit.domain(), planned, parallel, window, block, metadata)


class CreateBudget(BudgetFields):
    """A new budget under a population or another budget."""

    parent: Reference


class BlockTemplate(Input):
    """Common fields of data blocks by calendar."""

    period: Annotated[CalendarPeriod, Field(strict=False)] = Field(
        description="Length of each block, in UTC; weeks are those of ISO 8601."
    )
    start: Day = Field(description="A day of the first period.")
    limit: LimitInput = Field(description="The limit of each block.")
    prefix: Annotated[str, Field(max_length=MAX_PREFIX_LENGTH)] = Field(
        default="", description="Begins the names, which end with the period: 2026-W01, 2026-01 or 2026-Q1."
    )

    @field_validator("prefix")
    @classmethod
    def _makes_names(cls, prefix: str) -> str:
        valid_name(f"{prefix}2026-W01")
        return prefix

    def domain(self) -> BlockSchedule:
        """Convert to the domain."""
        return BlockSchedule(self.period, self.start, self.limit.domain(), self.prefix)


class CreateBlocks(Body, BlockTemplate):
    """Consecutive data blocks by calendar."""

    count: int = Field(ge=1, le=MAX_PARTITIONS, description="Number of blocks.")
