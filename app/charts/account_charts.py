"""Charts of a population or a budget."""

from collections.abc import Iterator, Sequence

from app.charts.model import (
    Axis,
    AxisKind,
    Chart,
    Mark,
    Point,
    Series,
    SeriesKind,
    SeriesRole,
    format_exact,
    milliseconds,
)
from app.service.queries.account_history import AccountHistory

_TIME = Axis("Time (UTC)", AxisKind.TIME)


def account_chart(history: AccountHistory, thresholds: Sequence[float] = ()) -> Chart:
    """Chart an account's epsilon over time, with limits, and alert thresholds below 1 as shares of the limit."""
    limit = history.account.limit
    assert limit is not None, "populations and budgets have limits"
    times = [milliseconds(at) for at in history.moments]
    spent = Series("Spent", tuple(zip(times, history.epsilons, strict=True)), SeriesKind.STEP, SeriesRole.SPENT)
    told = [
        Series(f"{share:.0%} of the limit", _flat(times, share * limit.epsilon), role=SeriesRole.THRESHOLD)
        for share in thresholds
        if share < 1
    ]
    return Chart(
        title="Epsilon over time",
        x=_TIME,
        y=Axis(f"Epsilon at δ {format_exact(limit.delta)}", start=0),
        series=(spent, *told, Series("Limit", tuple(_limits(history, times)), SeriesKind.STEP, SeriesRole.LIMIT)),
        marks=tuple(
            Mark(
                milliseconds(change.at),
                f"limit {format_exact(change.before.epsilon)} to {format_exact(change.after.epsilon)}",
            )
            for change in history.changes
        ),
    )


def share_chart(history: AccountHistory) -> Chart | None:
    """Chart each child's part of the limit at one order, or None; of disjoint partitions the largest counts."""
    if history.order is None or not history.children:
        return None
    times = [milliseconds(at) for at in history.moments]
    parts = history.account.partitions_per_unit is not None
    kind = SeriesKind.STEP if parts else SeriesKind.AREA
    return Chart(
        title="Who spent it",
        x=_TIME,
        y=Axis(f"% of the limit, at order {history.order:.4g}", start=0),
        series=tuple(
            Series(each.path.rpartition("/")[2], _percent(times, each.shares), kind) for each in history.children
        ),
        stacked=not parts,
    )


def _flat(times: Sequence[float], value: float) -> tuple[Point, ...]:
    return ((times[0], value), (times[-1], value)) if times else ()


def _percent(times: Sequence[float], shares: Sequence[float]) -> tuple[Point, ...]:
    return tuple((at, round(100 * share, 5)) for at, share in zip(times, shares, strict=True))


def _limits(history: AccountHistory, times: Sequence[float]) -> Iterator[Point]:
    assert history.account.limit is not None, "populations and budgets have limits"
    if times:
        yield times[0], (history.changes[0].before if history.changes else history.account.limit).epsilon
    for change in history.changes:
        yield milliseconds(change.at), change.after.epsilon
    if times and (not history.changes or milliseconds(history.changes[-1].at) < times[-1]):
        yield times[-1], history.account.limit.epsilon
