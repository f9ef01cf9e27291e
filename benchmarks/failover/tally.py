"""Steps of a journal, counted against the ledger."""

from dataclasses import dataclass

from app.persistence.database import Database
from app.service.verification.verify import verify
from tests.reliability.history import Journal, disagreements, held


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
    told, (charged, _) = journal.told(), held(journal, db)
    steps = {step: sum(count for _, count in items) for step, (_, items, *_) in told.items()}
    lost = sum(steps[step] for step in told if told[step] != charged.get(step))
    doubled = sum(count for _, _, count, *_ in charged.values()) - (sum(steps.values()) - lost)
    problems = (*verify(db).problems, *disagreements(journal, db))
    return Tally(sum(steps.values()), lost, doubled, problems)
