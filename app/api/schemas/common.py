"""Common bases, types and limits of schemas."""

from datetime import date
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from typing_extensions import TypeAliasType

from app.accounting.events import MAX_EVENTS, NeighboringRelation, event_to_dict
from app.ledger.errors import InvalidInputError
from app.ledger.filter.limits import MAX_EPSILON, MAX_MU, MAX_RHO, MIN_DELTA, Unit
from app.ledger.filter.limits import Limit as DomainLimit
from app.ledger.names import MAX_NAME_LENGTH, check_name, is_text
from app.ledger.times import parse_day, parse_time
from app.service.accounts.spec import ID_PREFIXES
from app.service.json_values import json_number

EXAMPLE_REQUEST_ID = "req_6f1c2d3e4f506172"
EXAMPLE_RUN_ID = "run_19aa5b3c4d7b0c1"
EXAMPLE_BUDGET_ID = "bud_19aa5b3c4d6a0b1"
EXAMPLE_KEY_ID = "key_19aa5b3c4d4e5f6071829304152"
EXAMPLE_CURSOR = "cnVuXzE5YWE1YjNjNGQ3YjBjMQ"


def example(*examples: dict[str, Any]) -> ConfigDict:
    """Configure the examples of a schema."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})


class Input(BaseModel):
    """A request body: no unknown fields, no conversions, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


MOST_WRONG = 10 * MAX_EVENTS
"""Maximum number of collected errors: ten for each event."""


class Body(Input):
    """A whole request body."""

    @model_validator(mode="wrap")
    @classmethod
    def _bound_errors(cls, given: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Summarize the errors of a thoroughly invalid body; locating half a million errors takes seconds."""
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


class Output(BaseModel):
    """A response body, read from an object of the domain; a `validation_alias` is the attribute of another name."""

    # Built on first use: together they take 0.03 s at start.
    model_config = ConfigDict(frozen=True, from_attributes=True, validate_by_name=True, defer_build=True)

    @classmethod
    def of(cls, source: Any, /) -> Self:  # noqa: ANN401 - each schema is of another type
        """Convert from the domain."""
        return cls.model_validate(source)


T = TypeVar("T", bound=Output)


Infinity = TypeAliasType(
    # An enum, not a constant: generated clients then distinguish it from a number.
    "Infinity",
    Annotated[Literal["Infinity"], WithJsonSchema({"enum": ["Infinity"], "type": "string"})],
)
ExtendedNumber = TypeAliasType(
    "ExtendedNumber",
    Annotated[float | Infinity, BeforeValidator(json_number), Field(description='A number, or "Infinity".')],
)


EVENT_FORMAT: Final = "event"
AnsweredEvent = Annotated[dict[str, Any], BeforeValidator(event_to_dict), WithJsonSchema({"format": EVENT_FORMAT})]
"""An event in an answer: it was checked when it came in. The description refers to the schema of requests."""


class AnsweredEventCount(Output):
    """`count` repetitions of one event."""

    event: AnsweredEvent
    count: int


class Page(Output, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = Field(description="Cursor of the next page; null on the last one.", examples=[EXAMPLE_CURSOR])


class Problem(Output):
    """An error (RFC 9457); `code` is stable, and further members belong to it."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:problem-type:epsilon-ledger:` and the code.")
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable code of the problem.")
    request_id: str | None = Field(
        description="As in the header X-Request-Id and in the log; null if the request was refused unread."
    )


def valid_name(value: str) -> str:
    """Return a name; ValueError: it does not fit into a path, or looks like an id."""
    try:
        check_name(value)
    except InvalidInputError as error:
        raise ValueError(error.detail) from error
    if value.startswith(tuple(f"{prefix}_" for prefix in ID_PREFIXES.values())):
        raise ValueError("a name must not look like an id (pop_…, bud_…, run_…)")
    return value


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(valid_name)]


def readable(value: str) -> str:
    """Raise ValueError unless a text has words, and no control characters but line breaks and tabs."""
    if not is_text(value):
        raise ValueError("write words that can be read, without control characters")
    return value


