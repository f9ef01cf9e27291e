"""Home page: accounts by urgency, unfinished runs, latest refusals."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.dashboard.formatting import RELATIONS
from app.dashboard.page_context import PageDep, router
from app.ledger.permissions import Permission
from app.service.queries.overview import read_change_token, read_overview

routes = router()


@routes.get("/")
def show_overview(request: Request, page: PageDep, find: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show an organisation at a glance."""
    tag = page.etag(page.minute, read_change_token(page.call))
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    seen = read_overview(page.call, request.app.state.account_statuses, wanted=find)
    opens = page.has_permission(Permission.ACCOUNT_MANAGE) and page.call.principal.scope is None
    return page.render("overview.html", tag=tag, seen=seen, find=find, opens=opens, relations=RELATIONS)
