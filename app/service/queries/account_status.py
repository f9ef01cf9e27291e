"""How accounts stand: what is spent and held of each limit, and how fast; remembered as long as nothing changes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts import Account, AccountKind
from app.ledger.filters import Limit
from app.ledger.forecast import share_used
from app.ledger.windows import ALWAYS, Window
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import overview_queries
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.overview_queries import AccountSummary
from app.persistence.repositories.usage_snapshots import Reading
from app.service.alerts.forecasts import WINDOW, expected
from app.service.auth.request_context import RequestContext
from app.service.queries.damaged_rows import read_tolerating_damage

REMEMBERED: Final = 50_000
"""Accounts whose standing is remembered; each takes less than a kilobyte."""

PAGE: Final = 500
"""How many are read at once."""

SOON: Final = timedelta(days=7)
AHEAD: Final = timedelta(days=30)

FULL: Final = 0.98
NEAR: Final = 0.8
HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """How a population or a budget stands.

    Args:
        id: with its type prefix.
        kind: population or budget.
        parent_id: the account above; None for a population.
        population_id: the root of its tree.
        name: as given by its owner.
        path: of names.
        depth: 0 for a population.
        limit: epsilon and delta; None: the account's row is damaged, and nothing is known of what was spent.
        epsilon: spent, by its filter at its delta.
        epsilon_including_reserved: the same with what is set aside.
        holds: whether something is set aside.
        share: the part of the limit that is spent, as the filter counts it.
        window: when something may be charged.
        created_at: in UTC.
        quarantine: why writes to it are stopped, if they are.
        per_day: by how much the share grew a day; None: too little is known.
        empty_at: when the limit is reached at that pace; None: never, or nobody knows.
        now: when it was looked at.
    """

    id: str
    kind: AccountKind
    parent_id: str | None
    population_id: str
    name: str
    path: str
    depth: int
    limit: Limit | None
    epsilon: float
    epsilon_including_reserved: float
    holds: bool
    share: float
    window: Window
    created_at: datetime
    quarantine: str | None = None
    per_day: float | None = None
    empty_at: datetime | None = None
    now: datetime | None = None

    @property
    def left(self) -> float:
        """Epsilon that is neither spent nor held, at the account's own delta; at least 0."""
        return (
            0.0
            if self.limit is None
            else max(0.0, self.limit.epsilon - max(self.epsilon, self.epsilon_including_reserved))
        )

    @property
    def held(self) -> float:
        """What is set aside adds so much epsilon; infinite with a loss that has no bound."""
        return (
            math.inf if math.isinf(self.epsilon_including_reserved) else self.epsilon_including_reserved - self.epsilon
        )

    @property
    def part(self) -> float:
        """The part of the limit that is spent or held."""
        return math.inf if self.limit is None else max(self.share, self.epsilon_including_reserved / self.limit.epsilon)

    @property
    def lasts(self) -> timedelta | None:
        """How long it is until the limit is reached; None: nobody knows, or it never is."""
        return None if self.empty_at is None or self.now is None else max(timedelta(0), self.empty_at - self.now)

    @property
    def level(self) -> str:
        """How urgent it is: "over", "empty", "near", "half" or "calm"."""
        if self.limit is None or self.epsilon > self.limit.epsilon or self.quarantine is not None:
            return "over"
        if self.part >= FULL:
            return "empty"
        if self.part >= NEAR or (self.lasts is not None and self.lasts <= SOON):
            return "near"
        return "half" if self.part >= HALF or (self.lasts is not None and self.lasts <= AHEAD) else "calm"

    @property
    def words(self) -> str:
        """The same for people."""
        if self.limit is None:
            return "cannot be read"
        if self.quarantine is not None:
            return "stopped"
        return {
            "over": "over its limit",
            "empty": "nearly empty",
            "near": "running out",
            "half": "half used",
            "calm": "calm",
        }[self.level]

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Sorts the most urgent first."""
        return _LEVELS.index(self.level), -self.part, self.path


_LEVELS: Final = ("over", "empty", "near", "half", "calm")


class AccountStatusCache:
    """How accounts stood when they were read last; any thread may ask."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str], tuple[tuple[object, ...], AccountStatus]] = LruCache(REMEMBERED)

    def read(self, tx: Connection, call: RequestContext, *, beneath: str | None = None) -> list[AccountStatus]:
        """Every population and budget within the caller's reach, or beneath one; without their pace.

        Args:
            tx: a reader's transaction.
            call: who asks.
            beneath: only those on or beneath this account, which is within their reach.

        Returns:
            Those above first.
        """
        found = overview_queries.outlines(tx, call.organisation_id, beneath=beneath or call.principal.scope)
        known = {each.id: self._still(each) for each in found}
        missing = [each for each in found if known[each.id] is None]
        for start in range(0, len(missing), PAGE):
            page = {each.id: each for each in missing[start : start + PAGE]}
            read, damaged = read_tolerating_damage(tx, call.organisation_id, list(page), standing_of)
            for standing in read.values():
                self._known.put((call.organisation_id, standing.id), (page[standing.id].mark, standing))
            known |= read
            if damaged:
                known |= _damaged(tx, call.organisation_id, [page[each] for each in damaged])
        return [kept for each in found if (kept := known[each.id]) is not None]

    def _still(self, outline: AccountSummary) -> AccountStatus | None:
        kept = self._known.get(outline.key)
        return kept[1] if kept is not None and kept[0] == outline.mark else None


