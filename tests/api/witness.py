"""A witness of every answer: what the service says must be what its OpenAPI document promises."""

from functools import cache
from typing import Any

from openapi_schema_validator import OAS31Validator

from tests.api.operations import DOCUMENT, OPERATIONS

PROBLEM_JSON = "application/problem+json"
LONG = 20
"""Of a longer list the first items and the last are compared: the code that made them made the others."""


@cache
def _validator(operation_id: str, status: str, media_type: str) -> OAS31Validator:
    (operation,) = (operation for operation in OPERATIONS if operation.id == operation_id)
    content = operation.described["responses"][status]["content"]
    return OAS31Validator(content[media_type]["schema"] | {"components": DOCUMENT["components"]})


def _shortened(value: Any) -> Any:  # noqa: ANN401 - JSON is anything
    """Leave out of long lists what lies between their first items and their last."""
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part) for part in (value if len(value) <= LONG else [*value[: LONG - 1], value[-1]])]
    return value


def check_answer(method: str, path: str, status: int, media_type: str, body: Any) -> None:  # noqa: ANN401 - JSON is anything
    """Compare one answer with the document; paths that the document does not know are left alone."""
    found = [operation for operation in OPERATIONS if operation.takes(method, path)]
    if not found:
        return
    (operation,) = found
    assert str(status) in operation.described["responses"], f"{operation.id} answers {status}: undocumented"
    if status == 304:
        return
    content = operation.described["responses"][str(status)]["content"]
    assert media_type in content, f"{operation.id} answers {status} as {media_type}: undocumented"
    validator = _validator(operation.id, str(status), media_type)
    errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(_shortened(body))]
    assert not errors, f"{operation.id} answers {status}, but not as its schema says: {errors}"
    if media_type == PROBLEM_JSON:
        assert body["status"] == status
        assert body["code"] in content[media_type]["examples"], f"{operation.id} answers {body['code']}: undocumented"


def without_request_id(reply: Any) -> dict[str, Any]:  # noqa: ANN401 - a reply of any client
    """An answer but for the name of its request, which two never share."""
    return {name: value for name, value in reply.json().items() if name != "request_id"}
