"""When something was released under an account, and when reports exceeded a limit there."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from app.ledger.runs.decisions import DecisionOutcome
from app.persistence.repositories.expressions import owned_by
from app.persistence.repositories.locks import descendant_ids
from app.persistence.repositories.usage_history import CHARGED
from app.persistence.tables import decisions


@dataclass(frozen=True, slots=True)
class ReleasePeriod:
    """The times of the first and the last charge."""

    first: datetime
    last: datetime


def release_period(tx: Connection, organisation_id: str, account_id: str) -> ReleasePeriod | None:
    """Get the period of the charges of runs at or under an account; None: nothing was charged."""
    found = select(func.min(decisions.c.created_at), func.max(decisions.c.created_at)).where(
        owned_by(decisions, organisation_id),
        decisions.c.run_id.in_(descendant_ids(organisation_id, account_id)),
        decisions.c.outcome.in_(map(str, CHARGED)),
    )
    first, last = tx.execute(found).one()
    return None if first is None else ReleasePeriod(first, last)


def first_overdrawing_report(tx: Connection, organisation_id: str, account_id: str) -> datetime | None:
    """Get when a run at or under an account first reported steps that exceeded a limit; None: none did."""
    found = select(func.min(decisions.c.created_at)).where(
        owned_by(decisions, organisation_id),
        decisions.c.run_id.in_(descendant_ids(organisation_id, account_id)),
        decisions.c.outcome == str(DecisionOutcome.REPORTED),
        decisions.c.steps_remaining.is_(None),
    )
    first: datetime | None = tx.execute(found).scalar_one()
    return first
