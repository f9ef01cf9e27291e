"""Per-process cache of immutable or version-checked ledger data."""

from dataclasses import dataclass, field
from datetime import datetime

from app.ledger.account_records import AccountRecord
from app.ledger.reservations import PlannedItem
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.dp_events import CostCache

Key = tuple[str, str]
"""Organisation id and id of an object in it."""


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A reservation's plan at one version of its run's account."""

    version: int
    updated_at: datetime
    items: tuple[PlannedItem, ...]


@dataclass
class LedgerCache:
    """Ledger data that is kept between transactions.

    Args:
        paths: accounts of a run by depth and id; a run never moves.
        accounts: valid if the database has the same version and time of change (ADR 0009).
        costs: committed costs of events, which never change.
        plans: remaining plans of reservations; valid for one version of the run's account, which every use of a plan
            charges.
        reserved: runs last seen with an active reservation; a hint of what to lock.
    """

    paths: LruCache[Key, tuple[str, ...]] = field(default_factory=lambda: LruCache(16384))
    accounts: LruCache[Key, AccountRecord] = field(default_factory=lambda: LruCache(2048))
    costs: CostCache = field(default_factory=CostCache)
    plans: LruCache[Key, CachedPlan] = field(default_factory=lambda: LruCache(2048))
    reserved: LruCache[Key, bool] = field(default_factory=lambda: LruCache(16384))
