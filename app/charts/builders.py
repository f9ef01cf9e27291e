"""Charts of populations and budgets over time, and of runs by step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, sampling_probability, smallest_noise
from app.charts.model import (
    PERCENT,
    Axis,
    AxisKind,
    Chart,
    Mark,
    Point,
    Series,
    SeriesKind,
    SeriesRole,
    milliseconds,
)
from app.ledger.runs.decisions import DecisionOutcome
from app.ledger.wording import format_exact
from app.service.queries.account_history import AccountHistory
from app.service.queries.run_detail import RunDetail

MOST_ATTEMPTS: Final = 6
"""Maximum number of lines; the last attempts are drawn."""

NEAR: Final = 1.02
"""Ratio of the steps of decisions with the same epsilon of which only the last is drawn."""

_STEPS: Final = Axis("Step", start=0)
_TIME: Final = Axis("Time (UTC)", AxisKind.TIME)


def account_chart(history: AccountHistory) -> Chart:
    """Chart an account's epsilon over time, with limits."""
    limit = history.account.limit
    assert limit is not None, "populations and budgets have limits"
    times = [milliseconds(at) for at in history.moments]
    spent = Series("Epsilon", tuple(zip(times, history.epsilons, strict=True)), SeriesKind.STEP, SeriesRole.SPENT)
    return Chart(
        title="Epsilon over time",
        x=_TIME,
        y=Axis(f"Epsilon at δ {format_exact(limit.shown_delta)}", start=0),
        series=(spent, Series("Limit", tuple(_limits_over_time(history, times)), SeriesKind.STEP, SeriesRole.LIMIT)),
        marks=tuple(
            Mark(
                milliseconds(change.at),
                f"limit {format_exact(change.before.epsilon)} to {format_exact(change.after.epsilon)}",
            )
            for change in history.changes
        ),
    )


def used_chart(history: AccountHistory, thresholds: Sequence[float] = ()) -> Chart:
    """Chart the used share of an account's capacity over time, with all of it, and alert thresholds below that."""
    times = [milliseconds(at) for at in history.moments]
    used = Series("Used", _percent(times, history.used), SeriesKind.STEP, SeriesRole.SPENT)
    crossings = [
        Series(f"{format_exact(round(100 * each, 9))}{PERCENT}", _flat(times, 100 * each), role=SeriesRole.THRESHOLD)
        for each in thresholds
        if each < 1
    ]
    limit = Series("Limit", _flat(times, 100.0), role=SeriesRole.LIMIT)
    return Chart("Used over time", _TIME, Axis("% of the limit", start=0), (used, *crossings, limit))


def share_chart(history: AccountHistory) -> Chart | None:
    """Chart each child's part of the used share; of disjoint partitions the largest counts."""
    if not history.children:
        return None
    times = [milliseconds(at) for at in history.moments]
    parts = history.account.partitions_per_unit is not None
    kind = SeriesKind.STEP if parts else SeriesKind.AREA
    return Chart(
        title="Who used it",
        x=_TIME,
        y=Axis("% of the limit", start=0),
        series=tuple(
            Series(each.path.rpartition("/")[2], _percent(times, each.shares), kind) for each in history.children
        ),
        stacked=not parts,
    )


def _flat(times: Sequence[float], value: float) -> tuple[Point, ...]:
    return ((times[0], value), (times[-1], value)) if times else ()


def _percent(times: Sequence[float], shares: Sequence[float]) -> tuple[Point, ...]:
    return tuple((at, round(100 * share, 5)) for at, share in zip(times, shares, strict=True))


def _limits_over_time(history: AccountHistory, times: Sequence[float]) -> Iterator[Point]:
    assert history.account.limit is not None, "populations and budgets have limits"
    if times:
        yield times[0], (history.changes[0].before if history.changes else history.account.limit).epsilon
    for change in history.changes:
        yield milliseconds(change.at), change.after.epsilon
    if times and (not history.changes or milliseconds(history.changes[-1].at) < times[-1]):
        yield times[-1], history.account.limit.epsilon


