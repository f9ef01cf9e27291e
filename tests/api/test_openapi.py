"""The OpenAPI document: kept as it is served, complete, valid, and true to its own examples."""

import json
from pathlib import Path
from typing import Any

from fastapi.routing import iter_route_contexts
from openapi_spec_validator import validate

from app.api.openapi import MAX_SHARED_CODES, openapi_text
from app.api.problems import STATUSES
from app.main import DASHBOARD_ROUTERS
from tests.api.operations import (
    APP,
    DOCUMENT,
    GUARDED,
    OPERATIONS,
    OPTIONAL_BODY,
    POSTS,
    PROBLEM_JSON,
    PUBLIC,
    READS,
    Operation,
    errors,
    resolved,
)
from tests.each import for_each

KEPT = Path(__file__).parents[2] / "openapi" / "openapi.json"
JSON = "application/json"


def _id(operation: Operation) -> str:
    return operation.id


each = for_each(OPERATIONS, _id)


def _examples(content: dict[str, Any]) -> list[Any]:
    """The examples of a body: beside its schema, in it, or, of a page, in its items' schema."""
    beside = [example["value"] for example in content.get("examples", {}).values()]
    schema = resolved(content["schema"])
    if set(schema.get("properties", {})) == {"items", "next"}:
        cursor, *_ = schema["properties"]["next"]["examples"]
        return [{"items": _examples({"schema": schema["properties"]["items"]["items"]}), "next": cursor}]
    return beside or list(schema.get("examples", []))


def test_document_is_valid_and_kept_as_it_is_served() -> None:
    assert KEPT.read_bytes() == openapi_text(APP).encode(), "openapi/openapi.json is out of date: run make openapi"
    validate(DOCUMENT)


@each
def test_operation_is_described_with_its_parameters_and_statuses(operation: Operation) -> None:
    described, parameters = operation.described, operation.described.get("parameters", [])
    assert operation.id.isidentifier()
    assert all(len(described[member]) > 8 for member in ("summary", "description"))
    assert described["tags"]
    assert "HTTPValidationError" not in str(described)
    for status, response in described["responses"].items():
        assert response["description"] not in {"", "Validation Error"}, status
    for parameter in parameters:
        if parameter["in"] != "path":
            assert parameter.get("description") or parameter["schema"].get("description"), parameter["name"]
    expected = {"401", "503"} if operation in GUARDED else set()
    expected |= {"413", "415", "422"} if operation in POSTS else {"304"} if operation in READS else set()
    if "{" in operation.path:
        expected |= {"404"}
    if any(parameter["in"] == "query" for parameter in parameters):
        expected |= {"422"}
    assert expected <= set(described["responses"])
    if operation in POSTS and "201" in described["responses"]:
        headers = {parameter["name"] for parameter in parameters if parameter["in"] == "header"}
        assert headers - {"If-Match"} == {"Idempotency-Key"}


@each
def test_success_has_an_example_that_fits_its_schema(operation: Operation) -> None:
    found = [
        response["content"].get(JSON)
        for status, response in operation.described["responses"].items()
        if status.startswith("2")
    ]
    assert found
    if operation.path.endswith((".html", ".svg", ".csv", "/metrics")) or operation.method == "DELETE":
        assert found == [None]
        return
    for content in found:
        assert _examples(content), "no example"
        assert resolved(content["schema"]), "no schema"
        for example in _examples(content):
            assert errors(content["schema"], example) == []
            _is_complete(content["schema"], example)


def _is_complete(schema: dict[str, Any], example: dict[str, Any]) -> None:
    properties = resolved(schema)["properties"]
    # Some members are there or not, and so are written as null in the schema.
    null = {"type": "null"}
    nullable = {name for name, of in properties.items() if null in of.get("anyOf", []) or "null" in of.get("type", [])}
    assert set(properties) - nullable <= set(example) <= set(properties)


@for_each([post for post in POSTS if "requestBody" in post.described], _id)
def test_request_has_an_example_that_fits_its_schema(operation: Operation) -> None:
    content = operation.described["requestBody"]["content"][JSON]
    optional = operation.id in OPTIONAL_BODY
    assert operation.described["requestBody"].get("required", False) is not optional
    schema = content["schema"]["anyOf"][0] if optional else content["schema"]
    assert resolved(schema)["additionalProperties"] is False
    assert _examples({"schema": schema}), "no example"
    for example in _examples({"schema": schema}):
        assert errors(schema, example) == []


@each
def test_failure_is_a_problem_with_an_example_of_each_code(operation: Operation) -> None:
    for status, response in operation.described["responses"].items():
        if status.startswith(("2", "3")):
            continue
        assert set(response["content"]) == {PROBLEM_JSON}, status
        content = response["content"][PROBLEM_JSON]
        assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
        assert content["examples"], status
        for code, example in content["examples"].items():
            assert example["value"]["code"] == code
            assert STATUSES[code][0] == int(status) == example["value"]["status"]
            assert example["value"]["title"] == STATUSES[code][1]
            assert errors(content["schema"], example["value"]) == []


def test_shared_parts_are_written_once_and_referred_to() -> None:
    operations = [operation for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    for operation in operations:
        for response in operation["responses"].values():
            examples = response.get("content", {}).get(PROBLEM_JSON, {}).get("examples", {})
            assert not 1 <= len(examples) <= MAX_SHARED_CODES
    written = [
        json.dumps(each) for operation in operations for each in operation.get("parameters", []) if "$ref" not in each
    ]
    assert len(written) == len(set(written)) > 0
    text = KEPT.read_text()
    assert len(text.splitlines()) <= 17_300
    for section in set(DOCUMENT["components"]) - {"securitySchemes"}:
        assert not [name for name in DOCUMENT["components"][section] if f'"#/components/{section}/{name}"' not in text]


def test_document_has_every_route_and_asks_for_a_key_but_of_public_ones() -> None:
    assert DOCUMENT["security"] == [{"ApiKey": []}]
    for operation in OPERATIONS:
        public = operation not in GUARDED
        assert operation.described.get("security") == ([] if public else None), operation.id
    documented = {(operation.method, operation.path) for operation in OPERATIONS}
    routed = {(method, route.path) for route in iter_route_contexts(APP.routes) for method in route.methods or ()}
    pages = {
        (method, route.path)
        for module in DASHBOARD_ROUTERS
        for route in iter_route_contexts(module.routes.routes)
        for method in route.methods or ()
    }
    assert not [path for _, path in pages if path is None or path.startswith("/v1")]
    assert {(method, path) for method, path in routed if method != "HEAD"} == documented | pages | {
        ("GET", path) for path in ("/docs", "/openapi.json")
    }
    assert {path for _, path in documented if not path.startswith("/v1/")} == PUBLIC
