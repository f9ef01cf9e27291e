"""The OpenAPI document, as served and as stored in openapi/openapi.json."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from app.api.problems import HEADERS, PROBLEM_JSON, problem_example
from app.api.route import BEARER
from app.api.schemas.common import EVENT_FORMAT, Problem

EXAMPLES_FILE: Final = Path(__file__).with_name("examples.json")


@cache
def examples() -> dict[str, Any]:
    """Read the example of each schema, by its name."""
    found: dict[str, Any] = json.loads(EXAMPLES_FILE.read_text(encoding="utf-8"))
    return found


MAX_SHARED_CODES: Final = 5
"""Maximum number of codes in the name of a shared response."""

MAX_WIDTH: Final = 100
_SHORT_ARRAY: Final = re.compile(r"\[\n([^][{}]+)\n +\]")
"""An array of numbers or words; strings contain no raw line breaks."""

JsonObject = dict[str, Any]


def describe(app: FastAPI) -> None:
    """Replace FastAPI's OpenAPI document by a shorter one with problem responses."""
    generate = app.openapi

    def openapi() -> JsonObject:
        if app.openapi_schema is None:
            app.openapi_schema = _condense(generate())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def openapi_text(app: FastAPI) -> str:
    """Get the description as it is kept in the repository, formatted as Prettier does."""
    return _SHORT_ARRAY.sub(_join_lines, json.dumps(app.openapi(), indent=2, ensure_ascii=False)) + "\n"


def _join_lines(array: re.Match[str]) -> str:
    joined = f"[{', '.join(line.strip(' ,') for line in array[1].splitlines())}]"
    return joined if len(joined) <= MAX_WIDTH else array[0]


def _condense(document: JsonObject) -> JsonObject:
    """Move shared parts to the components, and drop redundant ones."""
    components = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["schemas"]["Problem"] = Problem.model_json_schema()
    for name, schema in components["schemas"].items():
        schema.pop("title", None)  # as its properties' titles: the name in other letters
        if name in examples():
            schema["examples"] = [examples()[name]]
        for member in schema.get("properties", {}).values():
            member.pop("title", None)
    document["security"] = [{BEARER: []}]
    components |= {"parameters": {}, "responses": {}, "examples": {}, "headers": HEADERS}
    for operation in _operations(document):
        if operation.get("security") == document["security"]:
            del operation["security"]
        else:
            operation["security"] = []
        _describe_headers(operation)
        _share_responses(operation["responses"], components)
        for parameter in operation.get("parameters", ()):
            _simplify_parameter(parameter)
    _share_parameters(document, components["parameters"])
    _simplify(document)
    return document


def _operations(document: JsonObject) -> Iterator[JsonObject]:
    for methods in document["paths"].values():
        yield from methods.values()


def _describe_headers(operation: JsonObject) -> None:
    """List the headers of successful responses."""
    responses = operation["responses"]
    parameters = {parameter["name"] for parameter in operation.get("parameters", ())}
    for status, response in responses.items():
        # A change under If-Match answers with the new tag, and with none if it was only proposed.
        tagged = "304" in responses or ("If-Match" in parameters and status == "200")
        names = ["ETag"] * tagged + ["Idempotent-Replayed"] * ("Idempotency-Key" in parameters)
        if names and status.startswith("2"):
            response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _share_responses(responses: JsonObject, components: JsonObject) -> None:
    """Replace responses shared by operations with references."""
    responses.get("422", {}).get("content", {}).pop("application/json", None)  # FastAPI's own form
    for status, response in responses.items():
        codes = response.get("content", {}).get(PROBLEM_JSON, {}).get("examples", {})
        components["examples"] |= {code: problem_example(code) for code in codes}
        name = "NotModified" if status == "304" else "Or".join(_pascal(code) for code in codes)
        if name and len(codes) <= MAX_SHARED_CODES:
            components["responses"][name] = response
            responses[status] = {"$ref": f"#/components/responses/{name}"}


def _simplify_parameter(parameter: JsonObject) -> None:
    """Drop redundant members of a parameter's schema, and null, which no query or header can hold."""
    schema = parameter["schema"]
    for member in ("title", "description"):
        schema.pop(member, None)
    kinds = schema.pop("anyOf", [schema])
    schema |= kinds[0]


def _share_parameters(document: JsonObject, shared: JsonObject) -> None:
    """Replace parameters shared by operations with references; a second one of a name has also that of its tag."""
    uses = Counter(json.dumps(each) for operation in _operations(document) for each in operation.get("parameters", ()))
    for operation in _operations(document):
        for index, parameter in enumerate(operation.get("parameters", ())):
            if uses[json.dumps(parameter)] > 1:
                name = _pascal(parameter["name"])
                if shared.setdefault(name, parameter) != parameter:
                    name = _pascal(operation["tags"][0]) + name
                    shared[name] = parameter
                operation["parameters"][index] = {"$ref": f"#/components/parameters/{name}"}


def _simplify(value: object) -> None:
    """Refer to the event schema, and merge choices with null into a type list."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _simplify(each)
    if isinstance(value, dict) and value.get("format") == EVENT_FORMAT:
        value["$ref"] = "#/components/schemas/Event"
        del value["format"]
    if isinstance(value, dict) and isinstance(kinds := value.get("anyOf"), list):
        given = [kind for kind in kinds if kind != {"type": "null"}]
        if len(given) == 1 < len(kinds) and isinstance(given[0].get("type"), str) and "enum" not in given[0]:
            del value["anyOf"]
            value |= given[0] | {"type": [given[0]["type"], "null"]}


def _pascal(name: str) -> str:
    return "".join(word[0].upper() + word[1:] for word in name.replace("-", "_").split("_"))
