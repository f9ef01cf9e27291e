"""A ledger that answers as the OpenAPI document says: it takes what its schemas take, and gives what they describe."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs

ROOT = Path(__file__).parents[2]
DOCUMENT: dict[str, Any] = json.loads((ROOT / "openapi" / "openapi.json").read_text())
FORMATS = {"date-time": "2026-11-21T08:00:00Z", "date": "2026-11-21"}
DEEPEST = 12


@dataclass(frozen=True)
class Operation:
    """An operation of the document."""

    method: str
    path: re.Pattern[str]
    description: dict[str, Any]


OPERATIONS = {
    operation["operationId"]: Operation(
        method.upper(), re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), operation
    )
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "operationId" in operation
}


def operation_of(request: httpx2.Request) -> str:
    """Find the operation that a request asks for."""
    path = request.url.raw_path.decode().partition("?")[0]
    [found] = [name for name, each in OPERATIONS.items() if each.method == request.method and each.path.fullmatch(path)]
    return str(found)


def example(schema: dict[str, Any], depth: int = 0) -> Any:  # noqa: ANN401 - a value of any schema
    """Make a value with all members of a schema."""
    if "$ref" in schema:
        return example(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth + 1)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return example(next(each for each in schema[choice] if each.get("type") != "null"), depth + 1)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type", "string")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind == "object":
        members: dict[str, Any] = schema.get("properties", {})
        return {name: example(each, depth + 1) for name, each in members.items()}
    if kind == "array":
        return [] if depth > DEEPEST else [example(schema["items"], depth + 1)]
    plain: dict[str, Any] = {"number": 1.0, "integer": 1, "boolean": True, "null": None}
    return plain.get(kind, FORMATS.get(schema.get("format", ""), "x"))


@dataclass
class DocumentedApi:
    """Answers each request with an example, if the document takes the request; notes the operations."""

    called: list[str] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.called.append(operation_of(request))
        description = OPERATIONS[self.called[-1]].description
        parameters = {
            each["name"] for each in map(_resolved, description.get("parameters", [])) if each["in"] == "query"
        }
        assert set(request.url.params) <= parameters, request.url
        if "requestBody" in description:
            schema = description["requestBody"]["content"]["application/json"]["schema"]
            whole = {"allOf": [schema], "components": DOCUMENT["components"]}
            jsonschema_rs.validate(whole, json.loads(request.content))
        else:
            # A POST has an object all the same, without any member.
            assert request.content == (b"{}" if request.method == "POST" else b"")
        status = min(description["responses"])
        content = description["responses"][status].get("content", {})
        if "application/json" not in content:
            return httpx2.Response(int(status), content=b"picture or text" if content else b"")
        body = example(content["application/json"]["schema"])
        if "next" in body:
            body["next"] = None
        return httpx2.Response(int(status), json=body, headers={"ETag": '"1"'})


def _resolved(parameter: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = parameter
    for part in parameter.get("$ref", "#").split("/")[1:]:
        found = DOCUMENT[part] if found is parameter else found[part]
    return found
