"""What several schemas share: strictness, names, limits, events."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.accounting.events import DpEvent, NeighboringRelation, event_from_dict
from app.ledger.accounts import StepEvent
from app.ledger.errors import InvalidInputError, RequestTooLargeError
from app.ledger.filters import FilterKind, Limit
from app.ledger.names import MAX_NAME_LENGTH, check_name
from app.service.budgets import ID_PREFIXES

MAX_EVENTS = 1000


class Input(BaseModel):
    """A request body: no unknown fields, no conversions, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Output(BaseModel):
    """A reply body."""

    model_config = ConfigDict(frozen=True)


class Problem(Output):
    """An error (RFC 9457); `code` is stable, and further members belong to it."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str


def _name(value: str) -> str:
    try:
        check_name(value)
    except InvalidInputError as error:
        raise ValueError(error.detail) from error
    if value.startswith(tuple(f"{prefix}_" for prefix in ID_PREFIXES.values())):
        raise ValueError("a name must not look like an id (pop_…, bud_…, run_…)")
    return value


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_name)]
Reference = Annotated[
    str, Field(min_length=1, max_length=2000, description="An id, or a path of names such as mimic/icu-team.")
]
Delta = Annotated[float, Field(ge=1e-30, lt=0.5)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Relation = Annotated[Literal["add_or_remove_one", "replace_one", "replace_special"], Field()]
Filter = Annotated[
    Literal["adaptive", "declared"],
    Field(
        description="`adaptive` holds whatever the trainer chooses while it looks at earlier outputs; "
        "`declared` admits a little more and holds only if every event was fixed in advance."
    ),
]


class LimitIn(Input):
    """The most that may be spent."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"epsilon": 3.0, "delta": 1e-5}]})

    epsilon: float = Field(gt=0, le=10_000)
    delta: Delta

    def domain(self) -> Limit:
        """The limit as the ledger knows it."""
        return Limit(self.epsilon, self.delta)


class LimitOut(Output):
    """The most that may be spent."""

    epsilon: float
    delta: float


class GaussianEvent(Input):
    """The Gaussian mechanism on a sum whose sensitivity is the clipping norm."""

    type: Literal["gaussian"]
    noise_multiplier: float = Field(ge=1e-3, le=1e6, description="sigma / clipping norm")


class PoissonSampledEvent(Input):
    """A mechanism on a sample in which each privacy unit is included independently."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "poisson_sampled",
                    "sampling_probability": 0.01,
                    "event": {"type": "gaussian", "noise_multiplier": 1.1},
                }
            ]
        }
    )

    type: Literal["poisson_sampled"]
    sampling_probability: float = Field(gt=0, le=1)
    event: "Event"


Event = Annotated[GaussianEvent | PoissonSampledEvent, Field(discriminator="type")]


class CountedEvent(Input):
    """`count` repetitions of one event."""

    event: Event
    count: Count = 1


def event_of(event: GaussianEvent | PoissonSampledEvent) -> DpEvent:
    """The event as the accountant knows it."""
    return event_from_dict(event.model_dump())


def step_events_of(items: list[CountedEvent]) -> tuple[StepEvent, ...]:
    """Counted events as the ledger knows them.

    Raises:
        RequestTooLargeError: more than 1,000 of them.
    """
    require_few(len(items))
    return tuple(StepEvent(event_of(item.event), item.count) for item in items)


def require_few(events: int) -> None:
    """Refuse more events than one transaction should hold.

    Raises:
        RequestTooLargeError: more than 1,000.
    """
    if events > MAX_EVENTS:
        raise RequestTooLargeError(
            f"A request holds at most {MAX_EVENTS} events; this one has {events}. Send several requests, or use "
            "`count` for repetitions."
        )


class TermsIn(Input):
    """What every new account is opened with."""

    name: Name
    filter: Filter = "adaptive"
    planned: list[CountedEvent] = Field(
        default=[],
        description="The workload that an adaptive filter is tuned for; empty: the first event charged.",
    )

    def filter_kind(self) -> FilterKind:
        """The filter as the ledger knows it."""
        return FilterKind(self.filter)


class AccountOut(Output):
    """What every account shows."""

    id: str
    name: str
    path: str
    filter: FilterKind
    planned: list[dict[str, Any]]
    weights_frozen: bool = Field(
        description="Whether the filter's weights are fixed: they are with the first charge. A run without a limit "
        "of its own needs none."
    )
    epsilon: float = Field(description="Spent so far, by the account's filter at its delta.")
    epsilon_declared: float = Field(
        description="What an in-process accountant would print: valid only if all was fixed in advance."
    )
    created_at: datetime
    updated_at: datetime


def relation_of(value: str | None) -> NeighboringRelation | None:
    """The neighboring relation as the accountant knows it."""
    return None if value is None else NeighboringRelation(value)
