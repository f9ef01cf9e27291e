"""Runs: their status, attempts and step numbers."""

from dataclasses import dataclass
from enum import StrEnum

from app.accounting.events import DpEvent
from app.ledger.deviations import Deviation
from app.ledger.errors import AttemptSupersededError, RunStateConflictError, SequenceGapError


class RunStatus(StrEnum):
    """Status of a run; a pending one waits for approval of its registration."""

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"
    OVERDRAWN = "overdrawn"


class RunAction(StrEnum):
    """A change of a run's status by a caller."""

    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    ABORT = "abort"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.ABORTED})
"""Final statuses."""

ENDS = frozenset({RunAction.COMPLETE, RunAction.ABORT})
"""The only actions on an overdrawn run."""

_REACHED = {
    RunAction.PAUSE: RunStatus.PAUSED,
    RunAction.RESUME: RunStatus.ACTIVE,
    RunAction.COMPLETE: RunStatus.COMPLETED,
    RunAction.ABORT: RunStatus.ABORTED,
}


@dataclass(frozen=True, slots=True)
class Run:
    """The state of a run besides its account.

    Args:
        event: the default step event; None: every request must name one.
        attempt: number of the current attempt, from 1; the trainer's fencing token.
        next_step: number of the first step that is not admitted yet.
        chain_head: hash of the last decision, or the genesis.
        attempt_first_step: number of the current attempt's first step.
        declared_steps_per_hour: its maximum rate, if declared.
        deviations: the first deviation of each kind from its declaration.
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


def next_status(status: RunStatus, action: RunAction) -> RunStatus:
    """Compute the status after an action; repeating an action is harmless.

    An ended run stays as it is, an overdrawn one can only end, a pending one only be aborted: else
    RunStateConflictError.
    """
    reached = _REACHED[action]
    ended = status in TERMINAL and status is not reached
    unapproved = status is RunStatus.PENDING and action is not RunAction.ABORT
    if ended or unapproved or (status is RunStatus.OVERDRAWN and action not in ENDS):
        raise RunStateConflictError(
            f"The run is {status}; it cannot {action}. {_next_action_hint(status)}", run_status=str(status)
        )
    return reached


def require_active(run: Run) -> None:
    """Raise RunStateConflictError unless the run is active."""
    if run.status is not RunStatus.ACTIVE:
        raise RunStateConflictError(
            f"The run is {run.status}; only an active run takes steps. {_next_action_hint(run.status)}",
            run_status=str(run.status),
        )


def require_not_ended(run: Run) -> None:
    """Raise RunStateConflictError unless the run is active or paused."""
    if run.status not in {RunStatus.ACTIVE, RunStatus.PAUSED}:
        raise RunStateConflictError(
            f"The run is {run.status}; only an active or paused run takes a new attempt. "
            f"{_next_action_hint(run.status)}",
            run_status=str(run.status),
        )


def require_attempt(run: Run, attempt: int) -> None:
    """Raise AttemptSupersededError unless the fencing token is current."""
    if attempt != run.attempt:
        why = "was superseded" if attempt < run.attempt else "was never opened"
        raise AttemptSupersededError(
            f"Attempt {attempt} of the run {why}; the current one is {run.attempt}. Only the trainer that opened "
            "the current attempt may go on; open a new attempt to take over.",
            attempt=attempt,
            current_attempt=run.attempt,
        )


def require_no_gap(run: Run, first_step: int | None) -> None:
    """Raise SequenceGapError if the first step, if given, skips a number."""
    if first_step is not None and first_step > run.next_step:
        raise SequenceGapError(
            f"Step {first_step} does not follow the {run.next_step} admitted so far; the next step is {run.next_step}.",
            expected_step=run.next_step,
        )


def _next_action_hint(status: RunStatus) -> str:
    if status is RunStatus.PENDING:
        return "Its registration waits for another person's approval; /v1/proposals has it."
    if status is RunStatus.PAUSED:
        return "Resume it first."
    if status is RunStatus.OVERDRAWN:
        return "It reported more than its budget allows; complete or abort it, and register a new run to go on."
    return "Register a new run to go on."
