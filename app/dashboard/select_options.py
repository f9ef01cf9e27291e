"""Options of select fields."""

from typing import Final

from fastapi import Request

from app.dashboard.page_context import PageContext
from app.service.queries.account_status import AccountStatusCache

MOST: Final = 300
"""Accounts offered; with more, users type a path."""


def account_paths(request: Request, page: PageContext) -> list[str]:
    """List paths of visible accounts in order, those at the top first."""
    statuses: AccountStatusCache = request.app.state.account_statuses
    with page.call.db.read(page.call.organisation_id) as tx:
        found = statuses.read(tx, page.call)
    return sorted(each.path for each in found[:MOST])
