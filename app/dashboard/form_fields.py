"""Fields of GET forms, with an error message for each field."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from app.api.validation_errors import validation_messages
from app.ledger.times import parse_time

_WORDS: Final = {
    "int_parsing": "write a whole number, such as 5000",
    "int_from_float": "write a whole number, such as 5000",
    "int_parsing_size": "this is more than can be counted",
    "float_parsing": "write a number, such as 1.5 or 1e-5",
    "finite_number": "write a finite number",
}
"""Messages by pydantic's error type, where its own are for programmers."""

T = TypeVar("T", bound="Fields")

_SHORT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2}:[0-9]{2})(:[0-9]{2}(?:\.[0-9]+)?)?(Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
"""A day, or a time that may lack its seconds and its zone."""


def _parse_moment(text: object) -> datetime:
    found = _SHORT.fullmatch(text) if isinstance(text, str) else None
    if found is not None:
        text = f"{found[1]}T{found[2] or '00:00'}{found[3] or ':00'}{found[4] or 'Z'}"
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError("write a moment as 2026-11-21T09:00:00Z, or a day") from None


Moment = Annotated[datetime, BeforeValidator(_parse_moment)] | None
"""A time as HTML fields write it; UTC unless it has a zone."""


class Fields(BaseModel):
    """Base of forms; unknown query parameters are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True, str_strip_whitespace=True)


def read_fields(kind: type[T], given: Mapping[str, Any]) -> tuple[T | None, dict[str, str]]:
    """Parse a form, in which empty fields take their defaults; return it, or None and error messages by field."""
    try:
        return kind.model_validate(
            {name: text for name, text in given.items() if not isinstance(text, str) or text.strip()}
        ), {}
    except ValidationError as error:
        errors = [each for each in error.errors() if each["loc"]]
        return None, {str(each["loc"][0]): _message(each) for each in reversed(errors)}


def _message(error: Any) -> str:  # noqa: ANN401 - pydantic's own shape
    known = _WORDS.get(error["type"])
    return known or validation_messages([error], None)[0][0]["message"]
