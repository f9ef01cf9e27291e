"""Write the changes of units of work after their decisions, and cache their rows after the commit."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.events import DpEvent
from app.ledger.account_records import AccountRecord, watermark_of
from app.ledger.counting import CountedAccount
from app.ledger.reservations import PlannedItem
from app.ledger.runs import Run
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import alerts, balances, decisions, dp_events, reservations, runs
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.persistence.sqlite_writer import Revision
from app.service.alerts.alert_factory import threshold_alerts
from app.service.charging.unit_of_work import CostRule, UnitOfWork

Key = tuple[str, str]
"""Organisation id and id of an object in it."""

MOST_VALIDATED = 63
"""Groups of an organisation that are validated after its rows were found to be others' again."""

MOST_CURRENT = 20_000
"""Accounts and costs known to be current; more than are cached."""


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A reservation's plan at one version of its run's account."""

    version: int
    updated_at: datetime
    items: tuple[PlannedItem, ...]


@dataclass(frozen=True, slots=True)
class CachedRun:
    """The accounts of a run by depth and id, and its state in the last group that read it, if any."""

    path: tuple[str, ...]
    run: Run | None = None


@dataclass
class LedgerCache:
    """Ledger data that is kept between transactions.

    Rows that were written or read since anybody else is known to have written are current. On SQLite they need not be
    read again, not even their versions; on PostgreSQL somebody may have written unnoticed (`groups`).

    Args:
        runs: a run never moves, and its reservation is a hint of what to lock.
        accounts: valid if the database has the same version and time of change (ADR 0009).
        costs: committed costs of events, which never change.
        plans: remaining plans of reservations; valid for one version of the run's account, which every use of a plan
            charges.
        revision: of the file after the last group; None on PostgreSQL, and before the first one.
        current: accounts whose rows, and those of their runs, are current.
        stored_costs: costs of which the same is true, by organisation, relation and grid.
        validating: groups of an organisation whose rows are to be validated before they are trusted again, and how many
            were to be after the last one that should not have been.
    """

    runs: LruCache[Key, CachedRun] = field(default_factory=lambda: LruCache(16384))
    accounts: LruCache[Key, CountedAccount] = field(default_factory=lambda: LruCache(2048))
    costs: CostCache = field(default_factory=CostCache)
    plans: LruCache[Key, CachedPlan] = field(default_factory=lambda: LruCache(2048))
    revision: Revision | None = None
    current: set[Key] = field(default_factory=set)
    stored_costs: set[tuple[str, CostRule, DpEvent]] = field(default_factory=set)
    validating: dict[str, tuple[int, int]] = field(default_factory=dict)

    def begin(self, revision: Revision | None) -> None:
        """Note the revision that a group begins with: on SQLite, all is current only after the previous one's."""
        written = revision is not None and revision != self.revision
        if written or len(self.current) + len(self.stored_costs) > MOST_CURRENT:
            self.current.clear()
            self.stored_costs.clear()
        self.revision = None  # until the group is committed

    def trusts(self, organisation_id: str) -> bool:
        """Check whether the current rows of an organisation may be used before they are validated; count its groups."""
        left, length = self.validating.get(organisation_id, (0, 0))
        if left:
            self.validating[organisation_id] = (left - 1, length)
        return not left

    def distrust(self, organisation_id: str) -> None:
        """Validate the rows of the next groups: twice as many as last time, if rows are often another's."""
        _, length = self.validating.get(organisation_id, (0, 0))
        length = min(2 * length + 1, MOST_VALIDATED)
        self.validating[organisation_id] = (length, length)


def save(tx: Connection, *works: UnitOfWork) -> None:
    """Write all changes of units of work; rows of several organisations go in the same statements."""
    for work in works:
        raise_threshold_alerts(work)
        _save_referenced(tx, work)
    decided = [entry for work in works for entry in work.decided]
    if decided:
        decisions.add_all(tx, decided, [(work.organisation_id, *each) for work in works for each in work.new_ranges])
    moved = [work.run_change(run_id) for work in works for run_id in sorted(work.changed_runs)]
    if moved:
        runs.save_all(tx, moved)
    advanced = [work.run_change(run_id) for work in works for run_id in sorted(work.advanced - work.changed_runs)]
    if advanced:
        runs.advance_all(tx, advanced)
    used = [
        (work.organisation_id, work.reservations[run_id], places)
        for work in works
        for run_id, places in sorted(work.changed_plan_items.items())
    ]
    if used:
        reservations.save_items(tx, used)
    changed = [(work.organisation_id, work.accounts[each]) for work in works for each in sorted(work.changed)]
    if changed:
        balances.save(tx, changed)
    frozen = [(work.organisation_id, work.record(each).account) for work in works for each in sorted(work.frozen)]
    if frozen:
        balances.freeze(tx, frozen)
    for work in works:
        if work.alerts:
            alerts.add(tx, work.organisation_id, work.alerts)


