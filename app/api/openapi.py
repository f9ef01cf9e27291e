"""The OpenAPI description, as it is served and as it is kept in openapi/openapi.json."""

import json
from typing import Any

from fastapi import FastAPI

from app.api.schemas.common import Problem


def describe(app: FastAPI) -> None:
    """Let an application describe its problems as they are: problem+json, never FastAPI's own form."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = generate()
            schemas = described["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas["Problem"] = Problem.model_json_schema()
            for operations in described["paths"].values():
                for operation in operations.values():
                    invalid = operation["responses"].get("422", {}).get("content", {})
                    invalid.pop("application/json", None)
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def openapi_text(app: FastAPI) -> str:
    """The description as it is kept in the repository."""
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"
