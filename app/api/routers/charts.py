"""Histories as images, for reports and pages without scripts."""

from dataclasses import replace

from anyio import to_thread
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.chart_responses import AsPng, AsSvg, chart_response, chart_route_docs
from app.api.route import ContextDep, router
from app.api.routers.accounts import HISTORIANS
from app.charts.account_charts import account_chart
from app.charts.model import Chart
from app.charts.render import PictureKind
from app.charts.run_charts import run_chart
from app.service.auth.request_context import RequestContext
from app.service.queries.account_history import AccountHistoryCache
from app.service.queries.run_detail import get_run_detail

routes = router()

POINTS = 200
"""Points of an account's chart; a run's chart has those of its page."""


@routes.get(
    "/runs/{run_id}/history.svg",
    summary="Get the epsilon history of a run as SVG",
    **chart_route_docs(PictureKind.SVG),
)
async def get_run_history_svg(run_id: str, request: Request, context: ContextDep, frame: AsSvg) -> Response:
    """Get a chart of the run's epsilon, limits, refusals and projection."""
    return await chart_response(request, await run_in_threadpool(_of_run, context, run_id), frame)


@routes.get(
    "/runs/{run_id}/history.png",
    summary="Get the epsilon history of a run as PNG",
    **chart_route_docs(PictureKind.PNG),
)
async def get_run_history_png(run_id: str, request: Request, context: ContextDep, frame: AsPng) -> Response:
    """Get the same chart as the SVG."""
    return await chart_response(request, await run_in_threadpool(_of_run, context, run_id), frame)


@routes.get(
    "/accounts/{account_id}/history.svg",
    summary="Get the epsilon history of an account as SVG",
    **chart_route_docs(PictureKind.SVG),
)
async def get_account_history_svg(account_id: str, request: Request, context: ContextDep, frame: AsSvg) -> Response:
    """Get a chart of the epsilon of a population or a budget, its limit and its changes."""
    chart = await to_thread.run_sync(_of_account, request, context, account_id, limiter=HISTORIANS)
    return await chart_response(request, chart, frame)


@routes.get(
    "/accounts/{account_id}/history.png",
    summary="Get the epsilon history of an account as PNG",
    **chart_route_docs(PictureKind.PNG),
)
async def get_account_history_png(account_id: str, request: Request, context: ContextDep, frame: AsPng) -> Response:
    """Get the same chart as the SVG."""
    chart = await to_thread.run_sync(_of_account, request, context, account_id, limiter=HISTORIANS)
    return await chart_response(request, chart, frame)


def _of_run(context: RequestContext, run_id: str) -> Chart:
    seen = get_run_detail(context, run_id)
    return _named(run_chart(seen), seen.record.own.account.path)


def _of_account(request: Request, context: RequestContext, account_id: str) -> Chart:
    histories: AccountHistoryCache = request.app.state.account_histories
    history = histories.read(context, account_id, POINTS)
    return _named(account_chart(history), history.account.path)


def _named(chart: Chart, path: str) -> Chart:
    """Add the account's path to the title, because the image stands on its own."""
    return replace(chart, title=f"{path}: {chart.title[:1].lower()}{chart.title[1:]}")
