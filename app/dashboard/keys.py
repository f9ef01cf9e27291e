"""API keys: who has one, what for and until when; issued, changed and withdrawn."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.api.pagination import decode_cursor, split_page
from app.dashboard.page_context import Visiting, router
from app.dashboard.select_options import account_paths
from app.ledger.permissions import ISSUES, Role
from app.service.governance.api_keys import list_keys
from app.service.queries.account_paths import read_paths
from app.service.queries.overview import read_change_token

SHOWN: Final = 50

FOR: Final = {
    Role.VIEWER: "dashboards: reads",
    Role.TRAINER: "training jobs: registers runs and takes steps",
    Role.PLANNER: "who prepares studies: reads, and proposes limits",
    Role.BUDGET_ADMIN: "a team's lead: opens budgets, lowers limits, issues keys",
    Role.PRIVACY_OFFICER: "the privacy office: everything but taking steps",
    Role.AUDITOR: "who checks the office: reads, and verifies",
    Role.ADMIN: "who sets the organisation up: everything",
}
"""What each role is for, in a few words."""

routes = router()


@routes.get("/keys")
def show_keys(request: Request, visit: Visiting, after: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Keys in the order of their making, and the form that makes one."""
    tag = visit.tag(visit.minute, read_change_token(visit.call))
    unchanged = visit.unchanged(tag)
    if unchanged is not None:
        return unchanged
    found = list_keys(visit.call, after=decode_cursor(after), limit=SHOWN + 1)
    shown, following = split_page(found, SHOWN, lambda key: key.id)
    lendable = ISSUES[visit.call.principal.role]
    return visit.show(
        "keys.html",
        tag=tag,
        keys=[(key, key.trouble(visit.call.now)) for key in shown],
        following=following,
        scopes=read_paths(visit.call, [visit.call.principal.scope, *(key.scope for key in shown)]),
        roles=[(role, FOR[role]) for role in Role if role in lendable],
        paths=account_paths(request, visit),
    )
