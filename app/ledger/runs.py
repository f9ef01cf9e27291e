"""A run: its states, and the places of its steps."""

from dataclasses import dataclass
from enum import StrEnum

from app.accounting.events import DpEvent
from app.ledger.errors import RunStateConflictError, SequenceGapError


class RunStatus(StrEnum):
    """Where a run is in its life."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"


class RunAction(StrEnum):
    """What can be done to a run."""

    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    ABORT = "abort"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.ABORTED})
"""A run in one of these never changes again."""

_REACHED = {
    RunAction.PAUSE: RunStatus.PAUSED,
    RunAction.RESUME: RunStatus.ACTIVE,
    RunAction.COMPLETE: RunStatus.COMPLETED,
    RunAction.ABORT: RunStatus.ABORTED,
}


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has besides its account.

    Args:
        account_id: its account.
        status: where it is in its life.
        event: what a step costs if the request does not say; None: every request must say.
        attempt: which continuation from a checkpoint, from 1.
        next_step: the number of the first step not yet admitted.
        decisions: how many decisions were recorded.
    """

    account_id: str
    status: RunStatus
    event: DpEvent | None
    attempt: int
    next_step: int
    decisions: int


def after(status: RunStatus, action: RunAction) -> RunStatus:
    """The state after an action.

    Args:
        status: the state before.
        action: what is asked.

    Returns:
        The new state; the same if the action's state is reached already, so that a retry is harmless.

    Raises:
        RunStateConflictError: a completed or aborted run stays what it is.
    """
    reached = _REACHED[action]
    if status in TERMINAL and status is not reached:
        raise RunStateConflictError(
            f"The run is {status}; it cannot be told to {action}. {_way_on(status)}", run_status=str(status)
        )
    return reached


def require_active(run: Run) -> None:
    """Let only an active run take steps.

    Args:
        run: as it is now.

    Raises:
        RunStateConflictError: it is paused, completed or aborted.
    """
    if run.status is not RunStatus.ACTIVE:
        raise RunStateConflictError(
            f"The run is {run.status}; only an active run takes steps. {_way_on(run.status)}",
            run_status=str(run.status),
        )


def require_no_gap(run: Run, first_step: int | None) -> None:
    """Let steps follow one another without a gap.

    Args:
        run: as it is now.
        first_step: the number that the trainer gives its next step; None: whichever is next.

    Raises:
        SequenceGapError: it lies beyond the next step.
    """
    if first_step is not None and first_step > run.next_step:
        raise SequenceGapError(
            f"Step {first_step} does not follow the {run.next_step} admitted so far; the next step is {run.next_step}.",
            expected_step=run.next_step,
        )


def _way_on(status: RunStatus) -> str:
    return "Resume it first." if status is RunStatus.PAUSED else "Register a new run to go on."
