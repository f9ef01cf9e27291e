"""Pages of the overview, and of a population or a budget."""

from typing import Annotated, Final

from anyio import to_thread
from fastapi import Query, Request, Response
from pydantic import Field

from app.accounting.events import MAX_NOISE_MULTIPLIER, MIN_NOISE_MULTIPLIER
from app.api.pagination import decode_cursor, encode_cursor
from app.api.routers.accounts import HISTORIANS
from app.charts.account_charts import account_chart, share_chart
from app.dashboard.formatting import RELATIONS
from app.dashboard.forms import Fields, read_fields
from app.dashboard.page_context import PageContext, PageDep, router
from app.ledger.permissions import Permission
from app.service.queries.account_detail import get_account_detail
from app.service.queries.overview import read_change_token, read_overview
from app.service.queries.whatif import HypotheticalRun

routes = router()

ASKED: Final = ("steps", "noise", "rate")


class PlanFields(Fields):
    """Fields of the what-if form."""

    steps: int = Field(default=10_000, ge=1, le=1_000_000_000)
    noise: float = Field(default=1.1, ge=MIN_NOISE_MULTIPLIER, le=MAX_NOISE_MULTIPLIER)
    rate: float = Field(default=0.004, gt=0, le=1)

    def plan(self) -> HypotheticalRun:
        """Get the hypothetical run."""
        return HypotheticalRun(self.steps, self.noise, self.rate)


@routes.get("/")
def show_overview(request: Request, page: PageDep, find: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show an organisation at a glance."""
    page.check_etag(page.minute, read_change_token(page.context))
    seen = read_overview(page.context, request.app.state.account_statuses, wanted=find)
    opens = page.has_permission(Permission.ACCOUNT_MANAGE) and page.context.principal.scope is None
    return page.render("overview.html", seen=seen, find=find, opens=opens, relations=RELATIONS)


@routes.get("/accounts/{account_id}")
async def show_account(
    account_id: str, request: Request, page: PageDep, after: Annotated[str | None, Query(max_length=200)] = None
) -> Response:
    """Show the spending, the children and a what-if form of an account."""
    return await to_thread.run_sync(_shown, account_id, request, page, after, limiter=HISTORIANS)


def _shown(account_id: str, request: Request, page: PageContext, after: str | None) -> Response:
    page.check_etag(page.minute, read_change_token(page.context))
    given, state = dict(request.query_params), request.app.state
    fields, faults = read_fields(PlanFields, given)
    plan = None if fields is None else fields.plan()
    seen = get_account_detail(
        page.context, state.account_statuses, state.account_histories, account_id, decode_cursor(after), plan
    )
    record = seen.view.record
    return page.render(
        "account.html",
        seen=seen,
        following=encode_cursor(seen.runs.next),
        record=record,
        account=record.account,
        status=seen.tree.status,
        chart=account_chart(seen.history, record.alert_settings.thresholds),
        shares=share_chart(seen.history),
        signed=state.signer is not None,
        fields=fields,
        values=PlanFields().model_dump() | {name: given[name] for name in ASKED if name in given},
        faults=faults,
    )
