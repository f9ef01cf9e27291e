"""Status of accounts, cached until an account changes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.alerts import share_used
from app.ledger.scheduling.availability import AccountRoom, Available, room_of
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import overview_queries
from app.persistence.repositories.overview_queries import AccountSummary
from app.service.accounts.availability import AvailabilityReader
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.accounts.locked_limits import LockedLimit
from app.service.auth.request_context import RequestContext
from app.service.queries.account_status import AccountStatus

CACHED_ACCOUNTS: Final = 50_000
"""Accounts whose status is cached; each takes less than a kilobyte."""

PAGE: Final = 500
"""Accounts read at once."""


class AccountStatusCache:
    """Cache of account statuses. Thread-safe."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str], tuple[tuple[object, ...], AccountStatus]] = LruCache(CACHED_ACCOUNTS)
        self._available = AvailabilityReader()

    def read(self, tx: Connection, context: RequestContext, *, within: str | None = None) -> list[AccountStatus]:
        """Get the status of visible accounts, or of one and those under it, parents first, without burn rates."""
        under = within or context.principal.scope
        found = overview_queries.list_summaries(tx, context.organisation_id, under)
        above = () if under is None else self._above(tx, context, under)
        known = self._read(tx, context, [*above, *found])
        shown = {each.id for each in found}
        return [each for each in known if each.id in shown]

    def read_above(self, tx: Connection, context: RequestContext, account_id: str) -> list[AccountStatus]:
        """Get the status of the accounts above one, parents first, also outside of the caller's scope."""
        return self._read(tx, context, self._above(tx, context, account_id))

    def _above(self, tx: Connection, context: RequestContext, account_id: str) -> list[AccountSummary]:
        along = overview_queries.list_summaries_along(tx, context.organisation_id, [account_id])
        return [each for each in along if each.id != account_id]

    def _read(self, tx: Connection, context: RequestContext, found: Sequence[AccountSummary]) -> list[AccountStatus]:
        """Get the status of accounts that are given with all above them, ancestors first."""
        known = {each.id: self._cached(each) for each in found}
        missing = [each for each in found if known[each.id] is None]
        for start in range(0, len(missing), PAGE):
            page = {each.id: each for each in missing[start : start + PAGE]}
            read, damaged = read_tolerating_damage(tx, context.organisation_id, list(page), status_of)
            for status in read.values():
                self._known.put((context.organisation_id, status.id), (page[status.id].mark, status))
            known |= read
            if damaged:
                known |= _damaged(tx, context.organisation_id, [page[each] for each in damaged])
        there = [(each, kept) for each in found if (kept := known[each.id]) is not None]
        rooms = [_room(each, kept) for each, kept in there]
        summaries = [each for each, _ in there]
        available, limits = self._available.read(tx, context.organisation_id, summaries, rooms, context.lapsed_by)
        return [
            self._with_available(context, each, kept, available[kept.id], limits.get(kept.id)) for each, kept in there
        ]

    def _with_available(
        self,
        context: RequestContext,
        summary: AccountSummary,
        status: AccountStatus,
        available: Available,
        locked: LockedLimit | None,
    ) -> AccountStatus:
        if (status.available, status.locked) == (available, locked):
            return status
        found = replace(status, available=available, locked=locked)
        if status.limit is not None:
            self._known.put((context.organisation_id, status.id), (summary.mark, found))
        return found

    def _cached(self, outline: AccountSummary) -> AccountStatus | None:
        kept = self._known.get(outline.key)
        return kept[1] if kept is not None and kept[0] == outline.mark else None


def _room(summary: AccountSummary, status: AccountStatus) -> AccountRoom:
    left = 0.0 if status.quarantine is not None else status.remaining
    return AccountRoom(status.id, status.path, status.parent_id, summary.max_partitions_per_unit is not None, left)


def status_of(record: AccountRecord) -> AccountStatus:
    """Get the status of a population or budget, without its burn rate."""
    account = record.account
    assert account.limit is not None, "populations and budgets have limits"
    has_reserved = not account.held.is_zero
    epsilon = account.epsilon()
    return AccountStatus(
        id=account.id,
        kind=account.kind,
        parent_id=account.parent_id,
        population_id=account.population_id,
        name=account.name,
        path=account.path,
        depth=account.depth,
        limit=account.limit,
        epsilon=epsilon,
        epsilon_including_reserved=account.epsilon(account.spent + account.held) if has_reserved else epsilon,
        has_reserved=has_reserved,
        share=share_used(account),
        created_at=record.created_at,
        quarantine=record.quarantine,
        parallel=account.partitions_per_unit is not None,
        room=room_of(account),
        reservations_only=account.allocation is not None,
    )


def _damaged(tx: Connection, organisation_id: str, outlines: Sequence[AccountSummary]) -> dict[str, AccountStatus]:
    """Describe accounts with damaged rows; never cached, since a restored row keeps its mark."""
    names = overview_queries.names_of(tx, organisation_id, [each.id for each in outlines])
    return {
        each.id: AccountStatus(
            id=each.id,
            kind=names[each.id].kind,
            parent_id=each.parent_id,
            population_id=each.population_id,
            name=names[each.id].path.rpartition("/")[2],
            path=names[each.id].path,
            depth=each.depth,
            created_at=each.updated_at,
            quarantine=each.quarantine,
        )
        for each in outlines
    }
