"""What a ledger has charged for a run, and what is set aside for it, read from its own entries."""

from collections import Counter

from sqlalchemy import select

from app.accounting.events import canonical
from app.persistence.engine import Database
from app.persistence.repositories import decisions, reservations, runs
from app.persistence.repositories.decisions import Outcome
from app.persistence.tables import runs as runs_table


def charged_and_held(database: Database, run_id: str) -> tuple[Counter[bytes], Counter[bytes]]:
    """How often each event was charged (asked for, reported or forfeited), and how often it may be yet."""
    charged: Counter[bytes] = Counter()
    held: Counter[bytes] = Counter()
    with database.read() as tx:
        owned = select(runs_table.c.organisation_id).where(runs_table.c.account_id == run_id)
        owner = str(tx.execute(owned).scalar_one())
        run = runs.get(tx, owner, run_id)
        for entry in decisions.at_positions(tx, owner, run_id, range(run.decisions)):
            if entry.outcome is not Outcome.REFUSED:
                for step in entry.steps:
                    charged[canonical(step.event)] += step.count
        if run.reservation_id is not None:
            active = reservations.find(tx, owner, run.reservation_id)
            assert active is not None
            held.update({canonical(item.event): item.left for item in active.items if item.left})
    return charged, held
