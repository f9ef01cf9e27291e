"""Search lists of decisions, newest first, by indexes.

Most lists are of decisions that lie close together in time. Those of one run, of the runs of an account or of an actor
may be rare among millions. They are searched by the primary key, in ranges of positions of a run: the decisions of a
range have one actor, and times that do not decrease.
"""

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    FromClause,
    ScalarSelect,
    Select,
    and_,
    case,
    func,
    select,
)

from app.ledger.runs.decisions import DecisionCursor, DecisionFilter, DecisionOutcome
from app.persistence.repositories.expressions import NOT_ADMITTED, in_period, join_on, matches, owned_by
from app.persistence.repositories.keysets import lies_behind
from app.persistence.tables import account_ancestors, decision_ranges, decisions, runs

RECENT: Final = 5_000
"""Decisions of an organisation that are searched by time before runs are searched individually."""

# Built once: an alias of a wide table takes a millisecond.
PROBE, _COUNTED, _NEXT = decisions.alias("probe"), decisions.alias("counted"), decision_ranges.alias("next")


def newest_first(rows: FromClause) -> list[ColumnElement[Any]]:
    """Build the order of lists of decisions."""
    return [key.desc() for key in _keys(rows)]


def searches(
    organisation_id: str, wanted: DecisionFilter, behind: DecisionCursor | None, count: int
) -> Iterator[Select[Any]]:
    """Select the newest decisions of a list, or the newest behind a place of it, by one way after the other.

    A way before the last may miss some; its decisions are the newest ones if it finds `count` of them.
    """
    by_time = _by_time(organisation_id, wanted, behind)
    if _few(wanted) or (wanted.run_id is None and wanted.within is None and wanted.actor is None):
        yield by_time
        return
    if wanted.run_id is None:
        yield by_time.where(decisions.c.created_at >= _recent_since(organisation_id, wanted, behind))
    yield _by_runs(organisation_id, wanted, behind, count)


def _few(wanted: DecisionFilter) -> bool:
    """Say whether only decisions are wanted that have an index of their own, because they are few."""
    return wanted.outcome not in {None, DecisionOutcome.ADMITTED}


def _by_time(organisation_id: str, wanted: DecisionFilter, behind: DecisionCursor | None) -> Select[Any]:
    found = select(decisions).where(owned_by(decisions, organisation_id), *matches(decisions, run_id=wanted.run_id))
    if wanted.within is not None:
        path = select(account_ancestors.c.depth).where(join_on(account_ancestors, decisions, account_id="run_id"))
        found = found.where(path.where(account_ancestors.c.ancestor_id == wanted.within).exists())
    found = found.where(*matches(decisions, outcome=wanted.outcome, actor=wanted.actor))
    if _few(wanted):
        found = found.where(NOT_ADMITTED)
    found = found.where(*in_period(decisions.c.created_at, wanted.since, wanted.until))
    if behind is not None:
        # The first condition is a range of the index; the second resolves equal times.
        found = found.where(decisions.c.created_at <= behind.created_at, _lies_behind(decisions, behind))
    return found.order_by(*newest_first(decisions))


def _lies_behind(rows: FromClause, place: DecisionCursor) -> ColumnElement[bool]:
    return lies_behind(_keys(rows), (place.created_at, place.run_id, place.position))


def _keys(rows: FromClause) -> list[ColumnElement[Any]]:
    return [rows.c[name] for name in ("created_at", "run_id", "position")]


def _recent_since(organisation_id: str, wanted: DecisionFilter, behind: DecisionCursor | None) -> ScalarSelect[Any]:
    """Select the time of the oldest recent decision, of any run; null if there are not as many."""
    at = decisions.c.created_at
    passed = [] if behind is None else [at <= behind.created_at]
    found = select(at).where(owned_by(decisions, organisation_id), *in_period(at, None, wanted.until), *passed)
    return found.order_by(at.desc()).limit(1).offset(RECENT - 1).scalar_subquery()