def save_transition(tx: Connection, work: UnitOfWork, now: datetime, run: Run) -> None:
    """Write a run and a new version of its account, which invalidates caches."""
    own = work.record(run.account_id).account
    work.move(run)
    work.change([replace(own, version=own.version + 1)], now)
    save(tx, work)


def _save_referenced(tx: Connection, work: UnitOfWork) -> None:
    """Write what decisions and runs refer to: costs, events and reservations."""
    for (relation, grid_version), costs in work.costs.items() if work.changed or work.queued else ():
        table = CostTable(work.organisation_id, relation, grid_version)
        new = work.added_costs.get((relation, grid_version), {})
        place = (work.organisation_id, (relation, grid_version))
        unknown = [each for each in costs if each not in new and (*place, each) not in work.stored_costs]
        lost = dp_events.without_curve(tx, table, unknown) if unknown else []  # by a backup that was restored
        if new or lost:
            added = work.added_costs[relation, grid_version] = new | {event: costs[event] for event in lost}
            dp_events.add_curves(tx, table, added)
    rules = [(work.organisation_id, rule) for rule in work.costs]
    mentioned = {each for each in work.mentioned if not any((*rule, each) in work.stored_costs for rule in rules)}
    if mentioned:
        dp_events.remember(tx, work.organisation_id, mentioned)
    for closed, now in work.closed:  # before another is added: a run has one active reservation
        reservations.close(tx, work.organisation_id, closed, now)
    for granted, now in work.granted:
        reservations.save_waiting(tx, work.organisation_id, granted, now)
    for opened, reserved, now in (*work.opened, *work.queued):
        reservations.add(tx, work.organisation_id, opened, reserved, now)


def raise_threshold_alerts(work: UnitOfWork) -> None:
    """Raise alerts for thresholds reached; the watermark makes most checks one comparison."""
    for account_id in sorted(work.changed):
        if work.accounts[account_id].charges:  # counts end before a threshold
            continue
        record = work.record(account_id)
        assert record.watermark is not None, "thresholds are read before an account changes"
        if record.watermark.holds(record.account.spent):
            continue
        watch = watermark_of(record.account, record.alert_settings.thresholds)
        crossed = record.alert_settings.thresholds[record.watermark.passed : watch.passed]
        work.alerts.extend(threshold_alerts(record.account, crossed, record.updated_at))
        work.accounts[account_id] = CountedAccount(replace(record, watermark=watch))


def remember(memory: LedgerCache, work: UnitOfWork) -> None:
    """Cache the rows of a committed unit of work."""
    owner = work.organisation_id
    memory.accounts.put_many(
        ((owner, each), counted if counted.record.uncompacted is not None else _compacted(counted.record))
        for each, counted in work.accounts.items()
    )
    memory.current.update((owner, each) for each in work.accounts)
    if work.changed:
        memory.stored_costs.update((owner, rule, event) for rule, costs in work.costs.items() for event in costs)
    memory.runs.put_many(((owner, run_id), CachedRun(work.paths[run_id], run)) for run_id, run in work.runs.items())
    if work.unlocked:
        known = memory.accounts.get_many([(owner, each) for each in work.unlocked])
        new = {each: record for each, record in work.unlocked.items() if (owner, each) not in known}
        memory.accounts.put_many(((owner, each), CountedAccount(record)) for each, record in new.items())
    for run_id, reservation in work.reservations.items():
        own = work.record(run_id)
        plan = CachedPlan(own.account.version, own.updated_at, reservation.items)
        memory.plans.put((owner, reservation.id), plan)
    for (relation, grid_version), costs in work.added_costs.items():
        memory.costs.put_events(CostTable(owner, relation, grid_version), costs)


def _compacted(record: AccountRecord) -> CountedAccount:
    """Cache an account whose curves were written."""
    return CountedAccount(replace(record, uncompacted={}))
