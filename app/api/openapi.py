"""The OpenAPI description, as it is served and as it is kept in openapi/openapi.json."""

import base64
import hashlib
import json
import re
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from app.api.schemas.common import Problem

_SWAGGER: Final = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5"
_ICON: Final = "https://fastapi.tiangolo.com/img/favicon.png"
_SCRIPT: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


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


def document(app: FastAPI) -> None:
    """Let an application show its description under /docs."""

    @app.get("/docs", include_in_schema=False)
    def docs(request: Request) -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url=f"{request.scope.get('root_path', '')}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{_SWAGGER}/swagger-ui-bundle.js",
            swagger_css_url=f"{_SWAGGER}/swagger-ui.css",
            swagger_favicon_url=_ICON,
        )
        page.headers["Content-Security-Policy"] = _policy(bytes(page.body))
        return page


def _policy(page: bytes) -> str:
    """What the page may load: these files of Swagger's, the script that stands in it, and this service's own API."""
    own = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(page))
    scripts = " ".join(f"'sha256-{digest}'" for digest in own)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_SWAGGER}/swagger-ui-bundle.js {scripts}",
            f"style-src {_SWAGGER}/swagger-ui.css 'unsafe-inline'",  # Swagger writes styles into its elements
            f"img-src data: {_ICON}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
