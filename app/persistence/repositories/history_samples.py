"""Evenly sampled decisions of the runs under an account, for charts of its history."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import CTE, Connection, Select, Table, and_, case, func, literal, select

from app.ledger.decisions import DecisionOutcome
from app.persistence.tables import account_ancestors, accounts, decision_events, decisions, runs

CHARGED: Final = (DecisionOutcome.ADMITTED, DecisionOutcome.REPORTED, DecisionOutcome.FORFEITED)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled decision, as far as a chart needs it.

    `reached` is the run's next step after it, `steps` the requested number.
    """

    run_id: str
    position: int
    attempt: int
    charged: bool
    reached: int
    steps: int
    at: datetime


@dataclass(frozen=True, slots=True)
class ChargedRun:
    """A run under an account, and the account's child on its path."""

    run_id: str
    child_id: str
    decisions: int


def charged_runs(tx: Connection, organisation_id: str, account_id: str) -> list[ChargedRun]:
    """List the runs with decisions under an account with its children."""
    down, up = account_ancestors.alias("down"), account_ancestors.alias("up")
    found = (
        select(runs.c.account_id, func.min(accounts.c.id), runs.c.decision_count)
        .select_from(down)
        .join(runs, and_(runs.c.organisation_id == down.c.organisation_id, runs.c.account_id == down.c.account_id))
        .join(up, and_(up.c.organisation_id == down.c.organisation_id, up.c.account_id == down.c.account_id))
        .join(
            accounts,
            and_(accounts.c.organisation_id == up.c.organisation_id, accounts.c.id == up.c.ancestor_id),
        )
        .where(
            down.c.organisation_id == organisation_id,
            down.c.ancestor_id == account_id,
            accounts.c.parent_id == account_id,
            runs.c.decision_count > 0,
        )
        .group_by(runs.c.account_id, runs.c.decision_count)
        .order_by(runs.c.account_id)
    )
    return [ChargedRun(*row) for row in tx.execute(found)]


def sample_decisions(tx: Connection, organisation_id: str, account_id: str, each: int) -> list[Sample]:
    """Sample up to `each` decisions of each run under an account, including the last.

    They are sorted by run and position.
    """
    columns = ("run_id", "position", "attempt", "outcome", "first_step", "next_step", "step_count", "created_at")
    found = _spread(select(*(decisions.c[name] for name in columns)), organisation_id, account_id, each)
    return [_sample(*row) for row in tx.execute(found.order_by(decisions.c.run_id, decisions.c.position))]


def events_of(
    tx: Connection, organisation_id: str, account_id: str, each: int, most: int
) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Get the first `most` events and counts of each sampled decision."""
    columns = (
        decision_events.c.run_id,
        decision_events.c.position,
        decision_events.c.event_fingerprint,
        decision_events.c.count,
    )
    rows = tx.execute(
        _spread(select(*columns), organisation_id, account_id, each, decision_events).where(
            decision_events.c.item < most
        )
    )
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for run_id, position, fingerprint, count in rows:
        found.setdefault((run_id, position), []).append((fingerprint, count))
    return found


def _spread(
    wanted: Select[Any], organisation_id: str, account_id: str, each: int, of: Table = decisions
) -> Select[Any]:
    """Select rows at evenly spaced positions of runs by primary key."""
    numbers = _numbers(each)
    place = case(
        (runs.c.decision_count <= each, numbers.c.i), else_=(numbers.c.i + 1) * runs.c.decision_count // each - 1
    )
    return (
        wanted.select_from(account_ancestors)
        .join(
            runs,
            and_(
                runs.c.organisation_id == account_ancestors.c.organisation_id,
                runs.c.account_id == account_ancestors.c.account_id,
            ),
        )
        .join(numbers, numbers.c.i < runs.c.decision_count)
        .join(
            of,
            and_(
                of.c.organisation_id == runs.c.organisation_id,
                of.c.run_id == runs.c.account_id,
                of.c.position == place,
            ),
        )
        .where(account_ancestors.c.organisation_id == organisation_id, account_ancestors.c.ancestor_id == account_id)
    )


def _numbers(most: int) -> CTE:
    """Generate 0 to `most` - 1."""
    first = select(literal(0).label("i")).cte("numbers", recursive=True)
    return first.union_all(select(first.c.i + 1).where(first.c.i + 1 < most))


def _sample(
    run_id: str,
    position: int,
    attempt: int,
    outcome: str,
    *numbers: Any,  # noqa: ANN401 - columns of a row
) -> Sample:
    first_step, next_step, step_count, at = numbers
    reached = first_step if next_step is None else next_step
    return Sample(run_id, position, attempt, DecisionOutcome(outcome) in CHARGED, reached, step_count, at)
