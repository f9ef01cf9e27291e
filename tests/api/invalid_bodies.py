"""Bodies that are wrong in one place, generated from the OpenAPI document: every member of every body, every type."""

import copy
from collections.abc import Iterator
from typing import Any, Final

from tests.api.operations import Operation, resolved, valid_body, validator

JSON = Any
Place = tuple[str | int, ...]

WRONG: Final[dict[str, JSON]] = {
    "null": None,
    "true": True,
    "zero": 0,
    "a negative number": -1,
    "a fraction": 0.3,
    "an integer of 64 bits and one": 2**63,
    "the largest float": 1.7976931348623157e308,
    "the smallest float": 5e-324,
    "no text": "",
    "a text": "x",
    "a number as text": "1",
    "a long text": "x" * 5000,
    "unusual characters": "\u202e\U0001f9ea\u0301 ' \" ; -- %s {0} \\",
    "no array": [],
    "an array": [1],
    "arrays in arrays": [[[[[[]]]]]],
    "no object": {},
    "an object": {"x": 1},
    "an object of its own kind in a wrong one": {"event": {"event": {"event": {}}}},
}
MOST_NESTED: Final = 4


def schema_of(operation: Operation) -> dict[str, Any]:
    """The schema of an operation's body."""
    schema: dict[str, Any] = operation.described["requestBody"]["content"]["application/json"]["schema"]
    return schema


def fits(operation: Operation, body: JSON) -> bool:
    """Whether the document lets a body pass."""
    return validator(schema_of(operation)).is_valid(body)


def wrong_bodies(operation: Operation) -> Iterator[tuple[str, JSON]]:
    """Good bodies with one place made wrong, or one member more or less; each with what was done to it."""
    for body, root in _good_bodies(operation):
        for place in _places(body):
            if place[: len(root)] != root:
                continue
            for name, value in WRONG.items():
                yield f"{place}: {name}", _changed(body, place, value)
            if isinstance(place[-1], str):
                yield f"{place}: left out", _changed(body, place, _NOTHING)
                yield f"{place}: misspelt", _changed(body, (*place[:-1], f"{place[-1]}s"), 1)


def _good_bodies(operation: Operation) -> Iterator[tuple[dict[str, Any], Place]]:
    """A body that is taken, and the same with each further member that there is; each with what is new in it."""
    base = valid_body(operation) or {}
    yield base, ()
    for name, schema in _properties(schema_of(operation)).items():
        if name not in base:
            yield base | {name: _example(schema, 0)}, (name,)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The members of an object; of an optional body as well."""
    whole = resolved(schema)
    if "anyOf" in whole:
        return _properties(whole["anyOf"][0])
    properties: dict[str, Any] = whole["properties"]
    return properties


def _example(schema: dict[str, Any], depth: int) -> JSON:
    """Something that a schema lets pass, or nearly."""
    whole = resolved(schema)
    for union in ("anyOf", "oneOf"):
        if union in whole:
            return _example(whole[union][0], depth)
    if "const" in whole or "enum" in whole:
        return whole.get("const", whole.get("enum", [None])[0])
    deep = depth >= MOST_NESTED
    kind = whole.get("type", "")
    kind = kind[0] if isinstance(kind, list) else kind  # the other is null
    if kind == "object":
        members = {} if deep else whole.get("properties", {})
        return {name: _example(member, depth + 1) for name, member in members.items()}
    if kind == "array":
        return [] if deep else [_example(whole["items"], depth + 1)]
    simple = {"string": "mimic", "boolean": True}
    return simple.get(kind, whole.get("minimum", whole.get("default", 1)))


def _places(body: JSON, at: Place = ()) -> Iterator[Place]:
    """Every place in a body but the whole of it."""
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in inside:
        yield (*at, key)
        yield from _places(value, (*at, key))


_NOTHING: Final = object()


def _changed(body: JSON, place: Place, value: JSON) -> JSON:
    changed = copy.deepcopy(body)
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    if value is _NOTHING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return changed
