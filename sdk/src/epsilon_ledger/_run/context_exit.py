"""What becomes of a run when its `with` block is left."""

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
    RunStateConflictError,
    SequenceConflictError,
    SequenceGapError,
)
from epsilon_ledger._wire.problems import BudgetExceededError

_TERMINAL = frozenset({"completed", "aborted"})

# After these the run is in other hands, or may be taken up again: leaving the `with` block must not end it.
_RUN_GOES_ON = (
    LedgerUnavailableError,
    RequestInDoubtError,
    StepsAlreadyTakenError,
    SequenceConflictError,
    SequenceGapError,
    AttemptSupersededError,
    ReservationStateConflictError,
    AccountQuarantinedError,
    RunStateConflictError,
)


def ending(status: str, error: BaseException | None) -> str | None:
    """How a run is to be ended.

    Args:
        status: of the run.
        error: what the block is left with.

    Returns:
        `complete` or `abort`; None: the run is left as it is.
    """
    if status in _TERMINAL or isinstance(error, _RUN_GOES_ON):
        return None
    return "complete" if error is None or isinstance(error, BudgetExceededError) else "abort"


def note_of(error: BaseException, action: str, run_id: str, second: LedgerError) -> None:
    """Say beside the first exception, which is the one that the caller must see, that the run could not be ended."""
    error.add_note(f"The ledger could not be told to {action} the run {run_id}: {second}")
