"""Messages of validation errors: the invalid member, and the valid values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel

from app.api.schemas.event_models import EVENT_MODELS
from app.api.schemas.events import Event, EventCount
from app.api.schemas.steps import AuthorizeSteps
from app.ledger.errors import InvalidInputError

MAX_ERRORS: Final = 20
MAX_TOLD: Final = 3
MAX_TEXT: Final = 300
MAX_NAME: Final = 100

_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}

_INTEGER: Final = "must be an integer"
_NUMBER: Final = "must be a number"
_MESSAGES: Final = {
    "missing": "is required",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}
"""Messages by pydantic's error type, where they need nothing of the error."""

_LIBRARY_SUBJECT: Final = re.compile("^(Input|String) should ")


@dataclass(frozen=True, slots=True)
class _Place:
    """Location of an error.

    Args:
        path: in the request, without pydantic's tags.
        owner: model of the last member, if known.
        holds: model expected there, or in the list there, if any.
    """

    path: tuple[str | int, ...]
    owner: type[BaseModel] | None
    holds: type[BaseModel] | None


class UnknownEventError(InvalidInputError, code="unsupported_event"):
    """The body has an unknown event type."""


def refusal_of(errors: Sequence[Mapping[str, Any]], body: object) -> InvalidInputError:
    """Make an error of pydantic's errors (at least one) about a body type."""
    found, detail = validation_messages(errors, body)
    unknown = any(item["type"] == "union_tag_invalid" for item in errors)
    return (UnknownEventError if unknown else InvalidInputError)(detail, errors=found)


def validation_messages(errors: Sequence[Mapping[str, Any]], body: object) -> tuple[list[dict[str, str]], str]:
    """Describe pydantic's errors (at least one) about a body type.

    Returns:
        The first errors for programs; and the first few as a text, with the number of the others.
    """
    placed = [(_place(body, error), error) for error in errors]
    bare = {
        place.path[:-1]
        for place, error in placed
        if place.owner is EventCount and error["type"] == "extra_forbidden" and place.path[-1] == "type"
    }
    found: dict[tuple[tuple[str | int, ...], str], tuple[_Place, Mapping[str, Any]]] = {}
    for place, error in placed:
        if place.owner is EventCount and place.path[:-1] in bare and error["type"] in {"missing", "extra_forbidden"}:
            whole = _Place(place.path[:-1], None, EventCount)
            found[whole.path, "unwrapped"] = whole, {"type": "unwrapped"}
        else:
            found[place.path, error["type"]] = place, error
    items = [
        {
            "field": truncate_echo(".".join(map(str, place.path))),
            "message": _message(place, error),
            "type": error["type"],
        }
        for place, error in list(found.values())[:MAX_ERRORS]
    ]
    detail = "; ".join(f"{item['field']}: {item['message']}" for item in items[:MAX_TOLD])
    more = len(found) - MAX_TOLD
    return items, f"{detail}; and {more} more" if more > 0 else detail


def truncate_echo(text: str) -> str:
    """Truncate a caller's text for an error message."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _place(body: object, error: Mapping[str, Any]) -> _Place:
    """Locate an error, without pydantic's tags of events."""
    root, *parts = error["loc"]
    path: list[str | int] = [root]
    owner, holds = None, _model_in(body) if root == "body" else None
    for part in parts:
        if holds is Event and isinstance(part, str):
            holds = EVENT_MODELS.get(part)
            continue
        path.append(part)
        if isinstance(part, str):
            owner, holds = holds, _held_by(holds).get(part) if holds else None
    if error["type"] == "union_tag_invalid":
        path.append("type")
    return _Place(tuple(path), owner, holds)


@cache
def _held_by(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """Return the members of a model with the models that they contain."""
    hints = get_type_hints(model)
    return {name: _model_in(hints[name]) for name in model.model_fields}


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the only model in an annotation, such as `Event | None` or `list[Event]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def _message(place: _Place, error: Mapping[str, Any]) -> str:
    facts = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden" if place.owner is not None:
            words = _unknown_member(place.owner, str(place.path[-1]))
        case "union_tag_invalid":
            words = f"{facts['tag'][:MAX_NAME]!r} is no event type; known: {_among(EVENT_MODELS, facts['tag'])}"
        case "union_tag_not_found":
            words = f"an event needs a `type`, one of {', '.join(sorted(EVENT_MODELS))}"
        case "unwrapped":
            words = 'each item is {"event": {...}, "count": n}'
        case "missing" if place.path == ("body",):
            words = "send a JSON object, at least {}"
        case "too_short":
            words = f"must hold at least {_things(facts['min_length'], place)}"
        case "too_long":
            words = f"must hold at most {_things(facts['max_length'], place)}"
        case kind if kind in _BOUNDS:
            relation, name = _BOUNDS[kind]
            words = f"must be {relation} {str(facts[name]).removesuffix('.0')}"
        case kind if kind in _MESSAGES:
            words = _MESSAGES[kind]
        case _:
            plain = error["msg"].removeprefix("Value error, ").removesuffix(".")
            words = truncate_echo(_LIBRARY_SUBJECT.sub("must ", plain))
    return words


def _unknown_member(owner: type[BaseModel], name: str) -> str:
    if owner is AuthorizeSteps and name == "dry_run":
        return "is a query parameter: send ?dry_run=true"
    return f"unknown member; known here: {_among(owner.model_fields, name)}"


def _things(number: int, place: _Place) -> str:
    """Format a number with the noun of a list's items."""
    thing = "event" if place.holds in {Event, EventCount} else "item"
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _among(known: Iterable[str], sent: str) -> str:
    """List the known names, and suggest the likely one."""
    names = sorted(known)
    close = get_close_matches(sent[:MAX_NAME], names, 1)
    return ", ".join(names) + (f"; did you mean {close[0]}?" if close else "")
