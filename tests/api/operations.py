"""The operations of the OpenAPI document, to be walked by tests."""

import re
from dataclasses import dataclass
from typing import Any

from app.main import create_app
from app.settings import Settings

APP = create_app(Settings(database_url="sqlite:///never-opened.db"))
DOCUMENT: dict[str, Any] = APP.openapi()
PUBLIC = {"/healthz", "/readyz"}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.described["operationId"])

    def at(self, run_id: str, budget_id: str, population_id: str) -> str:
        """The path with ids in it."""
        return self.path.format(run_id=run_id, budget_id=budget_id, population_id=population_id)

    def takes(self, method: str, path: str) -> bool:
        """Whether a request belongs to this operation."""
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(self.path))
        return method == self.method and re.fullmatch(pattern, path) is not None


OPERATIONS = [
    Operation(method.upper(), path, described)
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
]
GUARDED = [operation for operation in OPERATIONS if operation.path not in PUBLIC]
POSTS = [operation for operation in GUARDED if operation.method == "POST"]
READS = [operation for operation in GUARDED if operation.method == "GET"]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or what its reference points to."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][reference.rsplit("/", 1)[1]]
    return found
