"""Histories as SVG images, for reports and pages without scripts."""

import hashlib
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

from anyio import to_thread
from fastapi import Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.problems import READ_ERRORS, cacheable_responses
from app.api.route import ContextDep, not_modified, router
from app.api.routers.accounts import HISTORIANS
from app.charts.builders import account_chart, run_chart
from app.charts.model import Chart
from app.charts.render import MEDIA_TYPE, ChartTheme, Frame, draw
from app.service.auth.request_context import RequestContext
from app.service.queries.account_history import AccountHistoryCache
from app.service.queries.run_detail import get_run_detail
from app.version import VERSION

routes = router("charts")

POINTS = 200
"""Points of an account's chart; a run's chart has those of its page."""

POLICY: Final = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Content-Security-Policy of images: nothing is loaded, and no script may run."""


async def _frame(
    theme: Annotated[ChartTheme, Query(description="Dark on light, or light on dark.")] = ChartTheme.LIGHT,
    width: Annotated[int, Query(ge=200, le=2000, description="In pixels.")] = 760,
    height: Annotated[int, Query(ge=120, le=1200, description="In pixels.")] = 340,
) -> Frame:
    """Read an image's frame from the query."""
    return Frame(theme, width, height)


FrameDep = Annotated[Frame, Depends(_frame)]

_IMAGE: Final = {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}, "description": "OK"}
_picture = partial(routes.get, response_class=Response, responses={200: _IMAGE, **cacheable_responses(*READ_ERRORS)})
"""Adds a route that answers with an image."""


@_picture("/runs/{run_id}/history.svg", summary="Get the epsilon history of a run as SVG")
async def get_run_history_svg(run_id: str, request: Request, context: ContextDep, frame: FrameDep) -> Response:
    """Get a chart of the run's epsilon, limits, refusals and projection."""
    return await _response(request, await run_in_threadpool(_of_run, context, run_id), frame)


@_picture("/accounts/{account_id}/history.svg", summary="Get the epsilon history of an account as SVG")
async def get_account_history_svg(account_id: str, request: Request, context: ContextDep, frame: FrameDep) -> Response:
    """Get a chart of the epsilon of a population or a budget, its limit and its changes."""
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
    known = [VERSION, chart.json(), frame]
    tag = f'"{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"'
    if (there := not_modified(request, tag)) is not None:
        return there
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Content-Security-Policy": POLICY}
    return Response(await run_in_threadpool(draw, chart, frame), 200, headers, MEDIA_TYPE)