def _by_runs(organisation_id: str, wanted: DecisionFilter, behind: DecisionCursor | None, count: int) -> Select[Any]:
    """Select the newest decisions among the last ones of each of the runs with the latest."""
    ranges = _ranges(organisation_id, wanted)
    if behind is not None or wanted.until is not None:
        ranges = _cut_off(ranges, organisation_id, wanted, behind)
    last = _counted_from_end(_COUNTED.c.created_at, 1, organisation_id, ranges, wanted)
    ended = select(ranges, last.label("last")).cte("ended").prefix_with("MATERIALIZED")
    latest = (
        select(ended)
        .where(ended.c.last.is_not(None))
        .order_by(*(ended.c[name].desc() for name in ("last", "run_id", "end")))
    )
    cut = latest.limit(count).cte("latest")
    first = _counted_from_end(_COUNTED.c.position, count, organisation_id, cut, wanted)
    shown = select(cut.c.run_id, func.coalesce(first, cut.c.start).label("start"), cut.c.end)
    last_rows = shown.cte("shown").prefix_with("MATERIALIZED")
    # Each range has one. Planners would read all decisions by time for an inner join, or for one that is sorted.
    these = and_(_of(decisions, organisation_id, last_rows), *matches(decisions, outcome=wanted.outcome))
    rows = select(decisions).outerjoin_from(last_rows, decisions, these)
    found = rows.cte("found").prefix_with("MATERIALIZED")
    return select(found).where(*in_period(found.c.created_at, wanted.since, None)).order_by(*newest_first(found))


def _counted_from_end(
    column: Column[Any], number: int, organisation_id: str, ranges: FromClause, wanted: DecisionFilter
) -> ScalarSelect[Any]:
    """Select a column of the so many-th last decision of a range with the outcome."""
    found = select(column).where(_of(_COUNTED, organisation_id, ranges), *matches(_COUNTED, outcome=wanted.outcome))
    return found.order_by(_COUNTED.c.position.desc()).limit(1).offset(number - 1).scalar_subquery()


def _of(rows: FromClause, organisation_id: str, ranges: FromClause) -> ColumnElement[bool]:
    """Build the condition that decisions are in a range."""
    here = and_(rows.c.position >= ranges.c.start, rows.c.position < ranges.c.end)
    return and_(owned_by(rows, organisation_id), rows.c.run_id == ranges.c.run_id, here)


def _ranges(organisation_id: str, wanted: DecisionFilter) -> CTE:
    """Select the ranges of decisions of the runs and the actor, from a start to before an end."""
    found = select(decision_ranges.c.run_id, decision_ranges.c.first_position.label("start"))
    found = found.where(*matches(decision_ranges, run_id=wanted.run_id, actor=wanted.actor))
    if wanted.within is not None:
        found = found.join(account_ancestors, join_on(account_ancestors, decision_ranges, account_id="run_id"))
        found = found.where(account_ancestors.c.ancestor_id == wanted.within)
    later = join_on(_NEXT, decision_ranges, run_id="run_id") & (
        _NEXT.c.first_position > decision_ranges.c.first_position
    )
    next_start = select(func.min(_NEXT.c.first_position)).where(later).scalar_subquery()
    end = func.coalesce(next_start, runs.c.decision_count)
    found = found.join(runs, join_on(runs, decision_ranges, account_id="run_id")).add_columns(end.label("end"))
    return found.where(owned_by(decision_ranges, organisation_id)).cte("ranges").prefix_with("MATERIALIZED")


def _cut_off(ranges: CTE, organisation_id: str, wanted: DecisionFilter, behind: DecisionCursor | None) -> CTE:
    """End the ranges before the first decision that is not behind the place and before the time; drop empty ones."""
    first = select(ranges, ranges.c.start.label("low"), ranges.c.end.label("high"), (ranges.c.end - 1).label("probed"))
    # Bisection: the decisions before `low` are behind, those from `high` on are not. Most runs have ended before. The
    # next position is computed here: PostgreSQL's row-level security allows no arithmetic in a search of an index.
    search = first.cte("search", recursive=True)
    conditions = in_period(PROBE.c.created_at, None, wanted.until)
    if behind is not None:
        conditions.append(_lies_behind(PROBE, behind))
    is_behind = and_(*conditions)
    step = (
        select(
            *(search.c[name] for name in ("run_id", "start", "end")),
            *bisected(search, is_behind),
        )
        .outerjoin_from(search, PROBE, and_(_of(PROBE, organisation_id, search), PROBE.c.position == search.c.probed))
        .where(search.c.low < search.c.high)
    )
    found = search.union_all(step)
    ended = select(found.c.run_id, found.c.start, found.c.low.label("end"))
    return ended.where(found.c.low == found.c.high, found.c.low > found.c.start).cte("cut_off")


def bisected(search: CTE, is_before: ColumnElement[bool]) -> tuple[ColumnElement[Any], ...]:
    """Build the next `low`, `high` and `probed` of a bisection of positions.

    The decisions before `low` are before the place that is searched, and those from `high` on are not.

    Args:
        search: with these columns.
        is_before: whether the probed decision is before the place.
    """
    low, high, probed = search.c.low, search.c.high, search.c.probed
    return (
        case((is_before, probed + 1), else_=low),
        case((is_before, high), else_=probed),
        case((is_before, probed + 1 + high), else_=low + probed) // 2,
    )
