"""The charges of runs: totals for statements, and evenly spaced samples for charts of an account's history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import CTE, Connection, Select, Table, case, func, literal, select

from app.ledger.decisions import DecisionOutcome
from app.persistence.repositories.expressions import join_on, owned_by
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import account_ancestors, accounts, decision_events, decisions, dp_events, event_costs, runs

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
        .join(runs, join_on(runs, down, account_id="account_id"))
        .join(up, join_on(up, down, account_id="account_id"))
        .join(accounts, join_on(accounts, up, id="ancestor_id"))
        .where(
            owned_by(down, organisation_id, ancestor_id=account_id),
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
    columns = [decision_events.c[name] for name in ("run_id", "position", "event_fingerprint", "count")]
    sampled = _spread(select(*columns), organisation_id, account_id, each, decision_events)
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for run_id, position, fingerprint, count in tx.execute(sampled.where(decision_events.c.item < most)):
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
        .join(runs, join_on(runs, account_ancestors, account_id="account_id"))
        .join(numbers, numbers.c.i < runs.c.decision_count)
        .join(of, join_on(of, runs, run_id="account_id") & (of.c.position == place))
        .where(owned_by(account_ancestors, organisation_id, ancestor_id=account_id))
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


@dataclass(frozen=True, slots=True)
class ChargeTotal:
    """An event, its description as JSON, and how often it was charged."""

    fingerprint: str
    canonical_json: str
    count: int


def charged_events(tx: Connection, organisation_id: str, run_id: str, most: int) -> tuple[list[ChargeTotal], int, int]:
    """Count a run's charges: its `most` frequent events, all different events, all steps."""
    times = func.sum(decision_events.c.count).label("times")
    counted = (
        select(decision_events.c.event_fingerprint, times)
        .join(decisions, join_on(decisions, decision_events, run_id="run_id", position="position"))
        .where(owned_by(decision_events, organisation_id, run_id=run_id), decisions.c.outcome.in_(map(str, CHARGED)))
        .group_by(decision_events.c.event_fingerprint)
        .subquery()
    )
    kinds, steps = tx.execute(select(func.count(), func.coalesce(func.sum(counted.c.times), 0))).one()
    named = (
        select(counted.c.event_fingerprint, dp_events.c.canonical_json, counted.c.times)
        .join(dp_events, owned_by(dp_events, organisation_id, fingerprint=counted.c.event_fingerprint))
        .order_by(counted.c.times.desc(), counted.c.event_fingerprint)
        .limit(most)
    )
    found = [ChargeTotal(row.event_fingerprint, row.canonical_json, int(row.times)) for row in tx.execute(named)]
    return found, kinds, int(steps)


def outcomes(tx: Connection, organisation_id: str, run_id: str) -> dict[str, int]:
    """Count a run's decisions by outcome."""
    found = (
        select(decisions.c.outcome, func.count())
        .where(owned_by(decisions, organisation_id, run_id=run_id))
        .group_by(decisions.c.outcome)
    )
    return dict(sorted(tuple(row) for row in tx.execute(found)))


def formula_versions(tx: Connection, organisation_id: str, fingerprints: Sequence[str]) -> list[int]:
    """List the formula versions by which events were priced."""
    found = (
        select(event_costs.c.formula_version)
        .where(event_costs.c.organisation_id == organisation_id, event_costs.c.event_fingerprint.in_(fingerprints))
        .distinct()
    )
    return sorted(tx.execute(found).scalars())


def runs_under(tx: Connection, organisation_id: str, account_id: str, most: int) -> tuple[list[str], int]:
    """List the newest charged runs under an account, and count all of them."""
    charged = (
        runs.c.organisation_id == organisation_id,
        runs.c.account_id.in_(descendant_ids(organisation_id, account_id)),
        runs.c.decision_count > 0,
    )
    count = tx.execute(select(func.count()).select_from(runs).where(*charged)).scalar_one()
    found = select(runs.c.account_id).where(*charged).order_by(runs.c.account_id.desc()).limit(most)
    return list(tx.execute(found).scalars()), count
