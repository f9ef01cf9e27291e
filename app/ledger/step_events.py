"""Step events: DpEvents with counts, and their costs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent
from app.ledger.errors import InvalidInputError

MAX_COUNT: Final = 1_000_000_000
"""Maximum repetitions of one event, in a step event and in a reservation."""


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A DpEvent and its number of repetitions, 1 to 1e9."""

    event: DpEvent
    count: int

    def __post_init__(self) -> None:
        """Reject a count that charges nothing or overflows."""
        if not 1 <= self.count <= MAX_COUNT:
            raise InvalidInputError(f"count must be in [1, {MAX_COUNT}], not {self.count}.")


def is_endless(steps: Iterable[StepEvent]) -> bool:
    """Check whether the last of planned events is repeated without end."""
    return any(step.count == MAX_COUNT for step in steps)


def planned_steps(steps: Sequence[StepEvent]) -> int | None:
    """Count planned steps; None: there are none, or they have no end."""
    return None if not steps or is_endless(steps) else sum(step.count for step in steps)


def counts_of(steps: Iterable[StepEvent]) -> dict[DpEvent, int]:
    """Add up the counts of equal events, in order of first occurrence."""
    counts: dict[DpEvent, int] = {}
    for step in steps:
        counts[step.event] = counts.get(step.event, 0) + step.count
    return counts


class PricedStep(NamedTuple):
    """A step event and the cost of one repetition.

    A price is computed once and stored with the event: floats may differ in their last bit between processors and
    library versions, and a ledger with recomputed prices could not replay its balances (ADR 0004).
    """

    step: StepEvent
    curve: RdpCurve

    @property
    def cost(self) -> RdpCurve:
        """The exact curve of all repetitions."""
        return self.curve.times(self.step.count)


def total_cost(steps: Sequence[PricedStep]) -> RdpCurve:
    """Sum the costs of one or more step events, exactly."""
    if len(steps) == 1:
        return steps[0].cost
    # Equal events share one curve object: adding their counts first saves curve additions.
    counts: dict[int, int] = {}
    curves: dict[int, RdpCurve] = {}
    times = Counter(map(id, steps))  # a batch repeats few objects
    for number, priced in dict(zip(map(id, steps), steps, strict=True)).items():
        place = id(priced.curve)
        counts[place] = counts.get(place, 0) + priced.step.count * times[number]
        curves[place] = priced.curve
    costs = [curve.times(counts[place]) for place, curve in curves.items()]
    total = costs[0]
    for cost in costs[1:]:
        total = total + cost
    return total


def first_steps(steps: Sequence[StepEvent], count: int) -> tuple[StepEvent, ...]:
    """Take the first `count` of the steps."""
    kept = []
    for step in steps:
        if count <= 0:
            break
        kept.append(StepEvent(step.event, min(step.count, count)))
        count -= step.count
    return tuple(kept)
