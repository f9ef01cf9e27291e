"""Requests that are wrong in one place, derived from the OpenAPI document: each member of each schema, once."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.api.operations import CHEAP, DOCUMENT, WITH_BODY, Operation, resolved, valid_body, validator

JSON = Any
Place = tuple[str | int, ...]

WRONG: Final[tuple[JSON, ...]] = (
    *(None, True, -1, 0.3, 2**63, 1.7976931348623157e308, "", "x", "1", [], [1], [[[[]]]], {}, {"x": 1}),
)
"""What a schema lets pass of these is left out."""


@dataclass(frozen=True)
class Member:
    """A member of a schema of the document, and where a body has it.

    Args:
        operation: whose body it is.
        body: in which the object around the member stands.
        place: of the member.
        schema: of its value.
        required: whether it may not be left out.
    """

    operation: Operation
    body: JSON
    place: Place
    schema: dict[str, Any]
    required: bool

    @property
    def field(self) -> str:
        return ".".join(["body", *map(str, self.place)])

    def wrong(self) -> Iterator[JSON]:
        """Bodies in which the member is not as its schema says."""
        check = validator(self.schema)
        for value in (*WRONG, *_beyond(self.schema)):
            if not check.is_valid(value):
                yield changed(self.body, self.place, value)
        kinds = str(self.schema.get("type"))
        if "number" in kinds or "integer" in kinds:
            yield changed(self.body, self.place, math.nan)
        if "integer" in kinds:
            yield changed(self.body, self.place, float(self.schema.get("minimum", 1)))
        if self.required:
            yield changed(self.body, self.place, _NOTHING)


def wrong_members(operation: Operation) -> list[Member]:
    """The members that a body of this operation is the first to have."""
    return _MEMBERS[operation.id]


def schema_of(operation: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = operation.described["requestBody"]["content"]["application/json"]["schema"]
    return schema


def wrong_texts(schema: dict[str, Any]) -> Iterator[str]:
    """Values of a query that its schema does not let pass."""
    whole = resolved(schema)
    if "anyOf" in whole:
        whole = next(resolved(each) for each in whole["anyOf"] if each != {"type": "null"})
    kind = whole.get("type")
    if kind == "array":
        yield from wrong_texts(whole["items"])
    elif kind == "boolean":
        yield from ("", "2", "maybe", "TRUEE", "null", "1.0")
    elif kind in {"integer", "number"}:
        yield from ("", "x", "1.5.", "NaN", "true", "9" * 40, *(str(value) for value in _beyond(whole)))
    elif "enum" in whole:
        yield from ("", "none of them", str(whole["enum"][0]).upper(), "null")
    elif whole.get("format") == "date-time":
        yield from ("", "soon", "2026-11-21T09:00:00", "2026-02-30T00:00:00Z")
    else:
        yield from ("%00", *_beyond(whole))


def changed(body: JSON, place: Place, value: JSON) -> JSON:
    """A copy of a body with another value in one place."""
    whole = copy.deepcopy(body)
    holder = whole
    for key in place[:-1]:
        holder = holder[key]
    if value is _NOTHING:
        holder.pop(place[-1], None)
    else:
        holder[place[-1]] = value
    return whole


_NOTHING: Final = object()


def _beyond(schema: dict[str, Any]) -> Iterator[JSON]:
    """Values just outside of the bounds of a schema, or of the schemas that it names."""
    for whole in (schema, *map(resolved, schema.get("anyOf", ()))):
        integer = "integer" in str(whole.get("type"))
        for bound, sign in (("minimum", -1), ("maximum", 1)):
            if bound in whole:
                value = whole[bound]
                yield int(value) + sign if integer else math.nextafter(value, sign * math.inf)
        yield from (float(whole[bound]) for bound in ("exclusiveMinimum", "exclusiveMaximum") if bound in whole)
        if "minLength" in whole and whole["minLength"] > 1:
            yield "x" * (whole["minLength"] - 1)
        if "maxLength" in whole:
            yield "x" * (whole["maxLength"] + 1)
        if "maxItems" in whole:
            yield [example(whole["items"])] * (whole["maxItems"] + 1)


def example(schema: dict[str, Any]) -> JSON:
    """Something that a schema lets pass, or nearly."""
    if schema.get("$ref", "").endswith("/Event"):
        return CHEAP
    whole = resolved(schema)
    for union in ("anyOf", "oneOf"):
        if union in whole:
            return example(whole[union][0])
    if "const" in whole or "enum" in whole:
        return whole.get("const", whole.get("enum", [None])[0])
    kind = str(whole.get("type"))
    if "object" in kind:
        members = whole.get("properties", {})
        return {name: example(members[name]) for name in whole.get("required", ())}
    if "array" in kind:
        return [example(whole["items"])]
    simple = {"string": "mimic", "boolean": True}
    return simple.get(kind, whole.get("minimum", 0.25))


def _walked(
    operation: Operation, schema: dict[str, Any], body: JSON, place: Place, seen: set[object]
) -> Iterator[Member]:
    name = schema.get("$ref") or (operation.id, place)
    if name in seen:
        return
    seen.add(name)
    whole = resolved(schema)
    variants = whole.get("anyOf") or whole.get("oneOf") or ()
    for variant in variants:
        there = changed(body, place, example(variant)) if place and resolved(variant).get("type") == "object" else body
        yield from _walked(operation, variant, there, place, seen)
    for member, of in whole.get("properties", {}).items():
        at = (*place, member)
        yield Member(operation, body, at, of, member in whole.get("required", ()))
        yield from _walked(operation, of, changed(body, at, example(of)), at, seen)
    if "items" in whole:
        yield from _walked(operation, whole["items"], body, (*place, 0), seen)


_SEEN: Final[set[object]] = set()
_MEMBERS: Final = {
    each.id: list(_walked(each, schema_of(each), valid_body(each) or {}, (), _SEEN)) for each in WITH_BODY
}
QUERIES: Final = {
    (method.upper(), path): [
        parameter for parameter in map(resolved, described.get("parameters", ())) if parameter["in"] == "query"
    ]
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
}
"""The parameters of queries, by operation."""
