"""The API's description, to be read and tried: Swagger UI, served by this service."""

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.dashboard.page_context import TEMPLATES

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""As that of the other pages, but that Swagger UI writes styles into its elements."""

routes = APIRouter(include_in_schema=False)


@routes.get("/docs")
async def show_docs(request: Request) -> Response:
    """The same page for everybody; who is signed in can try what reads."""
    description = f"{request.scope.get('root_path', '')}{request.app.openapi_url}"
    content = TEMPLATES.get_template("docs.html").render(title=request.app.title, description=description)
    return HTMLResponse(content, headers={"Content-Security-Policy": POLICY})
