"""Requests that are wrong in one place, derived from the OpenAPI document: each member of each schema, once."""

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pytest

from tests.api.conftest import SeededLedger
from tests.api.operations import CHEAP, DOCUMENT, GUARDED, WITH_BODY, Operation, resolved, valid_body, validator
from tests.api.test_endpoints import check, send, unchanged
from tests.ledger.test_times import NOT_DAYS, NOT_TIMES

__all__ = ["unchanged"]

REFUSED = {"invalid_request", "invalid_event", "unsupported_event", "delta_too_large", "request_too_large"}
JSON = Any
Place = tuple[str | int, ...]
WRONG: Final[tuple[JSON, ...]] = (
    *(None, True, -1, 0.3, 2**63, 1.7976931348623157e308, "", "x", "1", [], [1], [[[[]]]], {}, {"x": 1}),
)
"""What a schema lets pass of these is left out."""
IN_EVERY_TEST = 1
"""So many of them for each member, in turn, beside those beyond its bounds; `make soak` takes all."""
TURN = count()


@dataclass(frozen=True)
class Member:
    """A member of a schema, and its place in a body in which the object around it stands."""

    body: JSON
    place: Place
    schema: dict[str, Any]
    required: bool

    @property
    def field(self) -> str:
        return ".".join(["body", *map(str, self.place)])

    def wrong(self, most: int) -> Iterator[JSON]:
        """Bodies in which the member is not as its schema says."""
        check = validator(self.schema)
        kinds = [value for value in WRONG if not check.is_valid(value)]
        turn = next(TURN)
        values = [kinds[(turn + 5 * place) % len(kinds)] for place in range(min(most, len(kinds)))]
        for value in (*values, *(each for each in _beyond(self.schema) if not check.is_valid(each))):
            yield changed(self.body, self.place, value)
        for value in _not_times(self.schema)[:most]:
            yield changed(self.body, self.place, value)
        types = str(self.schema.get("type"))
        if "number" in types or "integer" in types:
            yield changed(self.body, self.place, math.nan)
        if "integer" in types:
            yield changed(self.body, self.place, float(self.schema.get("minimum", 1)))
        if self.required:
            yield changed(self.body, self.place, _NOTHING)


_NOTHING: Final = object()


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


def _not_times(schema: dict[str, Any]) -> Sequence[str]:
    """Text that is no time, or no day, where a schema wants one: the first of them would be Unix seconds."""
    formats = {whole.get("format") for whole in (schema, *map(resolved, schema.get("anyOf", ())))}
    times = ("1798761600", *NOT_TIMES) if "date-time" in formats else ()
    return (*times, *(("1767225600", *NOT_DAYS) if "date" in formats else ()))


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
            yield [_example(whole["items"])] * (whole["maxItems"] + 1)


def _example(schema: dict[str, Any]) -> JSON:
    """Something that a schema lets pass, or nearly."""
    if schema.get("$ref", "").endswith("/Event"):
        return CHEAP
    whole = resolved(schema)
    for union in ("anyOf", "oneOf"):
        if union in whole:
            return _example(whole[union][0])
    if "const" in whole or "enum" in whole:
        return whole.get("const", whole.get("enum", [None])[0])
    kind = str(whole.get("type"))
    if "object" in kind:
        members = whole.get("properties", {})
        return {name: _example(members[name]) for name in whole.get("required", ())}
    if "array" in kind:
        return [_example(whole["items"])]
    simple = {"string": "mimic", "boolean": True}
    return simple.get(kind, whole.get("minimum", 0.25))


def _walked(name: str, schema: dict[str, Any], body: JSON, place: Place, seen: set[object]) -> Iterator[Member]:
    reference = schema.get("$ref") or (name, place)
    if reference in seen:
        return
    seen.add(reference)
    whole = resolved(schema)
    for variant in whole.get("anyOf") or whole.get("oneOf") or ():
        there = changed(body, place, _example(variant)) if place and resolved(variant).get("type") == "object" else body
        yield from _walked(name, variant, there, place, seen)
    for member, of in whole.get("properties", {}).items():
        at = (*place, member)
        yield Member(body, at, of, member in whole.get("required", ()))
        yield from _walked(name, of, changed(body, at, _example(of)), at, seen)
    if "items" in whole:
        yield from _walked(name, whole["items"], body, (*place, 0), seen)


def schema_of(operation: Operation) -> dict[str, Any]:
    return dict(operation.described["requestBody"]["content"]["application/json"]["schema"])


