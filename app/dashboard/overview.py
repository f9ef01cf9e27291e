"""The first page: every tree of budgets by urgency, what runs now, and what was refused."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.dashboard.formatting import RELATIONS
from app.dashboard.page_context import Visiting, router
from app.ledger.permissions import Permission
from app.service.queries.overview import read_change_token, read_overview

routes = router()


@routes.get("/")
def show_overview(request: Request, visit: Visiting, find: Annotated[str, Query(max_length=200)] = "") -> Response:
    """An organisation at a glance."""
    tag = visit.tag(visit.minute, read_change_token(visit.call))
    unchanged = visit.unchanged(tag)
    if unchanged is not None:
        return unchanged
    seen = read_overview(visit.call, request.app.state.standings, wanted=find)
    opens = visit.may(Permission.ACCOUNT_MANAGE) and visit.call.principal.scope is None
    return visit.show("overview.html", tag=tag, seen=seen, find=find, opens=opens, relations=RELATIONS)
