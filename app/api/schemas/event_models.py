"""Models of events, derived from the classes of `app.accounting.events`."""

import re
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from inspect import cleandoc
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

from pydantic import FailFast, Field, SerializerFunctionWrapHandler, create_model, model_serializer, model_validator

from app.accounting.events import DpEvent
from app.accounting.events.base import EVENT_TYPES, Choice, EventType, FieldCheck, Inner, Items, Real, Whole
from app.api.schemas.common import Input

EVENTS_MODULE: Final = "app.api.schemas.events"
"""Defines `Event`, to which models of nested events refer by name."""


class EventInput(Input):
    """An event, serialized without defaults, so that both spellings are the same request."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        fields = type(self).model_fields
        return {name: value for name, value in written.items() if value != fields[name].default}


def event_model(cls: type[DpEvent], declared: EventType) -> type[EventInput]:
    """Make the model of an event class: `type`, and its fields in the same order with their bounds."""
    members: dict[str, Any] = {"type": (Literal[declared.name], ...)}
    members |= {field.name: _member(field, declared) for field in fields(cls)}
    examples = [{"type": declared.name, **example} for example in declared.examples]
    return create_model(
        f"{cls.__name__}Event",
        __base__=EventInput,
        __module__=EVENTS_MODULE,
        __doc__=_description(cls),
        __validators__={"one_form": _form_validator(declared)} if declared.forms else None,
        __cls_kwargs__={"json_schema_extra": {"examples": examples}} if examples else None,
        **members,
    )


def _description(cls: type[DpEvent]) -> str:
    """Get the docstring of a class up to its first section."""
    return re.split(r"\n\n(?:Args|Raises):", cleandoc(cls.__doc__ or ""))[0]


def _member(field: DataclassField[Any], declared: EventType) -> tuple[Any, Any]:
    default = ... if field.default is MISSING else field.default
    return _annotation(declared.checks[field.name]), Field(default, description=declared.descriptions.get(field.name))


def _annotation(check: FieldCheck) -> Any:  # noqa: ANN401 - a type
    """Get the type of the values that a check allows."""
    match check:
        case Real(low, high, above=above, below=below, optional=optional):
            ends: dict[str, Any] = {"gt" if above else "ge": low, "lt" if below else "le": high}
            return _optional(Annotated[float, Field(**ends)], optional=optional)
        case Whole(low, high, optional=optional):
            return _optional(Annotated[int, Field(ge=low, le=high)], optional=optional)
        case Items(item, most):
            return Annotated[GenericAlias(list, _annotation(item)), FailFast(), Field(min_length=1, max_length=most)]
        case Choice(options):
            return Literal[options]
        case Inner():
            return "Event"
    raise TypeError(f"{check} has no counterpart in the API.")


def _optional(kind: Any, *, optional: bool) -> Any:  # noqa: ANN401 - types
    return kind | None if optional else kind


def _form_validator(declared: EventType) -> Any:  # noqa: ANN401 - a validator
    def check(event: EventInput) -> EventInput:
        if not declared.has_one_form(lambda name: getattr(event, name) is not None):
            raise ValueError(f"send either {declared.forms_in_words('`')}")
        return event

    return model_validator(mode="after")(check)


EVENT_MODELS: Final = {
    declared.name: event_model(cls, declared)
    for cls, declared in sorted(EVENT_TYPES.items(), key=lambda each: each[0].__name__.lower())
}
"""Models by the `type` on the wire."""
