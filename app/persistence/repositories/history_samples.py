"""Decisions of all runs beneath an account, evenly thinned out: what its curve over time is drawn from."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import CTE, Connection, Select, Table, and_, case, func, literal, select

from app.persistence.repositories.decisions import DecisionOutcome
from app.persistence.tables import account_ancestors, accounts, decision_events, decisions, runs

CHARGED: Final = (DecisionOutcome.ADMITTED, DecisionOutcome.REPORTED, DecisionOutcome.FORFEITED)


@dataclass(frozen=True, slots=True)
class Sample:
    """A decision, as far as a curve needs it.

    Args:
        run_id: whose.
        position: its place among the run's decisions.
        attempt: of the run.
        charged: whether it moved anything.
        reached: the number of the run's next step, afterwards.
        steps: how many were asked.
        at: in UTC.
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
    """A run beneath an account, and the account's child through which it charges: itself, or a budget above it."""

    run_id: str
    child_id: str
    decisions: int


def parts_beneath(tx: Connection, organisation_id: str, account_id: str) -> list[ChargedRun]:
    """Every run beneath an account that was told something, each with one of the account's children above it."""
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


def spread_over(tx: Connection, organisation_id: str, account_id: str, each: int) -> list[Sample]:
    """Of each run beneath an account so many decisions, evenly spread, the last one among them, or all.

    Args:
        tx: the caller's transaction.
        organisation_id: whose.
        account_id: a population or a budget.
        each: how many of a run at the most, at least 1.

    Returns:
        By run and position.
    """
    columns = ("run_id", "position", "attempt", "outcome", "first_step", "next_step", "step_count", "created_at")
    found = _spread(select(*(decisions.c[name] for name in columns)), organisation_id, account_id, each)
    return [_sample(*row) for row in tx.execute(found.order_by(decisions.c.run_id, decisions.c.position))]


def events_of(
    tx: Connection, organisation_id: str, account_id: str, each: int, most: int
) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Of each decision of `spread_over` the first events, `most` at the most, and how often each was asked.

    Returns:
        By run and position: fingerprints and counts.
    """
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
    """Rows at evenly spread positions of every run beneath an account; each is found by its primary key."""
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
    """0, 1, …, most - 1."""
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
