"""Page of proposals, and the form that changes a limit."""

from typing import Annotated, Final

from fastapi import Query, Request, Response

from app.api.pagination import decode_cursor, split_page
from app.dashboard.page_context import PageDep, router
from app.dashboard.policies import WORDS
from app.dashboard.select_options import account_paths
from app.ledger.errors import InsufficientScopeError, NotFoundError
from app.service.queries.overview import read_change_token
from app.service.queries.proposal_detail import (
    MOST_OPEN,
    read_current_limit,
    read_decided_proposals,
    read_open_proposals,
)

DECIDED: Final = 20
"""Decided proposals a page."""

routes = router()


@routes.get("/approvals")
def show_approvals(
    request: Request,
    page: PageDep,
    account: Annotated[str, Query(max_length=2000)] = "",
    before: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show open and decided proposals, and the limit form of one account."""
    tag = page.etag(read_change_token(page.call))
    unchanged = page.not_modified(tag)
    if unchanged is not None:
        return unchanged
    limit, fault, account = None, "", account.strip()
    if account:
        try:
            limit = read_current_limit(page.call, account)
            fault = "" if limit else "This run has no limit of its own. See the accounts above it."
        except (NotFoundError, InsufficientScopeError) as error:
            fault = error.detail
    waiting = read_open_proposals(page.call)
    decided, following = split_page(
        read_decided_proposals(page.call, before=decode_cursor(before), limit=DECIDED + 1),
        DECIDED,
        lambda each: each.proposal.id,
    )
    return page.render(
        "approvals.html",
        tag=tag,
        waiting=waiting[:MOST_OPEN],
        more=len(waiting) > MOST_OPEN,
        decided=decided,
        following=following,
        account=account,
        fault=fault,
        limit=limit,
        words=WORDS,
        paths=account_paths(request, page),
    )
