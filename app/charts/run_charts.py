"""Charts of a run: its epsilon, noise and sampling by step."""

from collections.abc import Callable, Iterator
from typing import Final

from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, sampling_probability
from app.charts.model import Axis, Chart, Mark, Point, Series, SeriesKind, SeriesRole, format_exact
from app.ledger.decisions import Decision, DecisionOutcome
from app.ledger.event_inspection import smallest_noise
from app.service.queries.run_detail import RunDetail

MOST_ATTEMPTS: Final = 6
"""Maximum number of lines; the last attempts are drawn."""

_STEPS: Final = Axis("Step", start=0)


def run_chart(seen: RunDetail) -> Chart:
    """Chart a run's epsilon by step, with limits, refusals and projection."""
    reading = seen.record.reading
    lines = _attempts(seen)
    if seen.projected:
        start = seen.record.run.next_step
        points = tuple((float(start + further), epsilon) for further, epsilon in seen.projected)
        lines.append(Series("If it goes on", points, role=SeriesRole.PROJECTED))
    refused = tuple(_at(each) for each in reversed(seen.refusals))
    if refused:
        lines.append(Series("Refused", refused, SeriesKind.POINTS, SeriesRole.REFUSED))
    end = max([x for line in lines for x, _ in line.points], default=1.0)
    limit = (*_limits(seen), (end, reading.epsilon_limit))
    return Chart(
        title="Epsilon over steps",
        x=_STEPS,
        y=Axis(f"Epsilon at δ {format_exact(reading.delta)}", start=0),
        series=(*lines, Series("Limit", limit, SeriesKind.STEP, SeriesRole.LIMIT)),
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
    """Build a line for each attempt, from the step and epsilon of its checkpoint."""
    points: dict[int, list[Point]] = {}
    spent = 0.0
    for each in seen.points:
        if each.outcome is not DecisionOutcome.REFUSED:
            mine = points.setdefault(each.attempt, [(float(each.first_step), spent)])
            spent = each.reading.epsilon
            mine.append((float(each.next_step), spent))
    last = max(points, default=1)
    shown = sorted(points)[-MOST_ATTEMPTS:]
    return [
        Series(
            "Spent" if last == 1 else f"Attempt {attempt}",
            tuple(points[attempt]),
            role=SeriesRole.SPENT if attempt == last else None,
        )
        for attempt in shown
    ]


def _at(refused: Decision) -> Point:
    return float(refused.first_step), refused.reading.epsilon


def _limits(seen: RunDetail) -> Iterator[Point]:
    """Yield the changes of the limit during the last attempt."""
    before: float | None = None
    for each in seen.points:
        if each.attempt == seen.record.run.attempt and each.reading.epsilon_limit != before:
            yield (0.0 if before is None else float(each.first_step)), each.reading.epsilon_limit
            before = each.reading.epsilon_limit
    if before is None:
        yield 0.0, seen.record.reading.epsilon_limit


def _marks(seen: RunDetail) -> tuple[Mark, ...]:
    run, remaining = seen.record.run, seen.record.steps_remaining
    marks = []
    if remaining and seen.projected and seen.projected[-1][0] == remaining:
        marks.append(Mark(float(run.next_step + remaining), "budget exhausted"))
    if run.declared_steps is not None and run.next_step:
        marks.append(Mark(float(run.declared_steps), "declared end"))
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