_SEEN: Final[set[object]] = set()
MEMBERS: Final = {
    each.id: list(_walked(each.id, schema_of(each), valid_body(each) or {}, (), _SEEN)) for each in WITH_BODY
}
"""The members that a body of this operation is the first to have."""


@pytest.mark.parametrize("most", [IN_EVERY_TEST, pytest.param(len(WRONG), marks=pytest.mark.soak)])
def test_wrong_member_is_refused_by_its_name(shared: SeededLedger, most: int) -> None:
    for operation in WITH_BODY:
        for member in MEMBERS[operation.id]:
            for body in member.wrong(most):
                case = operation.id, member.field, json.dumps(body)[:300]
                reply = send(shared, operation, json.dumps(body).encode())
                assert reply.status_code in {413, 422}, (case, reply.text[:500])
                answer = reply.json()
                check(reply, reply.status_code, answer["code"])
                assert answer["code"] in REFUSED, case
                named = [error["field"] for error in answer.get("errors", ())]
                assert not named or any(_same(field, member.field) for field in named), (case, named)


def _same(named: str, field: str) -> bool:
    """Whether one of them is the other, or lies in it."""
    shorter, longer = sorted((named, field), key=len)
    return longer == shorter or longer.startswith(f"{shorter}.")


def test_unknown_member_is_refused_by_its_name_and_events_beyond_a_thousand_are_counted_first(
    shared: SeededLedger,
) -> None:
    for operation in WITH_BODY:
        places = {member.place[:-1]: member.body for member in MEMBERS[operation.id]}
        for place, body in (places or {(): valid_body(operation) or {}}).items():
            reply = send(shared, operation, json.dumps(changed(body, (*place, "x"), 1)).encode())
            check(reply, 422, "invalid_request", operation.id)
            assert ".".join(["body", *map(str, place), "x"]) in [error["field"] for error in reply.json()["errors"]]
    lists = 0
    for operation in WITH_BODY:
        for name, of in resolved(schema_of(operation)).get("properties", {}).items():
            if of.get("items", {}).get("$ref", "").endswith(("/EventCount", "/PlannedEventInput")):
                lists += 1
                body = (valid_body(operation) or {}) | {name: [{}] * 1001}
                reply = send(shared, operation, json.dumps(body).encode())
                check(reply, 413, "request_too_large", (operation.id, name))
                assert reply.json()["detail"].startswith("A request holds at most 1000 events; this one has 1001.")
    assert lists > 5


QUERIES: Final = {
    (method.upper(), path): [each for each in map(resolved, of.get("parameters", ())) if each["in"] == "query"]
    for path, methods in DOCUMENT["paths"].items()
    for method, of in methods.items()
}


def _wrong_texts(schema: dict[str, Any]) -> Iterator[str]:
    """Values of a query that its schema does not let pass."""
    whole = resolved(schema)
    if "anyOf" in whole:
        whole = next(resolved(each) for each in whole["anyOf"] if each != {"type": "null"})
    kind = whole.get("type")
    if kind == "array":
        yield from _wrong_texts(whole["items"])
    elif kind == "boolean":
        yield from ("", "2", "maybe", "TRUEE", "null", "1.0")
    elif kind in {"integer", "number"}:
        yield from ("", "x", "1.5.", "NaN", "true", "9" * 40, *(str(value) for value in _beyond(whole)))
    elif "enum" in whole:
        yield from ("", "none of them", str(whole["enum"][0]).upper(), "null")
    elif whole.get("format") == "date-time":
        yield from ("20270101", "", "soon", "2026-11-21T09:00:00", "2026-02-30T00:00:00Z")
    else:
        yield from ("%00", *_beyond(whole))


def test_wrong_value_and_an_unknown_parameter_of_a_query_are_refused(shared: SeededLedger) -> None:
    seen: set[str] = set()
    for operation in GUARDED:
        content = json.dumps(valid_body(operation)).encode() if operation in WITH_BODY else None
        for parameter in QUERIES[operation.method, operation.path]:
            name, known = parameter["name"], json.dumps(parameter, sort_keys=True)
            wrong = list(_wrong_texts(parameter["schema"]))
            for value in wrong[:1] if known in seen else wrong:
                if name != "reason":  # it is needed, and would be given twice
                    check(send(shared, operation, content, query=f"?{name}={value}"), 422, "invalid_request", name)
            seen.add(known)
        if operation.method == "GET" or operation.id == "authorizeSteps":
            content = b"{}" if operation.method == "POST" else None
            check(send(shared, operation, content, query="?stauts=active"), 422, "invalid_request", operation.id)
