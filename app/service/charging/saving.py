"""What a transaction decided, written in bulk; and what is remembered of it once it is durable."""

from app.persistence.repositories import accounts, decisions, events, reservations, runs
from app.service.charging.memory import Memory
from app.service.charging.working import WorkingSet


def save(work: WorkingSet) -> None:
    """Write everything that was decided.

    Args:
        work: with what is to be written; its transaction writes.
    """
    for kept, curves in work.prices.items():
        events.add_curves(work.tx, kept, curves)
    for organisation_id, mentioned in work.mentioned.items():
        events.remember(work.tx, organisation_id, mentioned)
    if work.decided:
        decisions.add_all(work.tx, work.decided)
    if work.moved:
        runs.save_all(work.tx, [(key[0], work.runs[key]) for key in sorted(work.moved)])
    for key in sorted(work.moved & work.reservations.keys()):
        reservations.save_items(work.tx, key[0], [work.reservations[key]])
    if work.changed:
        changed = [(key[0], work.accounts[key].account, now) for key, now in work.changed.items()]
        accounts.save_charged(work.tx, changed)


def remember(memory: Memory, work: WorkingSet) -> None:
    """Keep what is durable now.

    Args:
        memory: of this process.
        work: committed.
    """
    for key, record in work.accounts.items():
        memory.accounts.put(key, record)
    for kept, curves in work.prices.items():
        for event, curve in curves.items():
            memory.prices.put((kept, event), curve)
