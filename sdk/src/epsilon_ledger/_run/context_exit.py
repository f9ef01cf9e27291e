"""The end of a run whose `with` block exits."""

from epsilon_ledger._wire.errors import (
    LedgerError,
    LedgerUnavailableError,
    RequestInDoubtError,
    StepsAlreadyTakenError,
)
from epsilon_ledger._wire.problem_errors import (
    AccountQuarantinedError,
    AttemptSupersededError,
    ReservationStateConflictError,
    ReservationsWaitingError,
    RunStateConflictError,
    SequenceConflictError,
    SequenceGapError,
)
from epsilon_ledger._wire.problems import BudgetExceededError

_TERMINAL = frozenset({"completed", "aborted"})

# After these another process owns the run, or it may be resumed: leaving the `with` block must not end it.
_RUN_STAYS_OPEN = (
    LedgerUnavailableError,
    RequestInDoubtError,
    StepsAlreadyTakenError,
    SequenceConflictError,
    SequenceGapError,
    AttemptSupersededError,
    ReservationsWaitingError,
    ReservationStateConflictError,
    AccountQuarantinedError,
    RunStateConflictError,
)


def exit_action(status: str, error: BaseException | None) -> str | None:
    """Return `complete`, `abort`, or None to leave the run as it is.

    Args:
        status: of the run.
        error: with which the block exits, or None.
    """
    if status in _TERMINAL or isinstance(error, _RUN_STAYS_OPEN):
        return None
    return "complete" if error is None or isinstance(error, BudgetExceededError) else "abort"


def completion_reason(error: BaseException | None) -> str | None:
    """Return why a run is completed; None: the run knows whether its last request was refused."""
    return "budget_exhausted" if isinstance(error, BudgetExceededError) else None


def add_failure_note(error: BaseException, action: str, run_id: str, second: LedgerError) -> None:
    """Add a note to the block's exception that the run could not be ended."""
    error.add_note(f"The ledger did not confirm the request to {action} the run {run_id}: {second}")
