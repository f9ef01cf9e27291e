"""The states of a run, every one with every action."""

import pytest

from app.ledger.decisions import genesis
from app.ledger.errors import AttemptSupersededError, RunStateConflictError, SequenceGapError
from app.ledger.runs import Run, RunAction, RunStatus, next_status, require_active, require_attempt, require_no_gap

S, A = RunStatus, RunAction
TABLE = {
    (S.PENDING, A.PAUSE): None,
    (S.PENDING, A.RESUME): None,
    (S.PENDING, A.COMPLETE): None,
    (S.PENDING, A.ABORT): S.ABORTED,
    (S.WAITING, A.PAUSE): None,
    (S.WAITING, A.RESUME): None,
    (S.WAITING, A.COMPLETE): None,
    (S.WAITING, A.ABORT): S.ABORTED,
    (S.ACTIVE, A.PAUSE): S.PAUSED,
    (S.ACTIVE, A.RESUME): S.ACTIVE,
    (S.ACTIVE, A.COMPLETE): S.COMPLETED,
    (S.ACTIVE, A.ABORT): S.ABORTED,
    (S.PAUSED, A.PAUSE): S.PAUSED,
    (S.PAUSED, A.RESUME): S.ACTIVE,
    (S.PAUSED, A.COMPLETE): S.COMPLETED,
    (S.PAUSED, A.ABORT): S.ABORTED,
    (S.COMPLETED, A.PAUSE): None,
    (S.COMPLETED, A.RESUME): None,
    (S.COMPLETED, A.COMPLETE): S.COMPLETED,
    (S.COMPLETED, A.ABORT): None,
    (S.ABORTED, A.PAUSE): None,
    (S.ABORTED, A.RESUME): None,
    (S.ABORTED, A.COMPLETE): None,
    (S.ABORTED, A.ABORT): S.ABORTED,
    (S.OVERDRAWN, A.PAUSE): None,
    (S.OVERDRAWN, A.RESUME): None,
    (S.OVERDRAWN, A.COMPLETE): S.COMPLETED,
    (S.OVERDRAWN, A.ABORT): S.ABORTED,
}
HEAD = genesis("org_x", "run_x")


def test_the_table_is_whole() -> None:
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
        with pytest.raises(RunStateConflictError, match="only an active run"):
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
