"""Runs: their status, attempts and step numbers."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from app.accounting.events import (
    DpEvent,
)
from app.ledger.errors import AttemptSupersededError, InvalidInputError, RunStateConflictError, SequenceGapError
from app.ledger.runs.deviations import Deviation, DeviationKind, differences
from app.ledger.runs.origins import Origins
from app.ledger.step_events import MAX_COUNT, StepEvent


class RunStatus(StrEnum):
    """Status of a run; a pending one waits for approval of its registration, a waiting one for its reservation."""

    PENDING = "pending"
    WAITING = "waiting"
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


class EndReason(StrEnum):
    """Why a run ended; a lost one was silent for too long, one that was not granted has waited in vain."""

    FINISHED = "finished"
    BUDGET_EXHAUSTED = "budget_exhausted"
    ABORTED = "aborted"
    LOST = "lost"
    NOT_GRANTED = "not_granted"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.ABORTED})
"""Final statuses."""

TAKES_NO_STEPS = TERMINAL | {RunStatus.PENDING, RunStatus.WAITING}
"""Statuses of runs that have ended, or cannot begin before an approval or before their reservation is granted."""

ENDS = frozenset({RunAction.COMPLETE, RunAction.ABORT})
"""The only actions on an overdrawn run."""

END_REASONS: Final = {
    RunAction.COMPLETE: (EndReason.FINISHED, EndReason.BUDGET_EXHAUSTED),
    RunAction.ABORT: (EndReason.ABORTED, EndReason.LOST, EndReason.NOT_GRANTED),
}
"""Reasons that an action may record, the usual one first."""

_REACHED = {
    RunAction.PAUSE: RunStatus.PAUSED,
    RunAction.RESUME: RunStatus.ACTIVE,
    RunAction.COMPLETE: RunStatus.COMPLETED,
    RunAction.ABORT: RunStatus.ABORTED,
}


LEAST_HOURS: Final = 1.0
"""A run that has just begun may take an hour's steps immediately."""


@dataclass(frozen=True, slots=True)
class RunDeclaration:
    """What is declared of a run when it is registered, which never changes; None: nothing.

    Each field is a column of `runs`, and a member of the API's request and answer of the same name. The audit log,
    verification, the export, the CSV and the run's page derive from the fields.

    Args:
        expected_steps: number of all its steps.
        declared_steps_per_hour: its maximum rate.
        starts_from: what its training starts from; empty: from nothing that was trained before.
    """

    expected_steps: int | None = None
    declared_steps_per_hour: float | None = None
    starts_from: Origins | None = None


NOTHING_DECLARED: Final = RunDeclaration()
DECLARED: Final = tuple(field.name for field in fields(RunDeclaration))


def declaration_of(source: Any) -> RunDeclaration:  # noqa: ANN401 - a row or a request
    """Read a declaration from attributes of the same names."""
    return RunDeclaration(*[getattr(source, name) for name in DECLARED])


class Run(NamedTuple):
    """The state of a run besides its account.

    Args:
        event: the default step event; None: every request must name one.
        attempt: number of the current attempt, from 1; the trainer's fencing token.
        next_step: number of the first step that is not admitted yet.
        chain_head: hash of the last decision, or the genesis.
        attempt_first_step: number of the current attempt's first step.
        deviations: the first deviation of each kind and direction from its declaration.
        last_decided_at: time of the last decision; None before the first one.
        last_actor: its author.
        end_reason: of a run that has ended, at `ended_at`.
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
    declaration: RunDeclaration = NOTHING_DECLARED
    deviations: tuple[Deviation, ...] = ()
    last_decided_at: datetime | None = None
    last_actor: str | None = None
    end_reason: EndReason | None = None
    ended_at: datetime | None = None

    def advanced(self, next_step: int, chain_head: bytes, decided_at: datetime, actor: str) -> Self:
        """Copy the run after a further decision."""
        # Hot path, once per step: _replace takes twice as long.
        return type(self)(
            self.account_id,
            self.status,
            self.event,
            self.attempt,
            next_step,
            self.decisions + 1,
            chain_head,
            self.reservation_id,
            self.attempt_first_step,
            self.declaration,
            self.deviations,
            decided_at,
            actor,
            self.end_reason,
            self.ended_at,
        )

    def ended(self, status: RunStatus, reason: EndReason, at: datetime) -> Self:
        """Copy the run at its end."""
        return self._replace(status=status, end_reason=reason, ended_at=at)


def status_payload(run: Run) -> dict[str, str]:
    """Build the audit payload of a run's status, with the reason of an end."""
    reason = {} if run.end_reason is None else {"end_reason": str(run.end_reason)}
    return {"status": str(run.status), **reason}


