"""What a person may choose among."""

from typing import Final

from fastapi import Request

from app.dashboard.page_context import PageContext
from app.service.queries.account_status import AccountStatusCache

MOST: Final = 300
"""Accounts that are offered; of more than these, a path is typed."""


def account_paths(request: Request, page: PageContext) -> list[str]:
    """Paths of populations and budgets within a visitor's reach, in order; those above first if there are many."""
    statuses: AccountStatusCache = request.app.state.account_statuses
    with page.call.db.read(page.call.organisation_id) as tx:
        found = statuses.read(tx, page.call)
    return sorted(each.path for each in found[:MOST])
