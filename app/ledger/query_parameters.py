"""Query parameters of lists: fields of a list's filter, each declared once for the API, its CSV and the pages."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, get_args, get_origin, get_type_hints

from app.ledger.names import ACTOR_LENGTH

MAX_TEXT: Final = 2000


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of a filter that a caller may set.

    Args:
        description: in the API.
        name: in the API and on pages; empty: the field's own.
        label: above the field on a page; empty: the page takes it without a field; None: no page takes it.
        hint: an example in the empty field.
        most: maximum length of a text, or number of values; 0: `MAX_TEXT`, or as many as there are.
        is_reference: whether it names an account or a run, which may not exist.
        field: its name in the filter. This and what follows come from the dataclass.
        kind: its type, or of one of several values.
        repeated: whether it has several values, as a tuple.
    """

    description: str
    name: str = ""
    label: str | None = None
    hint: str = ""
    most: int = 0
    is_reference: bool = False
    field: str = ""
    kind: Any = None
    default: Any = None
    repeated: bool = False


def parameter(description: str, *, default: Any = None, **about: Any) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Declare a field of a filter that a caller may set; the arguments are those of `Parameter`."""
    return field(default=default, metadata={"parameter": Parameter(description, default=default, **about)})


def actor_parameter() -> Any:  # noqa: ANN401 - as above
    """Declare the field for an actor."""
    return parameter("Only what this actor did.", label="Actor", hint="id of a key, oidc:…, cli", most=ACTOR_LENGTH)


def since_parameter() -> Any:  # noqa: ANN401 - as above
    """Declare the field for the begin of a period."""
    return parameter("From this time on.", label="Since (UTC)", hint="2026-11-21T09:00")


def until_parameter() -> Any:  # noqa: ANN401 - as above
    """Declare the field for the end of a period."""
    return parameter("Before this time.", label="Before (UTC)", hint="2026-11-22")


def parameters_of(filters: type) -> tuple[Parameter, ...]:
    """List the fields of a filter, a dataclass, that callers may set."""
    kinds, found = get_type_hints(filters), []
    for each in fields(filters):
        if about := each.metadata.get("parameter"):
            kind, repeated = kinds[each.name], get_origin(kinds[each.name]) is tuple
            single, name = get_args(kind)[0] if repeated else kind, about.name or each.name
            found.append(replace(about, name=name, field=each.name, kind=single, repeated=repeated))
    return tuple(found)