def run_chart(seen: RunDetail) -> Chart:
    """Chart a run's epsilon by step, with limits, refusals and projection."""
    lines = _attempts(seen)
    if seen.projected:
        start = seen.record.run.next_step
        points = tuple((float(start + further), epsilon) for further, epsilon in seen.projected)
        lines.append(Series("If it goes on", points, role=SeriesRole.PROJECTED))
    refused = tuple((float(each.first_step), each.reading.epsilon) for each in reversed(seen.refusals))
    if refused:
        lines.append(Series("Refused", refused, SeriesKind.POINTS, SeriesRole.REFUSED))
    end = max([x for line in lines for x, _ in line.points], default=1.0)
    own = seen.record.own.account.limit
    if own is not None:  # a limit that others share is no line of this run
        limit = (*_limit_steps(seen, own.epsilon), (end, own.epsilon))
        lines.append(Series("Limit", limit, SeriesKind.STEP, SeriesRole.LIMIT))
    return Chart(
        title="Epsilon over steps",
        x=_STEPS,
        y=Axis(f"Epsilon at δ {format_exact(seen.record.delta)}", start=0),
        series=tuple(lines),
        marks=_marks(seen),
    )


def noise_chart(seen: RunDetail) -> Chart | None:
    """Chart the noise multiplier by step, or None if it is constant or absent."""
    return _trait(seen, "Noise multiplier", smallest_noise)


def sampling_chart(seen: RunDetail) -> Chart | None:
    """Chart the sampling probability by step, or None if it is constant or absent."""
    return _trait(seen, "Sampling probability", sampling_of)


def sampling_of(event: DpEvent) -> float | None:
    """Return an event's only sampling probability, or None."""
    try:
        return sampling_probability(event)
    except UnsupportedEventError:
        return None


def _attempts(seen: RunDetail) -> list[Series]:
    """Build a line for each attempt, from the step and epsilon of its checkpoint.

    Of near decisions that were answered with one epsilon, the line has the last, whose own epsilon that is about. Its
    end is what is read.
    """
    points: dict[int, list[Point]] = {}
    spent, since = 0.0, 0
    for each in seen.points:
        if each.outcome is not DecisionOutcome.REFUSED:
            mine = points.setdefault(each.attempt, [(float(each.first_step), spent)])
            if each.reading.epsilon != spent:
                spent, since = each.reading.epsilon, each.next_step
            elif len(mine) > 1 and each.next_step <= NEAR * since:
                del mine[-1]
            mine.append((float(each.next_step), spent))
    last = max(points, default=1)
    if points:
        points[last][-1] = points[last][-1][0], seen.record.epsilon
    shown = sorted(points)[-MOST_ATTEMPTS:]
    return [
        Series(
            "Epsilon" if last == 1 else f"Attempt {attempt}",
            tuple(points[attempt]),
            role=SeriesRole.SPENT if attempt == last else None,
        )
        for attempt in shown
    ]


def _limit_steps(seen: RunDetail, now: float) -> Iterator[Point]:
    """Yield the changes of a run's own limit during the last attempt; `now` is its epsilon."""
    before: float | None = None
    for each in seen.points:
        if each.attempt == seen.record.run.attempt and each.reading.limit.epsilon != before:
            yield (0.0 if before is None else float(each.first_step)), each.reading.limit.epsilon
            before = each.reading.limit.epsilon
    if before is None:
        yield 0.0, now


def _marks(seen: RunDetail) -> tuple[Mark, ...]:
    run, remaining = seen.record.run, seen.record.steps_remaining
    marks = []
    if remaining and seen.projected and seen.projected[-1][0] == remaining:
        assert seen.record.binding is not None, "an account leaves the remaining steps"
        marks.append(Mark(float(run.next_step + remaining), f"no room left in {seen.record.binding.path}"))
    expected = run.declaration.expected_steps
    if expected is not None and run.next_step:
        marks.append(Mark(float(expected), "expected end"))
    return tuple(marks)


def _trait(seen: RunDetail, name: str, of: Callable[[DpEvent], float | None]) -> Chart | None:
    values: list[Point] = []
    end = 0.0
    for each in seen.points:
        if each.admitted and each.attempt == seen.record.run.attempt:
            at = each.first_step
            for step in each.steps:
                value = of(step.event)
                if not values or values[-1][1] != value:
                    values.append((float(at), value))
                at += step.count
            end = float(each.next_step)
    if len({value for _, value in values}) < 2:  # noqa: PLR2004 - one value is no change
        return None
    points = (*values, (end, values[-1][1]))
    return Chart(f"{name} over steps", _STEPS, Axis(name), (Series(name, points, SeriesKind.STEP),))
