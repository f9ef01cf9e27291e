"""Write the changes of units of work after their decisions, and cache their rows after the commit."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord, watermark_of
from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.runs.run import Run
from app.persistence.repositories import alerts, balances, decisions, dp_events, reservations, runs
from app.persistence.repositories.dp_events import CostTable
from app.service.alerts.alert_factory import threshold_alerts
from app.service.charging.ledger_state import CachedRun, LedgerState
from app.service.charging.unit_of_work import UnitOfWork


def save(tx: Connection, *works: UnitOfWork) -> None:
    """Write all changes of units of work; rows of several organisations go in the same statements."""
    for work in works:
        _raise_threshold_alerts(work)
        _save_referenced(tx, work)
    decided = [entry for work in works for entry in work.decided]
    if decided:
        decisions.add_all(tx, decided, [(work.organisation_id, *each) for work in works for each in work.new_ranges])
    moved = [work.run_change(run_id) for work in works for run_id in sorted(work.changed_runs)]
    if moved:
        runs.save_all(tx, moved)
    used = [
        (work.organisation_id, work.reservations[run_id], places)
        for work in works
        for run_id, places in sorted(work.changed_items.items())
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
    """Write a run and a new version of its account."""
    work.move(run)
    work.renew(run.account_id, now)
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
    if work.mentioned:
        dp_events.remember(tx, work.organisation_id, work.mentioned)
    for closed, now in work.closed:  # before another is added: a run has one active reservation
        reservations.close(tx, work.organisation_id, closed, now)
    for granted, now in work.granted:
        reservations.save_waiting(tx, work.organisation_id, granted, now)
    for opened, reserved, now in (*work.opened, *work.queued):
        reservations.add(tx, work.organisation_id, opened, reserved, now)


def _raise_threshold_alerts(work: UnitOfWork) -> None:
    """Raise alerts for thresholds reached; the watermark makes most checks one comparison."""
    for account_id in sorted(work.changed):
        record = work.record(account_id)
        assert record.watermark is not None, "thresholds are read before an account changes"
        if record.watermark.holds(record.account.spent):
            continue
        watch = watermark_of(record.account, record.alert_settings.thresholds)
        crossed = record.alert_settings.thresholds[record.watermark.passed : watch.passed]
        work.alerts.extend(threshold_alerts(record.account, crossed, record.updated_at))
        work.accounts[account_id] = CountedAccount(replace(record, watermark=watch))


def remember(state: LedgerState, work: UnitOfWork) -> None:
    """Cache the rows of a committed unit of work."""
    owner = work.organisation_id
    state.accounts.put_many(
        ((owner, each), _compacted(counted.record) if counted.record.must_compact else counted)
        for each, counted in work.accounts.items()
    )
    state.current.update((owner, each) for each in work.accounts)
    if work.changed:
        state.stored_costs.update((owner, rule, event) for rule, costs in work.costs.items() for event in costs)
    state.runs.put_many(
        ((owner, run_id), CachedRun(work.paths[run_id], run, work.reservations.get(run_id)))
        for run_id, run in work.runs.items()
    )
    if work.unlocked:
        known = state.accounts.get_many([(owner, each) for each in work.unlocked])
        new = {each: record for each, record in work.unlocked.items() if (owner, each) not in known}
        state.accounts.put_many(((owner, each), CountedAccount(record)) for each, record in new.items())
    for (relation, grid_version), costs in work.added_costs.items():
        state.costs.put_events(CostTable(owner, relation, grid_version), costs)


def _compacted(record: AccountRecord) -> CountedAccount:
    """Cache an account whose curves were written."""
    return CountedAccount(record.with_written_curves())
