"""What a ledger has charged for a run, and what is set aside for it, read from its own entries."""

from collections import Counter
from datetime import datetime

from sqlalchemy import Connection, select

from app.accounting.events import canonical
from app.ledger.decisions import DecisionOutcome
from app.ledger.reservations import has_lapsed
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, decisions, reservations, runs
from app.persistence.tables import runs as runs_table
from tests.api import trainer

AT_ONCE = 20
"""So few decisions that no steps of them are truncated."""


def charged_and_held(database: Database, run_id: str) -> tuple[Counter[bytes], Counter[bytes]]:
    """How often each event was charged (asked for, reported or forfeited), and how often it may be yet."""
    charged: Counter[bytes] = Counter()
    held: Counter[bytes] = Counter()
    with database.read(ALL_TENANTS) as tx:
        owner = _owner(tx, run_id)
        run = runs.get(tx, owner, run_id)
        for first in range(0, run.decisions, AT_ONCE):
            for entry in decisions.at_positions(tx, owner, run_id, range(first, first + AT_ONCE)):
                if entry.outcome is not DecisionOutcome.REFUSED:
                    for step in entry.steps:
                        charged[canonical(step.event)] += step.count
        if run.reservation_id is not None:
            active = reservations.find(tx, owner, run.reservation_id)
            assert active is not None
            held.update({canonical(item.event): item.left for item in active.items if item.left})
    return charged, held


def has_lapsed_grant(database: Database, run_id: str, now: datetime) -> bool:
    """Whether a run has a reservation whose lease has run out, and which is going to be forfeited."""
    with database.read(ALL_TENANTS) as tx:
        owner = _owner(tx, run_id)
        active = runs.get(tx, owner, run_id).reservation_id
        found = None if active is None else reservations.find(tx, owner, active)
    return found is not None and has_lapsed(found, now)


def within_limits(database: Database, run_id: str) -> bool:
    """Whether no account that a run charges is over its limit."""
    with database.read(ALL_TENANTS) as tx:
        path = accounts.path_of(tx, _owner(tx, run_id), run_id)
    return trainer.within_limits([record.account for record in path])


def _owner(tx: Connection, run_id: str) -> str:
    """The organisation that a run belongs to."""
    return str(tx.execute(select(runs_table.c.organisation_id).where(runs_table.c.account_id == run_id)).scalar_one())
