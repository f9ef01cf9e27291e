"""API documentation with Swagger UI, served locally."""

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.dashboard.page_context import templates

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""The pages' policy, plus inline styles, which Swagger UI needs."""

routes = APIRouter(include_in_schema=False)


@routes.get("/docs")
async def show_docs(request: Request) -> Response:
    """Show Swagger UI; a signed-in user can try the operations that read."""
    description = f"{request.scope.get('root_path', '')}{request.app.openapi_url}"
    content = templates().get_template("docs.html").render(title=request.app.title, description=description)
    return HTMLResponse(content, headers={"Content-Security-Policy": POLICY})
