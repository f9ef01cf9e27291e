"""Bulk writes of a unit of work, and caching after its commit."""

from collections.abc import Iterable
from dataclasses import replace

from app.accounting.events import fingerprint
from app.ledger.alert_thresholds import watermark_of
from app.ledger.runs import Run
from app.persistence.repositories import alerts, balances, decisions, dp_events, reservations, runs
from app.service.alerts.alert_factory import threshold_alerts
from app.service.auth.request_context import RequestContext
from app.service.charging.cache import CachedPlan, Key, LedgerCache
from app.service.charging.unit_of_work import UnitOfWork


def save(work: UnitOfWork) -> None:
    """Write all changes of a unit of work."""
    for kept, remembered in work.known_costs.items() if work.changed else ():
        # A restored backup may lack costs that this process has cached.
        for event in dp_events.without_curve(work.tx, kept, remembered):
            work.prices.setdefault(kept, {})[event] = remembered[event]
    for kept, curves in work.prices.items():
        dp_events.add_curves(work.tx, kept, curves)
    for organisation_id, mentioned in work.mentioned.items():
        dp_events.remember(work.tx, organisation_id, mentioned)
    if work.decided:
        decisions.add_all(work.tx, work.decided)
    if work.changed_runs:
        runs.save_all(work.tx, [(key[0], work.runs[key]) for key in sorted(work.changed_runs)])
    if work.changed_plan_items:
        reservations.save_items(
            work.tx,
            [(key[0], work.reservations[key], places) for key, places in sorted(work.changed_plan_items.items())],
        )
    if work.changed:
        changed = sorted(work.changed)
        _look_at_thresholds(work, changed)
        records = [(key[0], work.accounts[key]) for key in changed]
        balances.save(work.tx, [(of, each.account, each.since, each.updated_at) for of, each in records])
    for organisation_id in sorted(work.alerts):
        alerts.add(work.tx, organisation_id, work.alerts[organisation_id])


def save_transition(work: UnitOfWork, call: RequestContext, run: Run) -> None:
    """Write a run and a new version of its account, which invalidates caches."""
    own = work.accounts[call.organisation_id, run.account_id].account
    work.move(call.organisation_id, run)
    work.change(call.organisation_id, [replace(own, version=own.version + 1)], call.now)
    save(work)


def _look_at_thresholds(work: UnitOfWork, changed: Iterable[Key]) -> None:
    """Raise alerts for thresholds reached; the watermark makes most checks one comparison."""
    for key in changed:
        record = work.accounts[key]
        assert record.watch is not None, "thresholds are read before an account changes"
        if record.watch.holds(record.account.spent):
            continue
        watch = watermark_of(record.account, record.tells.thresholds)
        crossed = record.tells.thresholds[record.watch.passed : watch.passed]
        work.tell(key[0], threshold_alerts(record.account, crossed, record.updated_at))
        work.accounts[key] = replace(record, watch=watch)


def remember(memory: LedgerCache, work: UnitOfWork) -> None:
    """Cache the rows of a committed unit of work."""
    for key, record in (*work.unlocked_partitions.items(), *work.accounts.items()):
        memory.accounts.put(key, replace(record, since={}) if record.since is None else record)
    for (organisation_id, run_id), reservation in work.reservations.items():
        own = work.accounts[organisation_id, run_id]
        plan = CachedPlan(own.account.version, own.updated_at, reservation.items)
        memory.plans.put((organisation_id, reservation.id), plan)
    for kept, curves in work.prices.items():
        for event, curve in curves.items():
            memory.prices.put(kept, fingerprint(event), curve)