def registration_payload(event: str | None, declaration: RunDeclaration) -> dict[str, object]:
    """Build the part of the audit payload of a registration that only runs have; `event` is a fingerprint."""
    return {"event": event, **asdict(declaration)}


def next_status(status: RunStatus, action: RunAction) -> RunStatus:
    """Compute the status after an action; repeating an action is harmless.

    An ended run stays as it is, an overdrawn one can only end, one that has not begun only be aborted: else
    RunStateConflictError.
    """
    reached = _REACHED[action]
    ended = status in TERMINAL and status is not reached
    unbegun = status in {RunStatus.PENDING, RunStatus.WAITING} and action is not RunAction.ABORT
    if ended or unbegun or (status is RunStatus.OVERDRAWN and action not in ENDS):
        raise RunStateConflictError(
            f"The run is {status}; it cannot {action}. {_next_action_hint(status)}", run_status=str(status)
        )
    return reached


def end_reason_of(action: RunAction, reason: EndReason | None) -> EndReason:
    """Get the recorded reason of an end; None: the usual one of the action.

    Raises:
        InvalidInputError: the action does not end a run for this reason.
    """
    allowed = END_REASONS[action]
    if reason is None:
        return allowed[0]
    if reason not in allowed:
        raise InvalidInputError(
            f"`reason` is {reason}, and a run that is to {action} ends as {' or '.join(allowed)}. Send one of these."
        )
    return reason


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


def require_no_sweep(run: Run, sweeps: Collection[str]) -> None:
    """Raise RunStateConflictError if the run is one of the sweeps, each of which was approved for one charge."""
    if run.account_id in sweeps:
        raise RunStateConflictError(
            "The run belongs to an experiment that is charged at once, and takes no steps of its own. Charge the "
            "experiment: POST /v1/experiments/{id}/charge.",
            run_status=str(run.status),
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
    if status is RunStatus.WAITING:
        return "Its reservation waits for budget: GET /v1/reservations/{id} says for what."
    if status is RunStatus.PAUSED:
        return "Resume it first."
    if status is RunStatus.OVERDRAWN:
        return "It reported more than its budget allows; complete or abort it, and register a new run to go on."
    return "Register a new run to go on."


def remaining_steps(run: Run, requested: int, expected: int | None) -> int:
    """Count the steps that a training still needs, with those that it requests now.

    `expected` is the number of all its steps by the request; None: as the run declared.
    """
    most = run.declaration.expected_steps if expected is None else expected
    return requested if most is None else min(max(requested, most - run.next_step), MAX_COUNT)


def find_deviations(
    run: Run, planned: Sequence[StepEvent], steps: Sequence[StepEvent], hours: float
) -> tuple[Deviation, ...]:
    """Find the first deviation of each kind and direction from a run's declaration, `hours` after its registration.

    Besides its default event the run has declared the `planned` ones.
    """
    found: dict[tuple[DeviationKind, bool], Deviation] = {}
    compared: set[int] = set()
    at = run.next_step
    for step in steps:
        if step.event is not run.event and id(step) not in compared:  # mostly the same object
            compared.add(id(step))
            if step.event != run.event and all(step.event != each.event for each in planned):
                usual = run.event or next((each.event for each in planned), None)
                for kind, expected, seen in () if usual is None else differences(usual, step.event):
                    deviation = Deviation(kind, expected, seen, at)
                    found.setdefault(deviation.respect, deviation)
        at += step.count
    last = run.declaration.expected_steps
    if last is not None and at > last:
        more_steps = Deviation(DeviationKind.STEPS, last, at, max(run.next_step, last))
        found[more_steps.respect] = more_steps
    most = run.declaration.declared_steps_per_hour
    if most is not None and at > most * max(hours, LEAST_HOURS):
        rate = at / max(hours, LEAST_HOURS)
        faster = Deviation(DeviationKind.STEPS_PER_HOUR, most, rate, run.next_step)
        found[faster.respect] = faster
    return tuple(found.values())
