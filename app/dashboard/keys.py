"""Page of API keys."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.api.pagination import decode_cursor, split_page
from app.dashboard.page_context import PageDep, router
from app.dashboard.select_options import account_paths
from app.ledger.permissions import ISSUES, Role
from app.service.governance.api_keys import list_keys
from app.service.queries.account_paths import account_paths_of
from app.service.queries.overview import read_change_token

SHOWN: Final = 50

FOR: Final = {
    Role.VIEWER: "for dashboards: read",
    Role.TRAINER: "for training jobs: register runs and authorize steps",
    Role.PLANNER: "for planning: read and propose limits",
    Role.BUDGET_ADMIN: "for team leads: create budgets, lower limits, issue keys",
    Role.PRIVACY_OFFICER: "for the privacy office: everything except authorizing steps",
    Role.AUDITOR: "for auditors: read and verify",
    Role.ADMIN: "for set-up: everything",
}
"""Purpose of each role."""

routes = router()


@routes.get("/keys")
def show_keys(request: Request, page: PageDep, after: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show keys in order of creation, and the form that creates one."""
    tag = page.etag(page.minute, read_change_token(page.call))
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    found = list_keys(page.call, after=decode_cursor(after), limit=SHOWN + 1)
    shown, following = split_page(found, SHOWN, lambda key: key.id)
    lendable = ISSUES[page.call.principal.role]
    return page.render(
        "keys.html",
        tag=tag,
        keys=[(key, key.trouble(page.call.now)) for key in shown],
        following=following,
        scopes=account_paths_of(page.call, [page.call.principal.scope, *(key.scope for key in shown)]),
        roles=[(role, FOR[role]) for role in Role if role in lendable],
        paths=account_paths(request, page),
    )
