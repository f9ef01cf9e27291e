"""A witness of every answer: what the service says must be what its OpenAPI document promises."""

from typing import Any

from tests.api.operations import OPERATIONS, errors

PROBLEM_JSON = "application/problem+json"


def check_answer(method: str, path: str, status: int, media_type: str, body: Any) -> None:  # noqa: ANN401 - JSON is anything
    """Compare one answer with the document; paths that the document does not know are left alone."""
    found = [operation for operation in OPERATIONS if operation.takes(method, path)]
    if not found:
        return
    (operation,) = found
    assert str(status) in operation.described["responses"], f"{operation.id} answers {status}: undocumented"
    if status == 304:
        return
    if status == 204:
        assert (body, operation.described["responses"]["204"]["content"]) == (None, {}), f"{operation.id}: {body}"
        return
    content = operation.described["responses"][str(status)]["content"]
    assert media_type in content, f"{operation.id} answers {status} as {media_type}: undocumented"
    wrong = errors(content[media_type]["schema"], body)
    assert not wrong, f"{operation.id} answers {status}, but not as its schema says: {wrong}"
    if media_type == PROBLEM_JSON:
        assert body["status"] == status
        assert body["code"] in content[media_type]["examples"], f"{operation.id} answers {body['code']}: undocumented"


def without_request_id(reply: Any) -> dict[str, Any]:  # noqa: ANN401 - a reply of any client
    """An answer but for the name of its request, which two never share."""
    return {name: value for name, value in reply.json().items() if name != "request_id"}
