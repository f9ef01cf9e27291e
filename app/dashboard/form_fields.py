"""Fields of GET forms, with an error message for each field."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from app.api.validation_errors import validation_messages

_WORDS: Final = {
    "int_parsing": "write a whole number, such as 5000",
    "int_from_float": "write a whole number, such as 5000",
    "int_parsing_size": "this is more than can be counted",
    "float_parsing": "write a number, such as 1.5 or 1e-5",
    "finite_number": "write a finite number",
    "datetime_from_date_parsing": "write a moment as 2026-11-21T09:00:00Z, or a day",
}
"""Messages by pydantic's error type, where its own are for programmers."""

T = TypeVar("T", bound="Fields")


class Fields(BaseModel):
    """Base of forms; unknown query parameters are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True, str_strip_whitespace=True)


def read_fields(kind: type[T], given: Mapping[str, str]) -> tuple[T | None, dict[str, str]]:
    """Parse a form, in which empty fields take their defaults; return it, or None and error messages by field."""
    try:
        return kind.model_validate({name: text for name, text in given.items() if text.strip()}), {}
    except ValidationError as error:
        errors = [each for each in error.errors() if each["loc"]]
        return None, {str(each["loc"][0]): _message(each) for each in reversed(errors)}


def _message(error: Any) -> str:  # noqa: ANN401 - pydantic's own shape
    known = _WORDS.get(error["type"])
    return known or validation_messages([error], None)[0][0]["message"]
