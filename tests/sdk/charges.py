"""What a ledger has charged for a run, and what is set aside for it, read from its own entries."""

from collections import Counter
from typing import NamedTuple

from sqlalchemy import select

from app.accounting.events import canonical
from app.ledger.accounts import Account
from app.ledger.decisions import DecisionOutcome
from app.ledger.reservations import Reservation
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, decisions, reservations, runs
from app.persistence.tables import runs as runs_table
from tests.api.trainer import within_limits

AT_ONCE = 20
"""So few decisions that no steps of them are truncated."""


class Charges(NamedTuple):
    """How often each event was charged (asked for, reported or forfeited), and how often it may be yet."""

    charged: Counter[bytes]
    held: Counter[bytes]
    reservation: Reservation | None
    path: list[Account]


def charges_of(database: Database, run_id: str) -> Charges:
    charged: Counter[bytes] = Counter()
    with database.read(ALL_TENANTS) as tx:
        owner = str(tx.scalar(select(runs_table.c.organisation_id).where(runs_table.c.account_id == run_id)))
        run = runs.get(tx, owner, run_id)
        for first in range(0, run.decisions, AT_ONCE):
            for entry in decisions.at_positions(tx, owner, run_id, range(first, first + AT_ONCE)):
                if entry.outcome is not DecisionOutcome.REFUSED:
                    for step in entry.steps:
                        charged[canonical(step.event)] += step.count
        active = None if run.reservation_id is None else reservations.find(tx, owner, run.reservation_id)
        assert (active is None) is (run.reservation_id is None)
        path = [record.account for record in accounts.path_of(tx, owner, run_id)]
    held = {canonical(item.event): item.left for item in (active.items if active else ()) if item.left}
    return Charges(charged, Counter(held), active, path)


def covers(
    database: Database, run_id: str, released: Counter[bytes], *, exactly: bool = False, limits: bool = True
) -> bool:
    """Whether all that was released is charged or set aside, or exactly that charged; and no limit is passed."""
    charged, held, _, path = charges_of(database, run_id)
    said = f"{run_id} released {released}: {charged} charged, {held} held"
    assert released <= charged + held, said
    assert not exactly or (charged, held) == (released, Counter()), said
    assert not limits or within_limits(path)
    return True
