"""Status of accounts, cached until an account changes."""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection

from app.ledger.scheduling.account_status import AccountStatus
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import overview_queries
from app.service.accounts.availability import AvailabilityReader
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.auth.request_context import RequestContext

CACHED_ACCOUNTS: Final = 50_000
"""Accounts whose status is cached; each takes less than a kilobyte."""

PAGE: Final = 500
"""Accounts read at once."""


class AccountStatusCache:
    """Cache of account statuses. Thread-safe."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str], AccountStatus] = LruCache(CACHED_ACCOUNTS)
        self._available = AvailabilityReader()

    def read(self, tx: Connection, context: RequestContext, *, within: str | None = None) -> list[AccountStatus]:
        """Get the status of visible accounts, or of one and those under it, parents first, without burn rates."""
        under = within or context.principal.scope
        found = overview_queries.list_statuses(tx, context.organisation_id, under)
        above = () if under is None else self._above(tx, context, under)
        known = self._read(tx, context, [*above, *found])
        shown = {each.id for each in found}
        return [each for each in known if each.id in shown]

    def read_above(self, tx: Connection, context: RequestContext, account_id: str) -> list[AccountStatus]:
        """Get the status of the accounts above one, parents first, also outside of the caller's scope."""
        return self._read(tx, context, self._above(tx, context, account_id))

    def _above(self, tx: Connection, context: RequestContext, account_id: str) -> list[AccountStatus]:
        along = overview_queries.list_statuses_along(tx, context.organisation_id, [account_id])
        return [each for each in along if each.id != account_id]

    def _read(self, tx: Connection, context: RequestContext, found: Sequence[AccountStatus]) -> list[AccountStatus]:
        """Get the status of accounts that are given with all above them, ancestors first."""
        known = {each.id: kept for each in found if (kept := self._cached(each)) is not None}
        missing = [each for each in found if each.id not in known]
        for start in range(0, len(missing), PAGE):
            page = {each.id: each for each in missing[start : start + PAGE]}
            for status in self._read_balances(tx, context.organisation_id, page).values():
                self._known.put(status.key, status)
                known[status.id] = status
        # A damaged account has no numbers, and is never cached: a restored row has its mark again.
        there = [known.get(each.id, each) for each in found]
        statuses = self._available.with_available(tx, context.organisation_id, there, context.lapsed_by)
        for before, status in zip(there, statuses, strict=True):
            if status is not before and status.limit is not None:
                self._known.put(status.key, status)
        return statuses

    def _read_balances(
        self, tx: Connection, organisation_id: str, page: Mapping[str, AccountStatus]
    ) -> dict[str, AccountStatus]:
        """Add what undamaged accounts have spent."""
        found, _ = read_tolerating_damage(
            tx, organisation_id, list(page), lambda each: page[each.account.id].with_balance(each)
        )
        return found

    def _cached(self, status: AccountStatus) -> AccountStatus | None:
        kept = self._known.get(status.key)
        return kept if kept is not None and kept.mark == status.mark else None
