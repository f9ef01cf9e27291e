"""A run: its states, and the places of its steps."""

from dataclasses import dataclass
from enum import StrEnum

from app.accounting.events import DpEvent
from app.ledger.deviations import Deviation
from app.ledger.errors import AttemptSupersededError, RunStateConflictError, SequenceGapError


class RunStatus(StrEnum):
    """Where a run is in its life; a pending one waits for another person's word on its registration."""

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"
    OVERDRAWN = "overdrawn"


class RunAction(StrEnum):
    """What can be done to a run."""

    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    ABORT = "abort"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.ABORTED})
"""A run in one of these never changes again."""

ENDS = frozenset({RunAction.COMPLETE, RunAction.ABORT})
"""All that can be done to a run that is overdrawn: it is frozen."""

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
        attempt: which continuation from a checkpoint, from 1; its number is the trainer's fencing token.
        next_step: the number of the first step not yet admitted.
        decisions: how many decisions were recorded.
        chain_head: the hash of the last of them, or of the chain's beginning.
        reservation_id: the active reservation under which its steps are taken, if there is one.
        attempt_first_step: the number of the current attempt's first step.
        declared_steps: how many it has planned; None: it has not said.
        declared_steps_per_hour: how fast it goes at the most; None: it has not said.
        deviations: in what its steps differed from what it declared, of each kind the first.
    """

    account_id: str
    status: RunStatus
    event: DpEvent | None
    attempt: int
    next_step: int
    decisions: int
    chain_head: bytes
    reservation_id: str | None = None
    attempt_first_step: int = 0
    declared_steps: int | None = None
    declared_steps_per_hour: float | None = None
    deviations: tuple[Deviation, ...] = ()


def after(status: RunStatus, action: RunAction) -> RunStatus:
    """The state after an action.

    Args:
        status: the state before.
        action: what is asked.

    Returns:
        The new state; the same if the action's state is reached already, so that a retry is harmless.

    Raises:
        RunStateConflictError: a completed or aborted run stays what it is, an overdrawn one can only be ended, and a
            pending one only aborted.
    """
    reached = _REACHED[action]
    ended = status in TERMINAL and status is not reached
    unapproved = status is RunStatus.PENDING and action is not RunAction.ABORT
    if ended or unapproved or (status is RunStatus.OVERDRAWN and action not in ENDS):
        raise RunStateConflictError(
            f"The run is {status}; it cannot be told to {action}. {_way_on(status)}", run_status=str(status)
        )
    return reached


def require_active(run: Run) -> None:
    """Let only an active run take steps.

    Args:
        run: as it is now.

    Raises:
        RunStateConflictError: it is pending, paused, completed, aborted or overdrawn.
    """
    if run.status is not RunStatus.ACTIVE:
        raise RunStateConflictError(
            f"The run is {run.status}; only an active run takes steps. {_way_on(run.status)}",
            run_status=str(run.status),
        )


def require_not_ended(run: Run) -> None:
    """Let only a run that has not ended open another attempt.

    Args:
        run: as it is now.

    Raises:
        RunStateConflictError: it is pending, completed, aborted or overdrawn.
    """
    if run.status not in {RunStatus.ACTIVE, RunStatus.PAUSED}:
        raise RunStateConflictError(
            f"The run is {run.status}; only an active or paused run goes on in a new attempt. {_way_on(run.status)}",
            run_status=str(run.status),
        )


def require_attempt(run: Run, attempt: int) -> None:
    """Let only the current attempt speak for a run: its number is the fencing token.

    Args:
        run: as it is now.
        attempt: the one that the trainer believes to be.

    Raises:
        AttemptSupersededError: another attempt is the current one.
    """
    if attempt != run.attempt:
        why = "was superseded" if attempt < run.attempt else "was never opened"
        raise AttemptSupersededError(
            f"Attempt {attempt} of the run {why}; the current one is {run.attempt}. Only the trainer that opened "
            "the current attempt may go on; open a new attempt to take over.",
            attempt=attempt,
            current_attempt=run.attempt,
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
    if status is RunStatus.PENDING:
        return "Its registration waits for another person's approval; /v1/proposals has it."
    if status is RunStatus.PAUSED:
        return "Resume it first."
    if status is RunStatus.OVERDRAWN:
        return "It reported more than its budget allows; complete or abort it, and register a new run to go on."
    return "Register a new run to go on."
