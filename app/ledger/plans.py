"""Plans: repetitions of events that a run intends, and those authorised."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.accounting.events import DpEvent
from app.ledger.accounts import StepEvent
from app.ledger.errors import InvalidInputError

MAX_COUNT = 1_000_000_000
"""Maximum repetitions of one event in a plan, as in a step event."""


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """Planned and authorised repetitions of an event, 1 to 1e9.

    `revoked` ones are no longer authorised since a limit was lowered; they stay reserved until the trainer reports
    whether they were executed (ADR 0026).
    """

    event: DpEvent
    count: int
    used: int = 0
    revoked: int = 0

    def __post_init__(self) -> None:
        """Check the invariants of the counts."""
        assert 1 <= self.count <= MAX_COUNT, "a plan holds at least one repetition of each of its events"
        assert 0 <= self.used <= self.count, "no more is used than planned"
        assert 0 <= self.revoked <= self.count, "at most the planned steps are revoked"

    @property
    def left(self) -> int:
        """Number of repetitions that may still be authorised."""
        return max(0, self.unused - self.revoked)

    @property
    def unused(self) -> int:
        """Number of reserved repetitions: planned, and neither authorised nor charged."""
        return self.count - self.used


def plan_of(steps: Sequence[StepEvent]) -> tuple[PlannedItem, ...]:
    """Merge steps into a plan with each event once, in order of first occurrence."""
    if not steps:
        raise InvalidInputError("A plan has at least one step event.")
    counts: dict[DpEvent, int] = {}
    for step in steps:
        counts[step.event] = counts.get(step.event, 0) + step.count
    most = max(counts.values())
    if most > MAX_COUNT:
        raise InvalidInputError(
            f"The plan holds {most} repetitions of one event; at most {MAX_COUNT} can be set aside for a run at once."
        )
    return tuple(PlannedItem(event, count) for event, count in counts.items())
