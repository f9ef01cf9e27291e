"""What a process remembers of the ledger between transactions: what never changes, or the database vouches for."""

from dataclasses import dataclass, field
from datetime import datetime

from app.ledger.plans import PlannedItem
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.dp_events import CostCache

Key = tuple[str, str]
"""An organisation's id, and the id of something of it."""


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A reservation's plan, as it was when its run's account was as it was."""

    version: int
    updated_at: datetime
    items: tuple[PlannedItem, ...]


@dataclass
class LedgerCache:
    """What need not be read again.

    Args:
        paths: the accounts of a run, by depth and id; a run is never moved.
        accounts: as they were when they were last seen; they hold if the database names the same version and time of
            change (ADR 0009).
        prices: what was committed to the ledger's price list, where nothing is ever changed.
        plans: what is used of a reservation's plan; it holds if the run's account has the same version and time of
            change, since whatever takes out of a plan charges that account.
        reserved: runs that had an active reservation when they were last seen: a hint of what to lock.
    """

    paths: LruCache[Key, tuple[str, ...]] = field(default_factory=lambda: LruCache(16384))
    accounts: LruCache[Key, AccountRecord] = field(default_factory=lambda: LruCache(2048))
    prices: CostCache = field(default_factory=CostCache)
    plans: LruCache[Key, CachedPlan] = field(default_factory=lambda: LruCache(2048))
    reserved: LruCache[Key, bool] = field(default_factory=lambda: LruCache(16384))
