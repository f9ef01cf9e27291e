"""The states of a run, every one with every action."""

import pytest

from app.ledger.errors import AttemptSupersededError, RunStateConflictError, SequenceGapError
from app.ledger.runs.decisions import genesis
from app.ledger.runs.run import Run, RunAction, RunStatus, next_status, require_active, require_attempt, require_no_gap

S, A = RunStatus, RunAction
AFTER: dict[RunStatus, tuple[RunStatus | None, ...]] = {  # pause, resume, complete, abort
    S.PENDING: (None, None, None, S.ABORTED),
    S.WAITING: (None, None, None, S.ABORTED),
    S.ACTIVE: (S.PAUSED, S.ACTIVE, S.COMPLETED, S.ABORTED),
    S.PAUSED: (S.PAUSED, S.ACTIVE, S.COMPLETED, S.ABORTED),
    S.COMPLETED: (None, None, S.COMPLETED, None),
    S.ABORTED: (None, None, None, S.ABORTED),
    S.OVERDRAWN: (None, None, S.COMPLETED, S.ABORTED),
}
ACTIONS = (A.PAUSE, A.RESUME, A.COMPLETE, A.ABORT)
TABLE = {(status, each): after for status, row in AFTER.items() for each, after in zip(ACTIONS, row, strict=True)}
HEAD = genesis("org_x", "run_x")
NEXT = {
    S.PENDING: "waits for another person's approval",
    S.WAITING: "waits for budget",
    S.PAUSED: "Resume it first",
    S.COMPLETED: "Register a new run to go on",
    S.ABORTED: "Register a new run to go on",
    S.OVERDRAWN: "complete or abort it, and register a new run",
}


def test_table_has_every_status_and_action() -> None:
    assert set(TABLE) == {(status, action) for status in S for action in A}


@pytest.mark.parametrize(("status", "action"), TABLE)
def test_each_action_leads_where_the_table_says(status: RunStatus, action: RunAction) -> None:
    expected = TABLE[status, action]
    if expected is None:
        with pytest.raises(RunStateConflictError, match=str(status)) as caught:
            next_status(status, action)
        assert caught.value.members == {"run_status": str(status)}
    else:
        assert next_status(status, action) is expected


@pytest.mark.parametrize("status", S)
def test_only_an_active_run_takes_steps(status: RunStatus) -> None:
    run = Run("run_x", status, None, 1, 0, 0, HEAD)
    if status is S.ACTIVE:
        require_active(run)
    else:
        with pytest.raises(RunStateConflictError, match=f"only an active run takes steps.*{NEXT[status]}"):
            require_active(run)


def test_a_gap_names_the_expected_step() -> None:
    run = Run("run_x", S.ACTIVE, None, 1, 7, 7, HEAD)
    for allowed in (None, 0, 7):
        require_no_gap(run, allowed)
    with pytest.raises(SequenceGapError) as caught:
        require_no_gap(run, 8)
    assert caught.value.members == {"expected_step": 7}


def test_only_the_current_attempt_speaks_for_a_run() -> None:
    run = Run("run_x", S.ACTIVE, None, 2, 7, 7, HEAD)
    require_attempt(run, 2)
    for attempt, why in ((1, "was superseded"), (3, "was never opened")):
        with pytest.raises(AttemptSupersededError, match=why) as caught:
            require_attempt(run, attempt)
        assert caught.value.members == {"attempt": attempt, "current_attempt": 2}
