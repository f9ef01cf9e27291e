"""Per-process cache of immutable or version-checked ledger data."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from app.ledger.account_records import AccountRecord
from app.ledger.plans import PlannedItem
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.service.charging.unit_of_work import UnitOfWork

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

    def remember(self, work: UnitOfWork) -> None:
        """Cache the rows of a committed unit of work."""
        owner = work.organisation_id
        self.accounts.put_many(
            ((owner, each), replace(record, uncompacted={}) if record.uncompacted is None else record)
            for each, record in (work.unlocked | work.accounts).items()
        )
        for run_id, reservation in work.reservations.items():
            own = work.accounts[run_id]
            plan = CachedPlan(own.account.version, own.updated_at, reservation.items)
            self.plans.put((owner, reservation.id), plan)
        for (relation, grid_version), costs in work.added_costs.items():
            self.costs.put_events(CostTable(owner, relation, grid_version), costs)