def standing_of(record: AccountRecord) -> AccountStatus:
    """How an account stands by itself.

    Args:
        record: of a population or a budget, as it is stored.
    """
    account = record.account
    assert account.limit is not None, "populations and budgets have limits"
    holds = not account.held.is_zero
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
        epsilon_including_reserved=_with_held(account) if holds else epsilon,
        holds=holds,
        share=share_used(account),
        window=account.window,
        created_at=record.created_at,
        quarantine=record.quarantine,
    )


def _damaged(tx: Connection, organisation_id: str, outlines: Sequence[AccountSummary]) -> dict[str, AccountStatus]:
    """How accounts stand whose rows are damaged; not remembered, since a row that was restored bears the old mark."""
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
            limit=None,
            epsilon=math.inf,
            epsilon_including_reserved=math.inf,
            holds=False,
            share=math.inf,
            window=ALWAYS,
            created_at=each.updated_at,
            quarantine=each.quarantine,
        )
        for each in outlines
    }


def with_burn_rate(tx: Connection, call: RequestContext, standings: Sequence[AccountStatus]) -> list[AccountStatus]:
    """The same with their pace and what it lets expect, as `outlook` says it of one.

    Args:
        tx: a reader's transaction.
        call: who asks, and when.
        standings: as many as are shown.
    """
    start = call.now - WINDOW
    older = [each.id for each in standings if each.created_at <= start]
    readings = overview_queries.readings_before(tx, call.organisation_id, older, start) if older else {}
    return [
        _paced(each, readings.get(each.id) if each.created_at <= start else Reading(0.0, each.created_at), call.now)
        for each in standings
    ]


def ancestors(standings: Iterable[AccountStatus], of: Iterable[str]) -> set[str]:
    """The ids of some accounts and of all above them, as far as they are among the standings."""
    above = {each.id: each.parent_id for each in standings}
    found: set[str] = set()
    for account_id in of:
        at: str | None = account_id
        while at is not None and at in above and at not in found:
            found.add(at)
            at = above[at]
    return found


def _paced(standing: AccountStatus, base: Reading | None, now: datetime) -> AccountStatus:
    if standing.limit is None:
        return standing
    seen = expected(standing.share, base, now)
    return replace(standing, per_day=seen.forecast.per_day, empty_at=seen.exhaustion_at, now=now)


def _with_held(account: Account) -> float:
    return account.epsilon(account.spent + account.held)
