"""What a person may choose among."""

from typing import Final

from fastapi import Request

from app.dashboard.page_context import PageContext
from app.service.queries.account_status import AccountStatusCache

MOST: Final = 300
"""Accounts that are offered; of more than these, a path is typed."""


def account_paths(request: Request, visit: PageContext) -> list[str]:
    """Paths of populations and budgets within a visitor's reach, in order; those above first if there are many."""
    standings: AccountStatusCache = request.app.state.standings
    with visit.call.db.read(visit.call.organisation_id) as tx:
        found = standings.read(tx, visit.call)
    return sorted(each.path for each in found[:MOST])
