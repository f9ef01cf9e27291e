"""What several schemas share: strictness, names, limits."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from app.accounting.events import MAX_EVENTS, NeighboringRelation
from app.api.schemas.examples import EXAMPLE_CURSOR
from app.ledger.errors import InvalidInputError
from app.ledger.filters import FilterKind
from app.ledger.filters import Limit as DomainLimit
from app.ledger.names import MAX_NAME_LENGTH, check_name
from app.service.accounts.spec import ID_PREFIXES


class Input(BaseModel):
    """A request body: no unknown fields, no conversions, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


MOST_WRONG = 10 * MAX_EVENTS
"""Errors of a body that are listed: each of the events that it may hold may have ten."""


class Body(Input):
    """The whole of a request's body."""

    @model_validator(mode="wrap")
    @classmethod
    def _told_within_reason(cls, given: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Say of a body that is wrong throughout only that it is: to name half a million places takes seconds."""
        try:
            return read(given)
        except ValidationError as error:
            if error.error_count() <= MOST_WRONG:
                raise
            raise PydanticCustomError(
                "too_many_errors",
                "{places} places of the body are not as they should be: is this a request for this path?",
                {"places": error.error_count()},
            ) from None


class EmptyBody(Body):
    """What is asked by the path alone."""


class Output(BaseModel):
    """A reply body."""

    model_config = ConfigDict(frozen=True)


T = TypeVar("T", bound=Output)


ExtendedNumber = TypeAliasType(
    "ExtendedNumber",
    Annotated[float | Literal["Infinity"], Field(description='A number, or "Infinity" where there is no finite one.')],
)


EVENT_FORMAT: Final = "event"
AnsweredEvent = Annotated[dict[str, Any], WithJsonSchema({"format": EVENT_FORMAT})]
"""An event in an answer: it was checked when it came in. The description refers to the schema of requests."""


class AnsweredEventCount(Output):
    """`count` repetitions of one event."""

    event: AnsweredEvent
    count: int


class Page(Output, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = Field(
        description="The cursor of the page that follows; null on the last one.", examples=[EXAMPLE_CURSOR]
    )


class Problem(Output):
    """An error (RFC 9457); `code` is stable, and further members belong to it."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:problem-type:epsilon-ledger:` and the code.")
    title: str
    status: int
    detail: str
    code: str = Field(description="What went wrong; it never changes.")
    request_id: str | None = Field(
        description="As the header X-Request-Id and the service's log have it; null for what was refused unread."
    )


def _name(value: str) -> str:
    try:
        check_name(value)
    except InvalidInputError as error:
        raise ValueError(error.detail) from error
    if value.startswith(tuple(f"{prefix}_" for prefix in ID_PREFIXES.values())):
        raise ValueError("a name must not look like an id (pop_…, bud_…, run_…)")
    return value


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_name)]


def _readable(value: str) -> str:
    if not value.strip() or any(not (char.isprintable() or char in "\n\t") for char in value):
        raise ValueError("write words that can be read, without control characters")
    return value


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('write a moment as text, as "2026-11-21T09:00:00Z"')  # noqa: TRY004 - pydantic takes this one
    return value


Reason = Annotated[
    str,
    Field(min_length=1, max_length=2000, description="Why, for whoever reads the record."),
    AfterValidator(_readable),
]
AttestationText = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_readable)]


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a moment lies within the years 1 and 9999") from None


Timestamp = Annotated[AwareDatetime, BeforeValidator(_text), AfterValidator(_utc), Field(strict=False)]
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


class LimitInput(Input):
    """The most that may be spent."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"epsilon": 3.0, "delta": 1e-5}]})

    epsilon: float = Field(gt=0, le=10_000)
    delta: Delta

    def domain(self) -> DomainLimit:
        """The limit as the ledger knows it."""
        return DomainLimit(self.epsilon, self.delta)


class Limit(Output):
    """The most that may be spent."""

    epsilon: float
    delta: float


class Account(Output):
    """What every account shows."""

    id: str
    name: str
    path: str
    filter: FilterKind
    planned: list[AnsweredEventCount]
    weights_frozen: bool = Field(
        description="Whether the filter's weights are fixed: they are with the first charge. A run without a limit "
        "of its own needs none."
    )
    epsilon: ExtendedNumber = Field(description="Spent so far, by the account's filter at its delta.")
    epsilon_declared: ExtendedNumber = Field(
        description="What an in-process accountant would print: valid only if all was fixed in advance."
    )
    own_delta: float = Field(
        description="What mechanisms with a delta of their own have taken of the limit's delta so far."
    )
    warnings: list[str] = Field(description="What a careful reader would want to know of the limit.")
    created_at: datetime
    updated_at: datetime


def relation_of(value: str | None) -> NeighboringRelation | None:
    """The neighboring relation as the accountant knows it."""
    return None if value is None else NeighboringRelation(value)
