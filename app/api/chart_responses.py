"""Chart responses, rendered only if the client's copy is outdated."""

import hashlib
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any, Final

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from app.api.problems import READ_ERRORS, cacheable_responses
from app.api.route import not_modified
from app.charts.model import Chart
from app.charts.render import ChartTheme, Frame, PictureKind, draw
from app.version import VERSION

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""Content-Security-Policy of images: matplotlib's SVGs contain styles, and no script may run."""

DRAWERS: Final = CapacityLimiter(1)
"""Renders one image at a time, without blocking threads of other requests."""


def _frames(kind: PictureKind) -> Callable[..., Awaitable[Frame]]:
    """Make the dependency that reads an image's frame from the query."""

    async def frame(
        theme: Annotated[ChartTheme, Query(description="Dark on light, or light on dark.")] = ChartTheme.LIGHT,
        width: Annotated[int, Query(ge=200, le=2000, description="In pixels.")] = 760,
        height: Annotated[int, Query(ge=120, le=1200, description="In pixels.")] = 340,
    ) -> Frame:
        return Frame(kind, theme, width, height)

    return frame


AsSvg = Annotated[Frame, Depends(_frames(PictureKind.SVG))]
AsPng = Annotated[Frame, Depends(_frames(PictureKind.PNG))]


def chart_route_docs(kind: PictureKind) -> dict[str, Any]:
    """Build the OpenAPI documentation of a chart route."""
    content = {kind.media_type: {"schema": {"type": "string"}}}
    return {
        "tags": ["charts"],
        "response_class": Response,
        "responses": {200: {"content": content, "description": "OK"}} | cacheable_responses(*READ_ERRORS),
    }


async def chart_response(request: Request, chart: Chart, frame: Frame) -> Response:
    """Respond with an image and its entity tag, or 304."""
    known = [VERSION, version("matplotlib"), chart.json(), frame]
    tag = f'"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"'
    there = not_modified(request, tag)
    if there is not None:
        return there
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Content-Security-Policy": POLICY}
    return Response(await to_thread.run_sync(draw, chart, frame, limiter=DRAWERS), 200, headers, frame.kind.media_type)
