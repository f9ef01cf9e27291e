"""Histories as images, for reports and pages without scripts."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Final

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.problems import READ_ERRORS, cacheable_responses
from app.api.route import ContextDep, Endpoint, not_modified, router
from app.api.routers.accounts import HISTORIANS
from app.charts.builders import account_chart, run_chart
from app.charts.model import Chart
from app.charts.render import ChartTheme, Frame, PictureKind, draw, require_drawing
from app.service.auth.request_context import RequestContext
from app.service.queries.account_history import AccountHistoryCache
from app.service.queries.run_detail import get_run_detail
from app.version import VERSION

routes = router("charts")

POINTS = 200
"""Points of an account's chart; a run's chart has those of its page."""

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""Content-Security-Policy of images: matplotlib's SVGs contain styles, and no script may run."""

DRAWERS: Final = CapacityLimiter(1)
"""Renders one image at a time, without blocking threads of other requests."""


async def _frame(
    request: Request,
    theme: Annotated[ChartTheme, Query(description="Dark on light, or light on dark.")] = ChartTheme.LIGHT,
    width: Annotated[int, Query(ge=200, le=2000, description="In pixels.")] = 760,
    height: Annotated[int, Query(ge=120, le=1200, description="In pixels.")] = 340,
) -> Frame:
    """Read an image's frame from the query, and its format from the path; ChartsNotInstalledError: there are none."""
    require_drawing()
    return Frame(PictureKind(request.url.path.rpartition(".")[2]), theme, width, height)


FrameDep = Annotated[Frame, Depends(_frame)]


def _chart(path: str, summary: str, kind: PictureKind) -> Callable[[Endpoint], Endpoint]:
    """Add a route that answers with an image."""
    content = {kind.media_type: {"schema": {"type": "string"}}}
    described = {200: {"content": content, "description": "OK"}} | cacheable_responses(
        *READ_ERRORS, "charts_not_installed"
    )
    return routes.get(path, summary=summary, response_class=Response, responses=described)


@_chart("/runs/{run_id}/history.svg", "Get the epsilon history of a run as SVG", PictureKind.SVG)
async def get_run_history_svg(run_id: str, request: Request, context: ContextDep, frame: FrameDep) -> Response:
    """Get a chart of the run's epsilon, limits, refusals and projection."""
    return await _response(request, await run_in_threadpool(_of_run, context, run_id), frame)


@_chart("/runs/{run_id}/history.png", "Get the epsilon history of a run as PNG", PictureKind.PNG)
async def get_run_history_png(run_id: str, request: Request, context: ContextDep, frame: FrameDep) -> Response:
    """Get the same chart as the SVG."""
    return await _response(request, await run_in_threadpool(_of_run, context, run_id), frame)


@_chart("/accounts/{account_id}/history.svg", "Get the epsilon history of an account as SVG", PictureKind.SVG)
async def get_account_history_svg(account_id: str, request: Request, context: ContextDep, frame: FrameDep) -> Response:
    """Get a chart of the epsilon of a population or a budget, its limit and its changes."""
    chart = await to_thread.run_sync(_of_account, request, context, account_id, limiter=HISTORIANS)
    return await _response(request, chart, frame)


@_chart("/accounts/{account_id}/history.png", "Get the epsilon history of an account as PNG", PictureKind.PNG)
async def get_account_history_png(account_id: str, request: Request, context: ContextDep, frame: FrameDep) -> Response:
    """Get the same chart as the SVG."""
    chart = await to_thread.run_sync(_of_account, request, context, account_id, limiter=HISTORIANS)
    return await _response(request, chart, frame)


def _of_run(context: RequestContext, run_id: str) -> Chart:
    seen = get_run_detail(context, run_id)
    return _named(run_chart(seen), seen.record.path_title)


def _of_account(request: Request, context: RequestContext, account_id: str) -> Chart:
    histories: AccountHistoryCache = request.app.state.account_histories
    history = histories.read(context, account_id, POINTS)
    return _named(account_chart(history), history.account.path)


def _named(chart: Chart, path: str) -> Chart:
    """Add the account's path to the title, because the image stands on its own."""
    return replace(chart, title=f"{path}: {chart.title[:1].lower()}{chart.title[1:]}")


async def _response(request: Request, chart: Chart, frame: Frame) -> Response:
    """Respond with an image and its entity tag, or 304."""
    known = [VERSION, version("matplotlib"), chart.json(), frame]
    tag = f'"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"'
    if (there := not_modified(request, tag)) is not None:
        return there
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Content-Security-Policy": POLICY}
    return Response(await to_thread.run_sync(draw, chart, frame, limiter=DRAWERS), 200, headers, frame.kind.media_type)
