"""Links to the pages, for answers that people read elsewhere."""

from contextvars import ContextVar
from typing import Final

from starlette.requests import Request

_ORIGIN: Final[ContextVar[str]] = ContextVar("_ORIGIN", default="")
"""Public origin of the service for this request's task; empty outside of requests."""


def remember_origin(request: Request, public_url: str | None, *, by_tls: bool | None = None) -> None:
    """Keep the origin of the service: the configured one, or else as the request has reached it.

    `by_tls` is whether it came by HTTPS; None: by the scheme of the request.
    """
    secure = request.url.scheme == "https" if by_tls is None else by_tls
    _ORIGIN.set(public_url or f"{'https' if secure else 'http'}://{request.url.netloc}")


def run_url(run_id: str) -> str:
    """Get the URL of a run's page."""
    return f"{_ORIGIN.get()}/runs/{run_id}"
