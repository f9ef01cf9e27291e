"""Usage over time: charges of runs, samples of them for charts, and daily snapshots of accounts for forecasts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import CTE, ColumnElement, Connection, Select, Table, and_, case, func, literal, select, union_all

from app.ledger.runs.decisions import DecisionOutcome
from app.persistence.repositories.expressions import (
    NO_RUN,
    columns_of,
    join_on,
    owned_by,
    owned_by_any,
    seconds,
    upsert,
    values_of,
)
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import (
    account_ancestors,
    account_usage_snapshots,
    accounts,
    decision_events,
    decisions,
    dp_events,
    event_costs,
    run_budgets,
    runs,
)

SECONDS_A_DAY: Final = 86_400
COMMIT_SECONDS: Final = 60
"""Maximum delay between a change's time and its visibility."""

ADVANCING: Final = (DecisionOutcome.ADMITTED, DecisionOutcome.REPORTED)
CHARGED: Final = (*ADVANCING, DecisionOutcome.FORFEITED)


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
    """A run under an account, and the account's children that the run charges: several, where it has several budgets.

    It is a child itself where it charges the account directly.
    """

    run_id: str
    children: tuple[str, ...]
    decisions: int


def charged_runs(tx: Connection, organisation_id: str, account_id: str) -> list[ChargedRun]:
    """List the runs with decisions under an account with its children."""
    down, up = account_ancestors.alias("down"), account_ancestors.alias("up")
    through = (
        select(runs.c.account_id.label("run_id"), accounts.c.id.label("child_id"), runs.c.decision_count)
        .select_from(down)
        .join(runs, join_on(runs, down, account_id="account_id"))
        .join(up, join_on(up, down, account_id="account_id"))
        .join(accounts, join_on(accounts, up, id="ancestor_id"))
        .where(
            owned_by(down, organisation_id, ancestor_id=account_id),
            accounts.c.parent_id == account_id,
            NO_RUN,
            runs.c.decision_count > 0,
        )
    )
    # A run's parent is only the first of its budgets.
    directly = (
        select(runs.c.account_id, runs.c.account_id, runs.c.decision_count)
        .select_from(run_budgets)
        .join(runs, join_on(runs, run_budgets, account_id="run_id"))
        .where(owned_by(run_budgets, organisation_id, budget_id=account_id), runs.c.decision_count > 0)
    )
    rows = tx.execute(union_all(through, directly).order_by("run_id", "child_id"))
    return [
        ChargedRun(run_id, tuple(row.child_id for row in found), decisions)
        for (run_id, decisions), found in groupby(rows, lambda row: (row.run_id, row.decision_count))
    ]


def sample_decisions(tx: Connection, organisation_id: str, account_id: str, each: int) -> list[Sample]:
    """Sample up to `each` decisions of each run under an account, including the last.

    They are sorted by run and position.
    """
    columns = ("run_id", "position", "attempt", "outcome", "first_step", "step_count", "created_at")
    found = _spread(select(*(decisions.c[name] for name in columns)), organisation_id, account_id, each)
    return [
        Sample(
            run_id=row.run_id,
            position=row.position,
            attempt=row.attempt,
            charged=DecisionOutcome(row.outcome) in CHARGED,
            reached=row.first_step + (row.step_count if DecisionOutcome(row.outcome) in ADVANCING else 0),
            steps=row.step_count,
            at=row.created_at,
        )
        for row in tx.execute(found.order_by("run_id", "position"))
    ]


