"""Experiments: many trainings of which one is chosen, and how the choice is paid for."""

from collections.abc import Sequence
from enum import StrEnum

from app.accounting.events import Composed, DpEvent, RepeatAndSelect, SelfComposed
from app.ledger.accounts import StepEvent


class ChargingMode(StrEnum):
    """How a sweep is paid for."""

    EACH_RUN = "each_run"
    """Each run by itself: all of them may be looked at and released, and the choice costs nothing more."""

    REPEAT_AND_SELECT = "repeat_and_select"
    """All at once, before: their number is random and secret, and nothing but the best is looked at or released."""


def sweep_event(trial: Sequence[StepEvent], mean: float, shape: float | None) -> RepeatAndSelect:
    """The event of a whole sweep.

    Args:
        trial: all that one trial does to the data, whatever its hyper-parameters; at least one.
        mean: expected number of trials.
        shape: of the distribution of their number; None: Poisson.

    Returns:
        One event, to be charged once.

    Raises:
        InvalidEventError: a number is out of bounds.
    """
    parts: list[DpEvent] = [step.event if step.count == 1 else SelfComposed(step.event, step.count) for step in trial]
    return RepeatAndSelect(parts[0] if len(parts) == 1 else Composed(tuple(parts)), mean, shape)