Reason = Annotated[
    str, Field(min_length=1, max_length=2000, description="Reason, stored in the audit log."), AfterValidator(readable)
]
AttestationText = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(readable)]


Timestamp = Annotated[AwareDatetime, BeforeValidator(parse_time)]
Day = Annotated[date, BeforeValidator(parse_day)]
Reference = Annotated[
    str, Field(min_length=1, max_length=2000, description="Id, or path of names such as mimic/icu-team.")
]
Delta = Annotated[float, Field(ge=1e-30, lt=0.5)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Relation = Annotated[NeighboringRelation, Field(strict=False)]
Composition = TypeAliasType("Composition", Literal["sequential", "parallel"])


_ONE_UNIT = (
    "send one of epsilon and delta (delta 0: pure), rho (with or without a delta, for mechanisms' own deltas), or mu"
)


def _delta_or_zero(value: float) -> float:
    if 0 < value < MIN_DELTA:
        raise ValueError(f"must be 0, or at least {MIN_DELTA:g}")
    return value


class LimitInput(Input):
    """A privacy limit in one unit: epsilon and delta, rho of zero-concentrated DP, or mu of Gaussian DP."""

    model_config = example({"epsilon": 3.0, "delta": 1e-5}, {"epsilon": 1.0, "delta": 0}, {"rho": 0.5}, {"mu": 1.0})

    epsilon: float | None = Field(default=None, gt=0, le=MAX_EPSILON, description="With `delta`; in nats.")
    rho: float | None = Field(default=None, gt=0, le=MAX_RHO, description="Of zero-concentrated differential privacy.")
    mu: float | None = Field(default=None, gt=0, le=MAX_MU, description="Of Gaussian differential privacy.")
    delta: Annotated[float, Field(ge=0, lt=0.5), AfterValidator(_delta_or_zero)] | None = Field(
        default=None,
        description="With `epsilon`: that of the guarantee, 0 for pure differential privacy. With `rho`: the most that "
        "mechanisms' own deltas may sum to, 0 by default.",
        validate_default=True,
    )

    @field_validator("rho", "mu")
    @classmethod
    def _is_the_only_unit(cls, value: float | None, info: ValidationInfo) -> float | None:
        other = next((name for name in Unit if name != info.field_name and info.data.get(name) is not None), None)
        if value is not None and other is not None:
            raise ValueError(f"a limit has one unit, and this one has {other}, too: {_ONE_UNIT}")
        return value

    @field_validator("delta")
    @classmethod
    def _fits_the_unit(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is None and info.data.get("epsilon") is not None:
            raise ValueError("is required with `epsilon`: 0 for pure differential privacy, or from 1e-30 to below 0.5")
        if value and info.data.get("mu") is not None:
            raise ValueError("a limit in `mu` has no delta: leave it out")
        return value

    @model_validator(mode="after")
    def _has_a_unit(self) -> Self:
        if self.epsilon is self.rho is self.mu is None:
            raise ValueError(f"a limit needs a unit: {_ONE_UNIT}")
        return self

    def domain(self) -> DomainLimit:
        """Convert to the domain."""
        return DomainLimit.of(self.model_dump(exclude_none=True))


class Limit(Output):
    """A privacy limit in one unit; the members of others are absent."""

    epsilon: float | None = Field(default=None, description="With `delta`; in nats.")
    rho: float | None = Field(default=None, description="Of zero-concentrated differential privacy.")
    mu: float | None = Field(default=None, description="Of Gaussian differential privacy.")
    delta: float | None = Field(
        default=None, description="With `epsilon`, 0 if it is pure; with `rho` for mechanisms' own deltas."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_domain(cls, value: object) -> object:
        return value.facts() if isinstance(value, DomainLimit) else value

    @model_serializer(mode="wrap")
    def _in_its_unit(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: each for name, each in handler(self).items() if each is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the members, which the serializer hides: they are absent, and never null."""
        found = handler(cast("CoreSchema", {**core_schema, "serialization": None}))
        described = handler.resolve_ref_schema(found)
        described["properties"] = {
            name: {"type": "number", "title": each["title"], "description": each["description"]}
            for name, each in described["properties"].items()
        }
        return found