def events_of(
    tx: Connection, organisation_id: str, account_id: str, each: int, most: int
) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Get the events of the first `most` items of each sampled decision, with their counts.

    Counts include an event's later items, which are in the same row.
    """
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    first = literal(0).label("item")
    for table, item, count in (
        (decisions, first, decisions.c.event_count),
        (decision_events, decision_events.c.item, decision_events.c.count),
    ):
        wanted = select(table.c.run_id, table.c.position, table.c.event_fingerprint, count, item)
        few = [decision_events.c.item < most] if table is decision_events else []
        sampled = _spread(wanted, organisation_id, account_id, each, table, *few)
        for run_id, position, fingerprint, times, _ in sorted(tx.execute(sampled), key=itemgetter(-1)):
            found.setdefault((run_id, position), []).append((fingerprint, times))
    return found


def _spread(
    wanted: Select[Any],
    organisation_id: str,
    account_id: str,
    each: int,
    of: Table = decisions,
    *conditions: ColumnElement[bool],
) -> Select[Any]:
    """Select rows at evenly spaced positions of runs by primary key, and of these by some conditions."""
    numbers = _numbers(each)
    place = case(
        (runs.c.decision_count <= each, numbers.c.i), else_=(numbers.c.i + 1) * runs.c.decision_count // each - 1
    )
    # Computed apart: PostgreSQL's row-level security allows no arithmetic in a search of an index.
    places = (
        select(runs.c.organisation_id, runs.c.account_id.label("run_id"), place.label("position"))
        .select_from(account_ancestors)
        .join(runs, join_on(runs, account_ancestors, account_id="account_id"))
        .join(numbers, numbers.c.i < runs.c.decision_count)
        .where(owned_by(account_ancestors, organisation_id, ancestor_id=account_id))
        .cte("places")
        .prefix_with("MATERIALIZED")
    )
    here = join_on(of, places, run_id="run_id", position="position")
    wanted = wanted.select_from(places).outerjoin(of, and_(here, owned_by(of, organisation_id), *conditions))
    # For an inner join, PostgreSQL would read all decisions of an organisation that it takes for small.
    found = wanted.cte("found").prefix_with("MATERIALIZED")
    return select(found).where(found.c.run_id.is_not(None))


def _numbers(most: int) -> CTE:
    """Generate 0 to `most` - 1."""
    first = select(literal(0).label("i")).cte("numbers", recursive=True)
    return first.union_all(select(first.c.i + 1).where(first.c.i + 1 < most))


@dataclass(frozen=True, slots=True)
class ChargeTotal:
    """An event, its description as JSON, and how often it was charged."""

    fingerprint: str
    canonical_json: str
    count: int


def charged_events(
    tx: Connection, organisation_id: str, account_id: str, most: int
) -> tuple[list[ChargeTotal], int, int]:
    """Count the charges of runs at or under an account: the `most` frequent events, all different events, all steps."""
    under = decisions.c.run_id.in_(descendant_ids(organisation_id, account_id))
    charged = (owned_by(decisions, organisation_id), under, decisions.c.outcome.in_(map(str, CHARGED)))
    further = (
        select(decision_events.c.event_fingerprint, decision_events.c.count)
        .join(decisions, join_on(decisions, decision_events, run_id="run_id", position="position"))
        .where(*charged)
    )
    every = union_all(select(decisions.c.event_fingerprint, decisions.c.event_count).where(*charged), further)
    items = every.subquery()
    times = func.sum(items.c.event_count).label("times")
    counted = select(items.c.event_fingerprint, times).group_by(items.c.event_fingerprint).subquery()
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


@dataclass(frozen=True, slots=True)
class Reading:
    """The used share of an account's capacity at a time."""

    used: float
    recorded_at: datetime


def due_accounts(
    tx: Connection, now: datetime, rest: timedelta, among: Collection[str] | None = None
) -> list[tuple[str, str]]:
    """List changed populations and budgets of some organisations, None: of all, last read at least `rest` ago."""
    last = (
        select(func.max(account_usage_snapshots.c.recorded_at))
        .where(join_on(account_usage_snapshots, accounts, account_id="id"))
        .scalar_subquery()
    )
    changed = (
        select(accounts.c.organisation_id, accounts.c.id, accounts.c.updated_at, last.label("read_at"))
        .where(NO_RUN, accounts.c.version > 0, owned_by_any(accounts, among))
        .subquery()
    )
    due = (changed.c.read_at <= now - rest) & (seconds(tx, changed.c.read_at, changed.c.updated_at) > -COMMIT_SECONDS)
    found = select(changed.c.organisation_id, changed.c.id).where(changed.c.read_at.is_(None) | due)
    return [(row.organisation_id, row.id) for row in tx.execute(found)]


def put(tx: Connection, organisation_id: str, account_id: str, reading: Reading) -> None:
    """Write a day's reading, replacing an earlier one of that day."""
    values, day = values_of(reading), int(reading.recorded_at.timestamp()) // SECONDS_A_DAY
    into = upsert(tx, account_usage_snapshots)
    into = into.values(organisation_id=organisation_id, account_id=account_id, day=day, **values)
    written = {name: into.excluded[name] for name in values}
    tx.execute(into.on_conflict_do_update(index_elements=list(account_usage_snapshots.primary_key), set_=written))


def readings_before(
    tx: Connection, organisation_id: str, account_ids: Sequence[str], moment: datetime
) -> dict[str, Reading]:
    """Get the last reading of each account up to a time, or else its first."""
    snapshots = account_usage_snapshots
    mine = (snapshots.c.organisation_id == organisation_id) & snapshots.c.account_id.in_(list(account_ids))
    days = select(snapshots.c.organisation_id, snapshots.c.account_id).where(mine)
    days = days.group_by(snapshots.c.organisation_id, snapshots.c.account_id)
    first = days.add_columns(func.min(snapshots.c.day).label("day")).subquery()
    last = days.add_columns(func.max(snapshots.c.day).label("day")).where(snapshots.c.recorded_at <= moment).subquery()
    found: dict[str, Reading] = {}
    for chosen in (first, last):
        rows = tx.execute(
            select(snapshots.c.account_id, *columns_of(snapshots, Reading)).join(
                chosen, join_on(chosen, snapshots, account_id="account_id", day="day")
            )
        )
        found |= {row.account_id: Reading(row.used, row.recorded_at) for row in rows}
    return found
