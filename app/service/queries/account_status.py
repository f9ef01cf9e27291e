"""Status of accounts: spending, reservations and burn rate, cached until an account changes; and damaged rows."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord
from app.ledger.accounts import AccountKind
from app.ledger.alerts import share_used
from app.ledger.filters import Limit
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import accounts, overview_queries
from app.persistence.repositories.overview_queries import AccountSummary
from app.persistence.repositories.usage_history import Reading
from app.persistence.tolerant import DAMAGED
from app.service.alerts.forecasts import base_readings, extrapolate
from app.service.auth.request_context import RequestContext

T = TypeVar("T")

CACHED_ACCOUNTS: Final = 50_000
"""Accounts whose status is cached; each takes less than a kilobyte."""

PAGE: Final = 500
"""Accounts read at once."""

SOON: Final = timedelta(days=7)
AHEAD: Final = timedelta(days=30)

NEARLY_EXHAUSTED: Final = 0.98
LOW: Final = 0.8
HALF: Final = 0.5


class Severity(StrEnum):
    """How urgent the state of an account is, most urgent first."""

    OVER = "over"
    EXHAUSTED = "exhausted"
    LOW = "low"
    HALF = "half"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """The state of a population or a budget.

    Args:
        limit: None if the account's row is damaged, so that its spending is unknown.
        epsilon: spent, by the account's filter at its delta.
        epsilon_including_reserved: spent and reserved.
        share: of the limit that is spent, as the filter counts it.
        quarantine: the reason, if the account is quarantined.
        per_day: growth of the share a day; None if there is not enough data.
        empty_at: when the limit is reached at that rate; None if never or unknown.
        now: time of reading; None until the burn rate is known.
    """

    id: str
    kind: AccountKind
    parent_id: str | None
    population_id: str
    name: str
    path: str
    depth: int
    created_at: datetime
    quarantine: str | None
    limit: Limit | None = None
    epsilon: float = math.inf
    epsilon_including_reserved: float = math.inf
    has_reserved: bool = False
    share: float = math.inf
    per_day: float | None = None
    empty_at: datetime | None = None
    now: datetime | None = None

    @property
    def remaining(self) -> float:
        """Epsilon neither spent nor reserved, at the account's own delta; at least 0."""
        if self.limit is None:
            return 0.0
        return max(0.0, self.limit.epsilon - max(self.epsilon, self.epsilon_including_reserved))

    @property
    def reserved(self) -> float:
        """Epsilon that reservations add; infinite if the loss is unbounded."""
        together = self.epsilon_including_reserved
        return math.inf if math.isinf(together) else together - self.epsilon

    @property
    def utilisation(self) -> float:
        """Share of the limit that is spent or reserved."""
        return math.inf if self.limit is None else max(self.share, self.epsilon_including_reserved / self.limit.epsilon)

    @property
    def time_to_exhaustion(self) -> timedelta | None:
        """Time until the limit is reached; None if never or unknown."""
        return None if self.empty_at is None or self.now is None else max(timedelta(0), self.empty_at - self.now)

    @property
    def severity(self) -> Severity:
        """How urgent the account's state is."""
        ends_in = self.time_to_exhaustion
        if self.limit is None or self.epsilon > self.limit.epsilon or self.quarantine is not None:
            return Severity.OVER
        if self.utilisation >= NEARLY_EXHAUSTED:
            return Severity.EXHAUSTED
        if self.utilisation >= LOW or (ends_in is not None and ends_in <= SOON):
            return Severity.LOW
        return Severity.HALF if self.utilisation >= HALF or (ends_in is not None and ends_in <= AHEAD) else Severity.OK

    @property
    def sort_key(self) -> tuple[int, float, str]:
        """Sorts the most urgent account first."""
        return _SEVERITIES.index(self.severity), -self.utilisation, self.path


_SEVERITIES: Final = tuple(Severity)


class AccountStatusCache:
    """Cache of account statuses. Thread-safe."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str], tuple[tuple[object, ...], AccountStatus]] = LruCache(CACHED_ACCOUNTS)

    def read(self, tx: Connection, context: RequestContext, *, within: str | None = None) -> list[AccountStatus]:
        """Get the status of visible accounts, or of one and those under it, parents first, without burn rates."""
        found = overview_queries.list_summaries(tx, context.organisation_id, within or context.principal.scope)
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
        return [kept for each in found if (kept := known[each.id]) is not None]

    def _cached(self, outline: AccountSummary) -> AccountStatus | None:
        kept = self._known.get(outline.key)
        return kept[1] if kept is not None and kept[0] == outline.mark else None


def read_tolerating_damage(
    tx: Connection, organisation_id: str, ids: Sequence[str], make: Callable[[AccountRecord], T]
) -> tuple[dict[str, T], list[str]]:
    """Apply `make` to accounts; return the results by id, and the ids of damaged accounts.

    An account is damaged if its row cannot be read, or if `make` raises one of `DAMAGED`.
    """
    try:
        return {each.account.id: make(each) for each in accounts.read_many(tx, organisation_id, ids)}, []
    except DAMAGED:
        if len(ids) <= 1:
            return {}, list(ids)
    middle = len(ids) // 2
    first, second = (read_tolerating_damage(tx, organisation_id, half, make) for half in (ids[:middle], ids[middle:]))
    return first[0] | second[0], first[1] + second[1]


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


def with_burn_rate(tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus]) -> list[AccountStatus]:
    """Add burn rate and forecast to the accounts that are shown."""
    bases = base_readings(tx, context.organisation_id, {each.id: each.created_at for each in statuses}, context.now)
    return [_with_rate(each, bases.get(each.id), context.now) for each in statuses]


def ancestors(statuses: Iterable[AccountStatus], of: Iterable[str]) -> set[str]:
    """Get the ids of accounts and their ancestors, as far as they are among the statuses."""
    above = {each.id: each.parent_id for each in statuses}
    found: set[str] = set()
    for account_id in of:
        at: str | None = account_id
        while at is not None and at in above and at not in found:
            found.add(at)
            at = above[at]
    return found


def _with_rate(status: AccountStatus, base: Reading | None, now: datetime) -> AccountStatus:
    if status.limit is None:
        return status
    seen = extrapolate(status.share, base, now)
    return replace(status, per_day=seen.forecast.per_day, empty_at=seen.exhaustion_at, now=now)
