"""The epsilon after each step of a plan, thinned out for a plot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import RdpCurve
from app.accounting.orders import GRID_VERSION, orders


@dataclass(frozen=True, slots=True)
class TrajectoryPoint:
    """The epsilon after a number of steps, and the order that attains it."""

    step: int
    epsilon: float
    order: float


def epsilon_trajectory(
    parts: Sequence[tuple[RdpCurve, int]], delta: float, max_points: int, grid_version: int = GRID_VERSION
) -> list[TrajectoryPoint]:
    """Compute the epsilon after the first, the last and evenly spaced steps between.

    `parts` has each step's curve and its number of consecutive steps; 1 point is the last step. Each point converts the
    exact curve so far. Converting all points as one matrix measured no faster: one curve fits the processor's cache, a
    matrix of a thousand does not.
    """
    grid = orders(grid_version)
    found = []
    for step, curve in _at_steps(parts, spread(1, 1 + sum(count for _, count in parts), max_points)):
        best = epsilon_of_curve(grid, curve, delta)
        found.append(TrajectoryPoint(step, best.epsilon, best.order))
    return found


def spread(start: int, stop: int, most: int) -> list[int]:
    """Spread at most `most` integers evenly over [start, stop), both ends included; a single one is the last."""
    length = stop - start
    if length <= most:
        return list(range(start, stop))
    if most == 1:
        return [stop - 1]
    return [start + index * (length - 1) // (most - 1) for index in range(most)]


def _at_steps(parts: Sequence[tuple[RdpCurve, int]], steps: Sequence[int]) -> Iterator[tuple[int, RdpCurve]]:
    """Yield the curve after each of some increasing steps."""
    before, begun = RdpCurve.zero(parts[0][0].values.size), 0
    remaining = iter(parts)
    curve, count = next(remaining)
    for step in steps:
        while step > begun + count:
            before, begun = before + curve.times(count), begun + count
            curve, count = next(remaining)
        yield step, before + curve.times(step - begun)
