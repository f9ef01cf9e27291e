"""Links to the pages, for answers that people read elsewhere."""

from contextvars import ContextVar
from typing import Final

from starlette.requests import Request

_ORIGIN: Final[ContextVar[str]] = ContextVar("_ORIGIN", default="")
"""Public origin of the service for this request's task; empty outside of requests."""


def remember_origin(request: Request, public_url: str | None) -> None:
    """Keep the origin of the service: the configured one, or else as the request has reached it."""
    _ORIGIN.set(public_url or f"{request.url.scheme}://{request.url.netloc}")


def run_url(run_id: str) -> str:
    """Get the URL of a run's page."""
    return f"{_ORIGIN.get()}/runs/{run_id}"
