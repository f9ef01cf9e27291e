"""What a transaction decided, written in bulk; and what is remembered of it once it is durable."""

from dataclasses import replace

from app.accounting.events import fingerprint
from app.persistence.repositories import balances, decisions, events, reservations, runs
from app.service.charging.memory import Memory, Plan
from app.service.charging.working import WorkingSet


def save(work: WorkingSet) -> None:
    """Write everything that was decided.

    Args:
        work: with what is to be written; its transaction writes.
    """
    for kept, remembered in work.listed.items() if work.changed else ():
        # Prices are believed as they are remembered; an older state of the database may have been restored since.
        for event in events.without_curve(work.tx, kept, remembered):
            work.prices.setdefault(kept, {})[event] = remembered[event]
    for kept, curves in work.prices.items():
        events.add_curves(work.tx, kept, curves)
    for organisation_id, mentioned in work.mentioned.items():
        events.remember(work.tx, organisation_id, mentioned)
    if work.decided:
        decisions.add_all(work.tx, work.decided)
    if work.moved:
        runs.save_all(work.tx, [(key[0], work.runs[key]) for key in sorted(work.moved)])
    if work.taken:
        reservations.save_items(
            work.tx, [(key[0], work.reservations[key], places) for key, places in sorted(work.taken.items())]
        )
    if work.changed:
        records = [(key[0], work.accounts[key]) for key in sorted(work.changed)]
        balances.save(work.tx, [(of, each.account, each.since, each.updated_at) for of, each in records])


def remember(memory: Memory, work: WorkingSet) -> None:
    """Keep what is durable now.

    Args:
        memory: of this process.
        work: committed.
    """
    for key, record in (*work.beside.items(), *work.accounts.items()):
        memory.accounts.put(key, replace(record, since={}) if record.since is None else record)
    for (organisation_id, run_id), reservation in work.reservations.items():
        own = work.accounts[organisation_id, run_id]
        plan = Plan(own.account.version, own.updated_at, reservation.items)
        memory.plans.put((organisation_id, reservation.id), plan)
    for kept, curves in work.prices.items():
        for event, curve in curves.items():
            memory.prices.put(kept, fingerprint(event), curve)
