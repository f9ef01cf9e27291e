"""Steps of a journal, counted against the ledger."""

from dataclasses import dataclass

import httpx2

from app.persistence.database import Database
from app.service.verification import verify
from tests.reliability.history import CHARGED, Journal, disagreements, read_decisions


@dataclass(frozen=True)
class Tally:
    """Steps of a journal, counted against the ledger.

    Args:
        acknowledged: steps that clients were told are admitted, each once.
        lost: those of them that the ledger lacks, or has with other content.
        doubled: steps that the ledger has charged to the journal's runs, and no client was told of. Every request was
            repeated until it was answered, so there should be none.
        problems: everything that does not agree.
    """

    acknowledged: int
    lost: int
    doubled: int
    problems: tuple[str, ...]


def tally(journal: Journal, db: Database) -> Tally:
    """Count what a ledger has lost or charged twice, where every request of a journal was answered."""
    kept, _ = read_decisions(journal, db)
    by_step = {(known.row.run_id, known.row.first_step): known for known in kept if known.row.outcome in CHARGED}
    told = {
        (asked.run, answer.json()["first_step"]): asked.items
        for asked in journal.asked
        for answer in asked.answers
        if answer.status_code == httpx2.codes.OK
    }
    steps = {place: sum(count for _, count in items) for place, items in told.items()}
    lost = [place for place, items in told.items() if place not in by_step or by_step[place].items != items]
    charged = sum(known.row.step_count for known in kept if known.row.outcome in CHARGED)
    doubled = charged - (sum(steps.values()) - sum(steps[place] for place in lost))
    problems = (*verify(db).problems, *disagreements(journal, db))
    return Tally(sum(steps.values()), sum(steps[place] for place in lost), doubled, problems)
